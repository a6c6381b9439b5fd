"""What a check of ``multiring doctor`` finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Finding", "State"]


class State(StrEnum):
    """How a finding is to be read."""

    OK = "ok"
    WARNING = "warning"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes
    ----------
    state : State
        How to read it.
    what, found : str
        What was looked at, and what was there.
    fix : str
        What to do about it; empty where nothing is needed.
    """

    state: State
    what: str
    found: str
    fix: str = ""
