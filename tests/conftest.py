"""What all tests share: Hypothesis profiles, and which rungs this machine has."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "ci", max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("deep", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
# What somebody has measured on this machine must not choose for the tests; their ranks inherit this.
os.environ["MULTIRING_TUNING"] = "off"
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def _missing(module: str) -> str | None:
    return None if importlib.util.find_spec(module) else f"{module} is not installed"


def _why_no_gpu() -> str | None:
    return None if os.path.exists("/dev/nvidiactl") else "no GPU: /dev/nvidiactl does not exist"  # noqa: PTH110


def _why_no_lab() -> str | None:
    from multiring.bench.lab.tools import why_no_lab
    from multiring.bench.mpiexec import find_mpiexec
    from multiring.errors import LaunchError

    if reason := why_no_lab() or _missing("mpi4py"):
        return reason
    # Root of a container may lack what it takes.
    tried = subprocess.run(["unshare", "--net", "--uts", "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"no namespaces can be made here: {tried.stderr.strip()}"
    try:
        mpiexec = find_mpiexec(os.environ)
    except LaunchError as error:
        return str(error)
    return None if mpiexec.kind == "mpich" else "needs MPICH's mpiexec, this environment has Open MPI's"


RUNGS = {
    "mpi": lambda: _missing("mpi4py"),
    "sim": lambda: _missing("numba_cuda"),
    "ptx": lambda: _missing("numba_cuda"),
    "lab": _why_no_lab,
    "gpu": _why_no_gpu,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the rungs that this machine lacks, each with its reason."""
    reasons: dict[str, str | None] = {}
    for item in items:
        for rung, why in RUNGS.items():
            if item.get_closest_marker(rung):
                if rung not in reasons:
                    reasons[rung] = why()
                if reasons[rung]:
                    item.add_marker(pytest.mark.skip(reason=f"{rung}: {reasons[rung]}"))


@pytest.fixture
def mpi_run(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a Python program on ranks under the mpiexec of this environment.

    ``mpi_run(n_ranks, code, *arguments, leave_survivors=False, timeout_s=120, environ={})`` returns the finished
    process with its text output; the ranks' lines come in any order.
    """
    from multiring.bench.mpiexec import find_mpiexec

    def run(
        n_ranks: int,
        code: str,
        *arguments: str,
        leave_survivors: bool = False,
        timeout_s: float = 120,
        environ: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        program = tmp_path / "program.py"
        program.write_text(code)
        mpiexec = find_mpiexec(os.environ)
        return subprocess.run(
            mpiexec.command(n_ranks, [sys.executable, str(program), *arguments], leave_survivors),
            env=mpiexec.environment(os.environ) | (environ or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    return run
