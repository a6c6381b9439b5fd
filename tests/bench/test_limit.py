"""The bytes that each receiver must get, by the formulas of the collectives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiring.bench.cases import COLLECTIVES, make_case
from multiring.bench.limit import limit_bytes, limit_copies, region_bytes
from multiring.kernels.dtypes import DTYPES


@pytest.mark.parametrize(
    ("collective", "out_of_place", "in_place"),
    [
        ("all_reduce", 6, 6), ("reduce", 6, 6), ("reduce_scatter", 3, 3), ("broadcast", 4, 4), ("all_gather", 4, 3),
        ("gather", 4, 3), ("scatter", 1, 1), ("all_to_all", 4, 4), ("sendrecv", 4, 4),
    ],
)  # fmt: skip
def test_bytes_of_the_busiest_of_4_receivers(collective: str, out_of_place: int, in_place: int) -> None:
    case = make_case(collective, 4, 4 << 20, DTYPES["float32"], root=2 if COLLECTIVES[collective].rooted else -1)
    assert (limit_bytes(case, False), limit_bytes(case, True)) == (out_of_place << 20, in_place << 20)


@given(st.sampled_from(sorted(COLLECTIVES)), st.integers(1, 6), st.integers(0, 5000), st.booleans())
def test_copies_stay_inside_the_buffers(collective: str, n_ranks: int, nbytes: int, in_place: bool) -> None:
    root = 0 if COLLECTIVES[collective].rooted else -1
    case = make_case(collective, n_ranks, nbytes, DTYPES["int16"], root=root)
    assert region_bytes(case) >= max(case.send_count, case.receive_count) * 2
    for rank in range(n_ranks):
        for copy in limit_copies(case, rank, in_place):
            assert {copy.source_rank, copy.destination_rank} <= set(range(n_ranks))
            source_count = case.receive_count if copy.result else case.send_count
            assert 0 <= copy.source <= copy.source + copy.length <= source_count
            assert 0 <= copy.destination <= copy.destination + copy.length <= case.receive_count


def test_one_rank_copies_only_its_own_part() -> None:
    assert limit_bytes(make_case("all_reduce", 1, 1024, DTYPES["float32"]), False) == 0
    assert limit_bytes(make_case("all_gather", 1, 1024, DTYPES["float32"]), False) == 1024
