"""How processes end under MPI: with their own status, and with nothing left behind."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.mpi

Run = Callable[..., subprocess.CompletedProcess[str]]

LEAVE = """
import os, sys
from mpi4py import MPI
os.environ["MULTIRING_HOST_ID"] = sys.argv[1][MPI.COMM_WORLD.rank]
import numpy as np
import multiring as mr
comm = mr.Communicator.from_mpi(MPI.COMM_WORLD, timeout=20)
x = np.ones(4)
comm.all_reduce(x)
how = sys.argv[2]
if how == "first closes" and comm.rank == 0:
    comm.close()
    sys.exit(3)
if how == "one leaves" and comm.rank == comm.size - 1:
    sys.exit(3)
try:
    comm.all_reduce(x)
except mr.CommunicatorClosed as error:
    sys.stdout.write(f"closed on {comm.rank}\\n")
    if how == "uncaught":
        raise
sys.exit("a message" if how == "message" else 3)
"""

SHARDED = """
import os, sys
from mpi4py import MPI
os.environ["MULTIRING_HOST_ID"] = sys.argv[1][MPI.COMM_WORLD.rank]
import numpy as np
import multiring as mr
comm = mr.Communicator.from_mpi(MPI.COMM_WORLD, timeout=20)
weights = [np.ones((5, 3), np.float32), np.full(7, 2, np.float32)]
try:
    optimizer = mr.ShardedOptimizer(comm, weights, mr.optim.SGD(lr=0.5), subgroup="node")
except mr.MismatchError as error:
    sys.stdout.write(f"{comm.rank} {error}\\n")
    sys.exit(0)
assert optimizer.group.size == comm.local_size
optimizer.step([np.full_like(w, comm.rank) for w in weights])
mean = (comm.size - 1) / 2
assert (weights[0] == 1 - 0.5 * mean).all() and (weights[1] == 2 - 0.5 * mean).all(), weights
sys.stdout.write(f"{comm.rank} is done\\n")
"""


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


@pytest.mark.parametrize("layout", ["00", "01", "0011"])
@pytest.mark.parametrize("how", ["first closes", "one leaves", "all"])
def test_a_job_that_fails_ends_with_the_status_of_its_processes(mpi_run: Run, layout: str, how: str) -> None:
    before = shared_memory()
    done = mpi_run(len(layout), LEAVE, layout, how)
    assert done.returncode == 3, (done.returncode, done.stdout, done.stderr[-1000:])
    left = {name for name in shared_memory() - before if name.startswith(("mpich_shm_", "sm_segment"))}
    assert not left


def test_a_message_of_exit_is_status_1(mpi_run: Run) -> None:
    assert mpi_run(2, LEAVE, "01", "message").returncode == 1


@pytest.mark.parametrize("layout", ["0011", "0101"])
def test_state_is_sharded_inside_nodes_wherever_their_ranks_are(mpi_run: Run, layout: str) -> None:
    done = mpi_run(4, SHARDED, layout)
    assert sorted(done.stdout.split("\n")[:-1]) == [f"{rank} is done" for rank in range(4)], done.stderr[-2000:]


def test_nodes_of_unequal_size_are_refused_on_all_ranks(mpi_run: Run) -> None:
    lines = sorted(mpi_run(4, SHARDED, "0001").stdout.split("\n")[:-1])
    assert [line[0] for line in lines] == ["0", "1", "2", "3"]
    assert all("rank 0 has 'ranks_per_group=3', rank 3 has 'ranks_per_group=1'" in line for line in lines)
