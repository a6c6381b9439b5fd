"""Explanations count in English, and say nothing of what a call does not have."""

from __future__ import annotations

import re

import pytest

from multiring.collectives.schedules.choose import choose
from multiring.collectives.schedules.collective import COLLECTIVES, Collective
from multiring.collectives.schedules.draw import number, text
from multiring.collectives.schedules.explanation import explain
from multiring.topology import host_topology

THINGS = "byte|rank|chunk|step"


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
@pytest.mark.parametrize("nbytes", [0, 1, 2, 4096])
@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("priced", [False, True])
def test_one_is_singular_and_the_rest_are_not(name: str, nbytes: int, n_ranks: int, priced: bool) -> None:
    size = 0 if name == "barrier" else nbytes * n_ranks
    choice = choose(Collective(name), n_ranks, size)
    plan = explain(choice, size, host_topology(n_ranks) if priced else None, "int8")
    told = "\n".join(line for line in str(plan).splitlines() if not line.startswith("  not "))  # those have formulas
    for said in (told, text(choice.schedule)):
        assert not re.findall(rf"(?<![\d.])1 (?:{THINGS})s\b", said), said
        assert not re.findall(rf"(?<!\d)(?:0|[2-9]|\d\d+) (?:{THINGS})\b", said), said


def test_a_barrier_has_no_element_type() -> None:
    for dtype in ("float32", "int8"):
        said = str(explain(choose(Collective("barrier"), 4, 0), 0, host_topology(4), dtype))
        assert said.splitlines()[0].startswith("barrier, 4 ranks on host: ")
        assert dtype not in said


def test_the_smallest_plan_word_for_word() -> None:
    said = str(explain(choose(Collective("all_reduce"), 1, 1), 1, None, "int8")).splitlines()
    assert said[0] == "all_reduce of 1 byte of int8, 1 rank: one_shot, 0 steps"
    assert said[1] == "  because 1 byte is at most 8192: a step costs more than the bytes"
    assert "  1 chunk; a rank sends 0 bytes at most" in said


@pytest.mark.parametrize(("n", "wanted"), [(0, "0 steps"), (1, "1 step"), (2, "2 steps"), (11, "11 steps")])
def test_number(n: int, wanted: str) -> None:
    assert number(n, "step") == wanted
