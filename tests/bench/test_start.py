"""Starting ranks: exit codes, no orphans, and the words that each MPI needs."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from multiring.bench import start
from multiring.errors import ArgumentError

pytestmark = pytest.mark.shm


def command(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_each_rank_learns_its_place(tmp_path: Path) -> None:
    names = "'MULTIRING_' + n for n in ('RANK', 'SIZE', 'LOCAL_RANK', 'LOCAL_SIZE', 'JOB')"
    code = (
        f"import os, pathlib; v = [os.environ[n] for n in ({names})]; "
        f"pathlib.Path({str(tmp_path)!r}, v[0]).write_text(' '.join(v))"
    )
    assert start.start_local(3, command(code)) == 0
    said = [(tmp_path / str(rank)).read_text().split() for rank in range(3)]
    assert [words[:4] for words in said] == [[str(rank), "3", str(rank), "3"] for rank in range(3)]
    assert len({words[4] for words in said}) == 1
    assert len(said[0][4]) == 32


@pytest.mark.parametrize(("code", "result"), [(0, 0), (1, 1), (2, 2), (7, 1)])
def test_the_exit_code_is_that_of_a_failing_rank(code: int, result: int) -> None:
    failing = f"import os, sys; sys.exit({code} if os.environ['MULTIRING_RANK'] == '1' else 0)"
    assert start.start_local(2, command(failing)) == result


def test_a_failing_rank_ends_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(start, "_GRACE_S", 0.2)
    code = (
        "import os, pathlib, signal, time\n"
        f"here = pathlib.Path({str(tmp_path)!r})\n"
        "if os.environ['MULTIRING_RANK'] == '0':\n"
        "    (here / 'pid').write_text(str(os.getpid()))\n"
        "    time.sleep(600)\n"
        "while not (here / 'pid').exists() or not (here / 'pid').read_text():\n"
        "    time.sleep(0.01)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    begun = time.monotonic()
    assert start.start_local(2, command(code)) == 1
    assert time.monotonic() - begun < 60
    assert "rank 1 was ended by SIGKILL" in capsys.readouterr().err
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_openmpi_is_told_not_to_bind_and_to_take_root() -> None:
    words, variables = start.mpi_command("/x/mpiexec", "openmpi", 4, ["python"], {"A": "1"}, as_root=True)
    assert words == ["/x/mpiexec", "-n", "4", "--bind-to", "none", "python"]
    assert variables == {
        "A": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMPI_MCA_btl": "self,sm",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    chosen = {"OMPI_MCA_btl": "self,tcp"}
    assert start.mpi_command("m", "openmpi", 4, [], chosen, as_root=False)[1]["OMPI_MCA_btl"] == "self,tcp"


def test_mpich_needs_nothing() -> None:
    assert start.mpi_command("m", "mpich", 2, ["python"], {}, as_root=True) == (["m", "-n", "2", "python"], {})


@pytest.mark.parametrize(
    ("told", "kind"),
    [("mpiexec (Open MPI) 5.0.10", "openmpi"), ("prterun (PRRTE) 3.0", "openmpi"), ("HYDRA build details:", "mpich")],
)
def test_the_mpiexec_beside_python_is_asked_whose_it_is(tmp_path: Path, told: str, kind: str) -> None:
    script = tmp_path / "mpiexec"
    script.write_text(f"#!/bin/sh\necho '{told}'\n")
    script.chmod(0o755)
    assert start.find_mpiexec(str(tmp_path / "python")) == (str(script), kind)


def test_no_mpiexec_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ArgumentError, match="found no mpiexec beside this Python nor in PATH; install MPI and mpi4py"):
        start.find_mpiexec(str(tmp_path / "python"))
