"""multiring: collective communication as schedules that are verified, priced, explained and executed."""

from __future__ import annotations

from multiring.errors import MultiringError

__all__ = ["MultiringError"]
__version__ = "0.1.0"
