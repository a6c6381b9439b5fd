"""Virtual nodes under mpiexec: real processes, real messages."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.mpi

Run = Callable[..., subprocess.CompletedProcess[str]]
PROGRAM = (Path(__file__).parent / "between_nodes.py").read_text()
DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"


def check(done: subprocess.CompletedProcess[str], n_ranks: int) -> None:
    assert done.returncode == 0, done.stderr[-4000:]
    assert sorted(done.stdout.split("\n")[:-1]) == [f"rank {rank} is done" for rank in range(n_ranks)]


@pytest.mark.parametrize("layout", ["0011", "0101", "0001", "0123", "01"])
def test_every_collective_on_a_layout(mpi_run: Run, layout: str) -> None:
    n_ranks = len(layout)
    check(mpi_run(n_ranks, PROGRAM, "7", "1", "400" if DEEP else "40", layout), n_ranks)


@pytest.mark.parametrize("layout", ["000111", "001122"])
def test_six_ranks_on_a_layout(mpi_run: Run, layout: str) -> None:
    check(mpi_run(6, PROGRAM, "8", "1", "200" if DEEP else "16", layout), 6)


@pytest.mark.parametrize("n_ranks", [3, 4])
def test_communicators_of_many_layouts(mpi_run: Run, n_ranks: int) -> None:
    check(mpi_run(n_ranks, PROGRAM, str(n_ranks), "100" if DEEP else "8", "12"), n_ranks)
