"""Which mpiexec is taken, and the words it gets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from multiring.bench.mpiexec import Mpiexec, find_mpiexec
from multiring.errors import LaunchError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python environment without an mpiexec of its own."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "environment" / "bin" / "python"))
    (tmp_path / "environment" / "bin").mkdir(parents=True)
    (tmp_path / "path").mkdir()
    return tmp_path


def write(program: Path, says: str) -> str:
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(
    ("says", "kind", "flag"),
    [
        ("HYDRA build details:\n    Version:    5.0.2", "mpich", "-disable-auto-cleanup"),
        ("mpiexec (Open MPI) 5.0.11", "openmpi", "--enable-recovery"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.13", "mpich", "-disable-auto-cleanup"),
    ],
)
def test_the_one_beside_this_python_comes_first(folder: Path, says: str, kind: str, flag: str) -> None:
    write(folder / "path" / "mpiexec", "something else")
    beside = write(folder / "environment" / "bin" / "mpiexec", says)
    found = find_mpiexec({"PATH": str(folder / "path")})
    assert (found.path, found.kind, found.survivors_flag) == (beside, kind, flag)


def test_else_the_first_on_path(folder: Path) -> None:
    path = write(folder / "path" / "mpiexec", "mpiexec (Open MPI) 4.1.6")
    assert find_mpiexec({"PATH": str(folder / "path")}) == Mpiexec(path, "openmpi", "mpiexec (Open MPI) 4.1.6")


def test_none_is_refused_with_what_to_install(folder: Path) -> None:
    with pytest.raises(LaunchError, match=r"mpiexec: got none beside .* nor on PATH.*pip install 'multiring\[mpi\]'"):
        find_mpiexec({"PATH": str(folder / "path")})


def test_one_of_neither_mpi_is_refused(folder: Path) -> None:
    write(folder / "path" / "mpiexec", "my own")
    with pytest.raises(LaunchError, match=r"which says \['my own'\] of itself, wanted that of MPICH or Open MPI"):
        find_mpiexec({"PATH": str(folder / "path")})


def test_words_and_environment() -> None:
    mpich, openmpi = Mpiexec("/m", "mpich", ""), Mpiexec("/o", "openmpi", "")
    assert mpich.command(2, ["prog", "-x"]) == ["/m", "-n", "2", "prog", "-x"]
    words = mpich.command(2, ["prog"], leave_survivors=True)
    assert (words[:4], words[-1]) == (["/m", "-n", "2", "-disable-auto-cleanup"], "prog")
    shell = words[4:]
    assert subprocess.run([*shell[:-1], "true"], check=False).returncode == 0
    killed = subprocess.run([*shell[:-1], "sh", "-c", "kill -9 $$"], check=False, capture_output=True)
    assert killed.returncode == 128 + 9, "a program that is killed must not look so to mpiexec"
    assert openmpi.command(3, ["prog"], leave_survivors=True) == [
        "/o", "-n", "3", "--oversubscribe", "--enable-recovery", "prog",
    ]  # fmt: skip
    assert mpich.environment({"A": "1"}) == {"A": "1"}
    assert openmpi.environment({"OMPI_MCA_btl": "tcp,self"})["OMPI_MCA_btl"] == "tcp,self"
    assert openmpi.environment({})["OMPI_MCA_btl"] == "self,sm"
