"""How the ranks of a job find each other before they share any memory: bytes only."""

from __future__ import annotations

from multiring.collectives.bootstrap.bootstrap import Bootstrap, connect
from multiring.collectives.bootstrap.detect import Launcher, detect

__all__ = ["Bootstrap", "Launcher", "connect", "detect"]
