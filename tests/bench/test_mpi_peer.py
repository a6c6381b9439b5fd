"""The MPI peer, for real: every collective, type and operation gives the exact result under mpiexec."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from multiring.bench.cases import COLLECTIVES
from multiring.bench.mpiexec import find_mpiexec
from multiring.bench.start import mpi_command

pytestmark = pytest.mark.mpi


def sweep(n_ranks: int, *arguments: str) -> Any:
    program = [sys.executable, str(Path(__file__).with_name("mpi_sweep.py")), *arguments]
    mpiexec = find_mpiexec(os.environ)
    command, environment = mpi_command(mpiexec, n_ranks, program), mpiexec.environment(os.environ)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("collective", sorted(COLLECTIVES))
def test_every_type_and_operation_is_exact(collective: str) -> None:
    report = sweep(3, collective, "all", "all", "2K", "2")
    kinds = {result["type"] for result in report["results"]}
    assert {"half", "bfloat16", "float", "double", "int8", "uint64"} <= kinds
    for result in report["results"]:
        for name in ("out_of_place", "in_place"):
            half = result[name]
            if half is None:
                assert collective in ("all_to_all", "sendrecv")
                assert name == "in_place"
                continue
            assert half["nwrong"] == 0
            assert half["peers"]["mpi"]["nwrong"] == 0
            assert half["peers"]["mpi"]["ratio"] > 0
            assert half["limit_us"] > 0


def test_the_report_says_how_16_bit_floats_were_reduced() -> None:
    report = sweep(2, "all_reduce", "bfloat16", "sum", "2K", "2")
    how = report["results"][0]["out_of_place"]["peers"]["mpi"]["how"]
    assert how.startswith("Allreduce on ")
    assert "the library's own bfloat16" in how or "float32 between casts from and to bfloat16" in how
