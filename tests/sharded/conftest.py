"""Makes the helpers of these tests importable, and runs test bodies on ranks: threads over numpy, or real processes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)

OnRanks = Callable[[int, Callable[[Any], Any]], list[Any]]


@pytest.fixture(scope="session")
def on_ranks() -> OnRanks:
    """``on_ranks(size, body)`` calls ``body(communicator)`` on every rank, a thread each, and returns the results."""
    from tests.collectives.fake_executor import on_ranks

    return on_ranks


@pytest.fixture(scope="session")
def on_processes() -> OnRanks:
    """As ``on_ranks``, each rank a process."""
    from tests.collectives.real_ranks import on_ranks

    return on_ranks
