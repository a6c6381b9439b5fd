"""``MULTIRING_TOPOLOGY``: plans of another machine, executed on this one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multiring.collectives.executor import Executor
from multiring.collectives.request import Request
from multiring.errors import TopologyError
from multiring.kernels.dtypes import DTYPES
from multiring.kernels.operations import OPERATIONS
from tests.support.ranks import results, run_ranks

pytestmark = pytest.mark.shm


def body(rank: int, exchange: Any) -> tuple[str, str, bool]:
    executor = Executor(rank, 4, exchange)
    request = Request("all_reduce", DTYPES["float32"], OPERATIONS["sum"])
    x = np.full(1 << 16, rank + 1.0, np.float32)
    executor.prepare(request, x.size).run(x.ctypes.data, x.ctypes.data)
    text = executor.describe(request, x.size)
    name = executor.topology.name
    executor.close()
    return name, text, bool((x == 10.0).all())


def test_the_prices_of_an_injected_machine_choose_and_its_plan_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIRING_TOPOLOGY", "pcie-4")
    for name, text, right in results(run_ranks(4, body)):
        assert "pcie-4" in name
        assert "pcie-4" in text
        assert right


def test_an_injected_machine_of_another_size_is_refused_by_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIRING_TOPOLOGY", "dgx-a100")
    for outcome in run_ranks(4, body):
        assert outcome.error is not None
        assert "MULTIRING_TOPOLOGY=dgx-a100: got 8 ranks on 1 nodes, wanted this job's 4" in outcome.error
        assert TopologyError.__name__ in outcome.error
