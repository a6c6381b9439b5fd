"""The file of measured rates: rank 0's counts for all ranks, and its prices choose and explain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multiring.collectives.executor import Executor
from multiring.collectives.request import Request
from multiring.kernels.dtypes import DTYPES
from multiring.kernels.operations import OPERATIONS
from multiring.topology.measured import Estimate, HostRates, Measured
from multiring.topology.tuning_file import to_json, write
from tests.support.ranks import results, run_ranks

pytestmark = pytest.mark.shm

STEP_US = {0: 1e6, 1: 0.0}
"""By rank: with rank 0's table a step costs a second, with rank 1's nothing does."""


def body(folder: str, rank: int, exchange: Any) -> tuple[str, float | None, float | None, bool]:
    import os

    os.environ["MULTIRING_TUNING"] = str(Path(folder) / f"{rank}.json")
    executor = Executor(rank, 2, exchange)
    request = Request("all_reduce", DTYPES["float32"], OPERATIONS["sum"])
    x = np.full(1 << 16, rank + 1.0, np.float32)
    executor.prepare(request, x.size).run(x.ctypes.data, x.ctypes.data)
    plan, ordinary = executor.explain(request, x.size), executor.explain(request, x.size, symmetric=False)
    executor.close()
    return plan.algorithm, plan.predicted_us, ordinary.predicted_us, bool((x == 3.0).all())


def test_rank_0_decides_for_all(tmp_path: Path) -> None:
    for rank, step_us in STEP_US.items():
        values = {"step": step_us, "call.symmetric": 1.0, "call.ordinary": 4.0}
        estimates = {name: Estimate(value, value, value) for name, value in values.items()}
        measured = Measured((HostRates(2, 2, estimates),))
        write(to_json(measured, version="0", date="", host=""), tmp_path / f"{rank}.json")

    def ranks_body(rank: int, exchange: Any) -> Any:
        return body(str(tmp_path), rank, exchange)

    for algorithm, predicted_us, ordinary_us, right in results(run_ranks(2, ranks_body)):
        assert right
        # One step in symmetric memory; of all algorithms only those with one step through slots stay at one.
        assert algorithm in ("one_shot", "recursive_doubling")
        assert predicted_us == pytest.approx(1e6 + 1.0)
        assert ordinary_us == pytest.approx(1e6 + 4.0)


def test_without_a_file_the_choice_is_the_rule(tmp_path: Path) -> None:
    def ranks_body(rank: int, exchange: Any) -> Any:
        return body(str(tmp_path), rank, exchange)

    for algorithm, predicted_us, _, right in results(run_ranks(2, ranks_body)):
        assert (algorithm, right) == ("direct", True)
        assert predicted_us is not None
