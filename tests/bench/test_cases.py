"""Sizes, counts and bandwidths of nccl-tests."""

from __future__ import annotations

import numpy as np
import pytest

from multiring.bench.cases import COLLECTIVES, bus_factor, collective_of, make_case
from multiring.errors import ArgumentError
from multiring.kernels.dtypes import DTYPES

FLOAT = DTYPES["float32"]


@pytest.mark.parametrize(
    ("collective", "bus_bw_gbs"),
    [
        ("all_reduce", 150), ("reduce_scatter", 75), ("all_gather", 75), ("all_to_all", 75), ("gather", 75),
        ("scatter", 75), ("broadcast", 100), ("reduce", 100), ("sendrecv", 100),
    ],
)  # fmt: skip
def test_b119_bandwidths_are_those_of_nccl_tests(collective: str, bus_bw_gbs: float) -> None:
    case = make_case(collective, 4, 10**9, FLOAT)
    assert case.size_bytes == 10**9
    assert case.alg_bw_gbs(10_000.0) == pytest.approx(100)
    assert case.bus_bw_gbs(10_000.0) == pytest.approx(bus_bw_gbs)


def test_b119_nothing_crosses_with_one_rank() -> None:
    assert bus_factor("all_reduce", 1) == bus_factor("all_gather", 1) == 0


def test_b120_one_rank_has_no_bus_bandwidth() -> None:
    for collective in COLLECTIVES:
        case = make_case(collective, 1, 1024, FLOAT)
        assert case.bus_bw_gbs(1.0) is None
        assert case.alg_bw_gbs(1.0) == pytest.approx(1.024)


@pytest.mark.parametrize(
    ("collective", "count", "send", "receive"),
    [
        ("all_reduce", 30, 30, 30), ("reduce", 30, 30, 30), ("broadcast", 30, 30, 30), ("sendrecv", 30, 30, 30),
        ("reduce_scatter", 10, 30, 10), ("all_gather", 10, 10, 30), ("all_to_all", 10, 30, 30), ("gather", 10, 10, 30),
        ("scatter", 10, 30, 10),
    ],
)  # fmt: skip
def test_size_is_the_total_and_count_is_for_each_rank(collective: str, count: int, send: int, receive: int) -> None:
    case = make_case(collective, 3, 123, FLOAT)
    assert (case.count, case.send_count, case.receive_count) == (count, send, receive)
    assert case.size_bytes == 120


def test_in_place_positions_are_nccls() -> None:
    big, small = np.arange(6), np.arange(2)
    where: dict[str, tuple[tuple[int, ...], tuple[int, ...]] | None] = {}
    for collective, shape in COLLECTIVES.items():
        case = make_case(collective, 3, 24, FLOAT)
        send = big if shape.send_parts or not shape.receive_parts else small
        receive = big if shape.receive_parts else small
        split = case.split(1, send, receive)
        where[collective] = None if split is None else (tuple(split[0].tolist()), tuple(split[1].tolist()))
    whole, own = (0, 1, 2, 3, 4, 5), (2, 3)
    assert where == {
        "all_reduce": (whole, whole), "reduce": (whole, whole), "broadcast": (whole, whole),
        "reduce_scatter": (whole, own), "scatter": (whole, own), "all_gather": (own, whole), "gather": (own, whole),
        "all_to_all": None, "sendrecv": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("alltoall", "all_to_all"),
        ("all_reduce", "all_reduce"),
        ("all_reduce_perf", "all_reduce"),
        ("SendRecv", "sendrecv"),
    ],
)
def test_other_spellings(name: str, ours: str) -> None:
    assert collective_of(name) == ours


def test_an_unknown_collective_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"collective: got 'hypercube', wanted one of all_reduce, "):
        collective_of("hypercube")
