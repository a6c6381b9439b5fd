"""Makes the helpers of these tests importable, as ``tests.shm.stress``, and compiles before the first fork."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)


@pytest.fixture(scope="session", autouse=True)
def _compiled() -> None:
    """Compile or load once, in the process that all ranks are forked from."""
    from tests.shm.stress import warm

    warm()
