"""Lines for the tests of reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from multiring.bench.cases import make_case
from multiring.bench.rows import Half, PeerFigures, Row
from multiring.kernels.dtypes import DTYPES
from multiring.kernels.operations import OPERATIONS


def make_half(time_us: float = 2.0, n_wrong: int | None = 0, n_ranks: int = 2, limit_us: float | None = 1.0) -> Half:
    case = make_case("all_reduce", n_ranks, 1024, DTYPES["float32"], OPERATIONS["sum"], "sum")
    alg, bus = case.alg_bw_gbs(time_us), case.bus_bw_gbs(time_us)
    peer = PeerFigures(3 * time_us, 0.1, 0.1, 3.0, n_wrong, "Allreduce on float32")
    return Half(time_us, alg, bus, n_wrong, None, limit_us, 1024, {"mpi": peer})


def make_row(out_of_place: Half | None = None, in_place: Half | None = None, n_ranks: int = 2) -> Row:
    case = make_case("all_reduce", n_ranks, 1024, DTYPES["float32"], OPERATIONS["sum"], "sum")
    return Row(case, "direct", out_of_place, in_place, 20)


@pytest.fixture
def half() -> Callable[..., Any]:
    return make_half


@pytest.fixture
def row() -> Callable[..., Any]:
    return make_row
