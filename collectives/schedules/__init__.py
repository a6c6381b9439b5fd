"""Collective algorithms as data. Pure: standard library and numpy."""

from __future__ import annotations

from multiring.collectives.schedules.collective import Collective
from multiring.collectives.schedules.schedule import Op, Schedule, Step, Transfer

__all__ = ["Collective", "Op", "Schedule", "Step", "Transfer"]
