"""What all tests share: Hypothesis profiles, and which rungs this machine has."""

from __future__ import annotations

import importlib.util
import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "ci", max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("deep", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def _missing(module: str) -> str | None:
    return None if importlib.util.find_spec(module) else f"{module} is not installed"


def _why_no_gpu() -> str | None:
    return None if os.path.exists("/dev/nvidiactl") else "no GPU: /dev/nvidiactl does not exist"  # noqa: PTH110


def _why_no_lab() -> str | None:
    return None if os.geteuid() == 0 else "needs root, for network namespaces"


RUNGS = {
    "mpi": lambda: _missing("mpi4py"),
    "sim": lambda: _missing("numba_cuda"),
    "ptx": lambda: _missing("numba_cuda"),
    "lab": _why_no_lab,
    "gpu": _why_no_gpu,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the rungs that this machine lacks, each with its reason."""
    reasons = {rung: why() for rung, why in RUNGS.items()}
    for item in items:
        for rung, reason in reasons.items():
            if reason and item.get_closest_marker(rung):
                item.add_marker(pytest.mark.skip(reason=f"{rung}: {reason}"))
