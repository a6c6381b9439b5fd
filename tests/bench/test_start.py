"""Starting ranks: exit codes, and the words that each MPI needs."""

from __future__ import annotations

import sys

import pytest

from multiring.bench import start
from multiring.bench.mpiexec import Mpiexec


@pytest.mark.parametrize(("status", "code"), [(0, 0), (1, 1), (2, 2), (7, 1), (137, 1), (130, 130), (143, 143)])
def test_exit_codes_are_the_commands(status: int, code: int) -> None:
    assert start.exit_code(status) == code


@pytest.mark.shm
@pytest.mark.parametrize(("code", "result"), [(0, 0), (1, 1), (2, 2), (7, 1)])
def test_the_exit_code_is_that_of_a_failing_rank(code: int, result: int, capfd: pytest.CaptureFixture[str]) -> None:
    failing = f"import os, sys; sys.exit({code} if os.environ['MULTIRING_RANK'] == '1' else 0)"
    assert start.start_local(2, [sys.executable, "-c", failing]) == result
    said = capfd.readouterr().err
    assert said == "" if code == 0 else said.startswith("multiring bench: rank 1 (process ")


def test_openmpi_is_told_not_to_bind() -> None:
    words = start.mpi_command(Mpiexec("/x/mpiexec", "openmpi", "5"), 4, ["python", "-m", "it"])
    assert words == ["/x/mpiexec", "--bind-to", "none", "-n", "4", "--oversubscribe", "python", "-m", "it"]


def test_mpich_does_not_bind() -> None:
    assert start.mpi_command(Mpiexec("m", "mpich", "5"), 2, ["python"]) == ["m", "-n", "2", "python"]
