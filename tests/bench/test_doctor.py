"""`multiring doctor`: a line for each thing, a fix for each that is missing, status 1 only for what every run needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click.testing
import pytest

from multiring.bench import checks
from multiring.bench.checks import Finding, State
from multiring.bench.doctor import doctor
from multiring.bench.gpu_checks import peer_findings


def lines(*findings: Finding, monkeypatch: pytest.MonkeyPatch) -> click.testing.Result:
    monkeypatch.setattr("multiring.bench.doctor.CHECKS", [lambda: list(findings)])
    return click.testing.CliRunner().invoke(doctor)


def test_it_looks_at_everything_that_a_run_needs() -> None:
    done = subprocess.run([sys.executable, "-m", "multiring", "doctor"], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    seen = {line[9:].partition(":")[0] for line in done.stdout.splitlines() if not line.startswith(" ")}
    assert seen >= {
        "python", "packages", "kernel cache", "launcher", "MPI", "shared memory", "pidfd", "futex", "ptrace scope",
        "memory", "/dev/shm", "cores", "clock", "GPU",
    }  # fmt: skip
    assert done.returncode == ("\nbroken " in done.stdout)


def test_a_warning_is_no_failure_and_says_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    result = lines(Finding(State.WARNING, "cores", "1 of 1", "get more"), monkeypatch=monkeypatch)
    assert (result.exit_code, result.output) == (0, "warning  cores: 1 of 1\n         fix: get more\n")


def test_what_is_broken_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Finding(State.BROKEN, "pidfd", "no", "yes"), Finding(State.OK, "clock", "tsc")]
    result = lines(*found, monkeypatch=monkeypatch)
    assert (result.exit_code, result.output) == (1, "broken   pidfd: no\n         fix: yes\nok       clock: tsc\n")


def test_a_missing_package_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "REQUIRED", ("numpy", "no-such-package"))
    (found,) = [finding for finding in checks.python() if finding.what == "packages"]
    assert found == Finding(State.BROKEN, "packages", "missing: no-such-package", "pip install no-such-package")


def test_a_cache_that_cannot_be_written_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MULTIRING_CACHE_DIR", str(tmp_path / "file" / "cache"))
    (found,) = checks.cache()
    assert found.state is State.WARNING
    assert "MULTIRING_CACHE_DIR" in found.fix


def test_no_mpi_is_a_warning_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_version", lambda _: "")
    (found,) = checks.mpi()
    assert (found.state, found.found) == (State.WARNING, "mpi4py is not installed")
    assert "multiring[mpi]" in found.fix


def test_a_strange_launcher_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("PMI", "OMPI", "SLURM", "TORCH", "MULTIRING")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    (found,) = checks.launcher()
    assert found.state is State.BROKEN
    assert "RANK" in found.found


def test_kernels_without_memfd_or_pidfd_are_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refused)
    monkeypatch.setattr(os, "pidfd_open", refused)
    for found in (checks.shared_memory()[0], checks.kernel_calls()[0]):
        assert found.state is State.BROKEN
        assert "Operation not permitted" in found.found
        assert found.fix


def test_little_memory_is_a_warning_that_names_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_control_group_room", lambda: 1 << 20)
    found = checks.memory()[0]
    assert found.state is State.WARNING
    assert "MULTIRING_HEAP_BYTES" in found.fix


@pytest.mark.parametrize(
    ("answer", "state", "text"),
    [
        ("1 []", State.OK, "1 GPU: nothing to reach"),
        ("4 []", State.OK, "each of 4 GPUs reaches every other"),
        ("3 [(0, 2), (1, 2)]", State.WARNING, "GPUs (0, 2), (1, 2) do not reach each other: what they exchange goes"),
    ],
)
def test_peer_access_between_gpus(answer: str, state: State, text: str) -> None:
    (found,) = peer_findings(answer + "\n")
    assert found.state is state
    assert text in found.found
    assert bool(found.fix) == (state is State.WARNING)
