"""Sub-commands of ``multiring``, run in this process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from multiring.bench import cli


def run_command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Return the exit status, standard output and standard error."""
    with pytest.raises(SystemExit) as end:
        cli.main([*words])
    shown = capsys.readouterr()
    return int(str(end.value.code)), shown.out, shown.err


def json_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """Return what a command prints with ``--json``; it must succeed and say nothing else."""
    status, out, err = run_command(capsys, *words, "--json")
    assert (status, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found
