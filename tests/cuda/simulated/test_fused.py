"""The fused driver on simulated GPUs, several real processes: the same bits as the host's driver."""

from __future__ import annotations

from functools import cache

import pytest

from tests.cuda.device_ranks import run_cases
from tests.cuda.driver_cases import Case, some
from tests.support.ranks import results, run_ranks

pytestmark = pytest.mark.sim

SIZES = (2, 3)


def chosen(size: int) -> dict[str, Case]:
    """Return some cases: the kernels are tried by themselves elsewhere."""
    return some(size, {2: 5, 3: 2}[size])


@cache
def failures(size: int) -> list[dict[str, str]]:
    """Run all cases once: joining costs more than a call."""
    outcomes = run_ranks(size, run_cases, size, "fused", chosen(size), timeout_s=240.0)
    answers: list[dict[str, str]] = results(outcomes)
    return answers


@pytest.mark.parametrize(("size", "name"), [(size, name) for size in SIZES for name in chosen(size)])
def test_equals_the_host(size: int, name: str) -> None:
    found = [f"rank {rank}: {failed[name]}" for rank, failed in enumerate(failures(size)) if name in failed]
    assert not found, "\n".join(found)
