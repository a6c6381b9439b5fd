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


@pytest.fixture(scope="session", params=["threads", pytest.param("processes", marks=pytest.mark.shm)])
def on_ranks(request: pytest.FixtureRequest) -> OnRanks:
    """``on_ranks(size, body)`` calls ``body(communicator)`` on every rank and returns the results."""
    if request.param == "threads":
        from tests.collectives.fake_executor import on_ranks

        return on_ranks
    from tests.collectives.real_ranks import on_ranks

    return on_ranks
