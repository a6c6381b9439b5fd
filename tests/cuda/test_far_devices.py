"""GPUs of several nodes, under mpiexec: what leaves a node goes through pinned host memory, with the host's results."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.mpi, pytest.mark.sim]

ROOT = Path(__file__).parents[2]
PROGRAM = "import sys\nfrom tests.cuda.far_ranks import main\nmain(sys.argv[1])\n"


@pytest.mark.parametrize("layout", ["001", "0110"])
def test_equals_the_host(mpi_run: Callable[..., subprocess.CompletedProcess[str]], layout: str) -> None:
    path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH")) if p)
    environ = {"NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": path}
    done = mpi_run(len(layout), PROGRAM, layout, environ=environ)
    assert done.returncode == 0, done.stderr[-4000:]
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} is done" for rank in range(len(layout))]
