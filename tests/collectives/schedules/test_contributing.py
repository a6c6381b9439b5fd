"""CONTRIBUTING's example of a new algorithm works as it stands."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from multiring.collectives.schedules import (
    ALGORITHMS,
    Algorithm,
    Collective,
    Schedule,
    build,
    bytes_sent,
    choose,
    verify,
)
from multiring.collectives.schedules.explanation import explain
from multiring.topology import load

PAGE = Path(__file__).resolve().parents[3] / "CONTRIBUTING.md"


def test_the_example_is_an_algorithm(
    monkeypatch: pytest.MonkeyPatch, execute: Callable[[Schedule, int, int], None]
) -> None:
    blocks = re.findall(r"```python\n(.*?)   ```", PAGE.read_text(), re.DOTALL)
    builder, line = map(textwrap.dedent, blocks)
    picture = [row for row in builder.splitlines() if row.startswith("#")]
    assert 0 < len(picture) <= 12
    names: dict[str, Any] = {"Algorithm": Algorithm}
    exec(compile(builder, "star.py", "exec"), names)
    (algorithm,) = eval(line, names)
    monkeypatch.setitem(ALGORITHMS, algorithm.name, algorithm)
    for n_ranks in (1, 2, 5, 8):
        schedule = build("star", "all_reduce", n_ranks)
        verify(schedule)
        execute(schedule, 11, n_ranks)
        assert schedule.n_steps == (2 if n_ranks > 1 else 0)
        assert bytes_sent(schedule, 100)[0] == 100 * (n_ranks - 1)
    choice = choose(Collective("all_reduce"), 8, 1024, topology=load("dgx-a100"), algorithm="star")
    plan = explain(choice, 1024, load("dgx-a100"))
    assert plan.predicted_us is not None
    assert "star, 2 steps" in str(plan)
