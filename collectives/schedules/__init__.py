"""Collective algorithms as data. Pure: standard library and numpy."""

from __future__ import annotations

from multiring.collectives.schedules.algorithms import ALGORITHMS, Algorithm, algorithms_for, build
from multiring.collectives.schedules.algorithms.box import Box
from multiring.collectives.schedules.choose import Choice, choose, parse_algorithms
from multiring.collectives.schedules.collective import COLLECTIVES, Collective
from multiring.collectives.schedules.compose import backwards, merge, on, then
from multiring.collectives.schedules.cost import Cost, StepCost, cost
from multiring.collectives.schedules.ordering import is_rank_ordered, n_roundings, same_on_every_rank
from multiring.collectives.schedules.save import from_json, to_json
from multiring.collectives.schedules.schedule import Op, Schedule, Step, Transfer
from multiring.collectives.schedules.verify import verify
from multiring.collectives.schedules.volume import bytes_sent, chunk_bytes

__all__ = [
    "ALGORITHMS",
    "COLLECTIVES",
    "Algorithm",
    "Box",
    "Choice",
    "Collective",
    "Cost",
    "Op",
    "Schedule",
    "Step",
    "StepCost",
    "Transfer",
    "algorithms_for",
    "backwards",
    "build",
    "bytes_sent",
    "choose",
    "chunk_bytes",
    "cost",
    "from_json",
    "is_rank_ordered",
    "merge",
    "n_roundings",
    "on",
    "parse_algorithms",
    "same_on_every_rank",
    "then",
    "to_json",
    "verify",
]
