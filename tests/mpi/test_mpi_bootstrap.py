"""Meeting through MPI, under the mpiexec of this environment."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.mpi

Run = Callable[..., subprocess.CompletedProcess[str]]

MEET = """
import os, sys
from multiring.collectives.bootstrap import connect
met = connect(os.environ, 60)
for call in range(3):
    # Rank 1 gives nothing, the others differ in length and hold every byte value.
    parts = met.all_gather(bytes(range(256)) * met.rank if met.rank != 1 else b"")
    assert parts == [bytes(range(256)) * rank if rank != 1 else b"" for rank in range(met.size)], parts
    met.barrier()
met.close()
met.close()
sys.stdout.write(f"rank {met.rank} of {met.size}\\n")
"""

LATE = """
import os, sys, time
from multiring.collectives.bootstrap import connect
from multiring.errors import LaunchError
met = connect(os.environ, 1.0)
met.barrier()
if met.rank == 2:
    time.sleep(5)
    os._exit(0)
try:
    met.all_gather(b"x")
except LaunchError as error:
    sys.stdout.write(f"{error}\\n")
    sys.stdout.flush()
time.sleep(5)
os._exit(0)
"""


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_ranks_exchange_bytes_of_any_length(mpi_run: Run, n_ranks: int) -> None:
    done = mpi_run(n_ranks, MEET)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")[:-1]) == [f"rank {rank} of {n_ranks}" for rank in range(n_ranks)]


def test_a_rank_that_does_not_come_is_named(mpi_run: Run) -> None:
    done = mpi_run(3, LATE)
    for rank in (0, 1):
        assert f"rank {rank} of 3: rank(s) 2 did not come within 1 s; see what they print" in done.stdout
