"""Names of labs: unique, and free again when their owner is gone, however it went."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from multiring.bench.lab.registry import claim_name
from multiring.errors import LaunchError


def test_names_differ_while_they_are_held(tmp_path: Path) -> None:
    cleaned: list[str] = []
    claims = [claim_name(cleaned.append, tmp_path) for _ in range(3)]
    assert [claim.name for claim in claims] == [f"lab{os.getpid()}{end}" for end in ("", "-1", "-2")]
    claims[1].release()
    claims[1] = claim_name(cleaned.append, tmp_path)
    assert claims[1].name == f"lab{os.getpid()}-1"
    assert cleaned == []
    for claim in claims:
        claim.release()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_owner_left_is_cleaned_and_what_a_living_one_has_is_not(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from multiring.bench.lab.registry import claim_name\n"
        "claim = claim_name(print, Path(sys.argv[1])); print(claim.name, flush=True); time.sleep(600)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout
        name = owner.stdout.readline().strip()
        assert name == f"lab{owner.pid}"
        cleaned: list[str] = []
        first = claim_name(cleaned.append, tmp_path)
        assert cleaned == []
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        second = claim_name(cleaned.append, tmp_path)
        assert cleaned == [name]
        assert {path.name for path in tmp_path.iterdir()} == {first.name, second.name}
        for claim in (first, second):
            claim.release()
    finally:
        owner.kill()
        owner.communicate()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match=r"lab: got (Not a directory|File exists) for .*file, wanted to write there"):
        claim_name(print, tmp_path / "file")
