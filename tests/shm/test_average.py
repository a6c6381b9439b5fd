"""avg divides after adding wide: a mean of float16 that fits is right, whatever the algorithm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multiring.collectives.schedules.algorithms import algorithms_for
from tests.shm.helpers import join
from tests.support.ranks import results, run_ranks

pytestmark = pytest.mark.shm


def body(rank: int, exchange: Any, size: int, count: int) -> dict[str, bool]:
    comm = join(rank, exchange, size)
    right = {}
    for algorithm in algorithms_for("all_reduce"):
        x = np.full(count, 60_000.0, np.float16)
        comm.all_reduce(x, op="avg", algorithm=algorithm)
        right[algorithm] = bool((x == np.float16(60_000.0)).all())
    # What is explained is what runs: 2 (p - 1) / p of 8 float32 are 48 bytes, not the array's float16.
    text = comm.explain("all_reduce", count=8, dtype="float16", op="avg", algorithm="ring")
    right["explained"] = "float32 on the way" in text and "a rank sends 48 bytes" in text
    comm.close()
    return right


@pytest.mark.parametrize("count", [5, 20_000])
def test_a_mean_of_float16_that_fits_does_not_overflow_on_the_way(count: int) -> None:
    for right in results(run_ranks(4, body, 4, count)):
        assert all(right.values()), [name for name, fine in right.items() if not fine]
