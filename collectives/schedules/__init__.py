"""Collective algorithms as data. Pure: standard library and numpy."""

from __future__ import annotations

from multiring.collectives.schedules.algorithms import ALGORITHMS, Algorithm, algorithms_for, build
from multiring.collectives.schedules.choose import Choice, choose, parse_algorithms
from multiring.collectives.schedules.collective import COLLECTIVES, Collective
from multiring.collectives.schedules.compose import merge, on, then
from multiring.collectives.schedules.ordering import is_rank_ordered, n_roundings
from multiring.collectives.schedules.schedule import Op, Schedule, Step, Transfer
from multiring.collectives.schedules.verify import verify

__all__ = [
    "ALGORITHMS",
    "COLLECTIVES",
    "Algorithm",
    "Choice",
    "Collective",
    "Op",
    "Schedule",
    "Step",
    "Transfer",
    "algorithms_for",
    "build",
    "choose",
    "is_rank_ordered",
    "merge",
    "n_roundings",
    "on",
    "parse_algorithms",
    "then",
    "verify",
]
