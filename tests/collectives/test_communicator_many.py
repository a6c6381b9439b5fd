"""Chunk packing: many small arrays in one collective."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from multiring.collectives.communicator.buckets import ALONE_BYTES, BUCKET_BYTES, pack
from multiring.kernels.dtypes import DTYPES
from tests.collectives import fake_executor
from tests.collectives.cases import BFLOAT16, LAYOUTS, same, values
from tests.collectives.conftest import OnRanks


@given(st.lists(st.tuples(st.sampled_from(["float32", "int8", "bfloat16"]), st.integers(0, 1 << 19)), max_size=60))
def test_buckets_hold_every_array_once(layout: list[tuple[str, int]]) -> None:
    typed = [(DTYPES[name], count) for name, count in layout]
    buckets = pack(typed)
    assert sorted(i for b in buckets for i in b.members) == list(range(len(typed)))
    for bucket in buckets:
        assert {typed[i][0] for i in bucket.members} == {bucket.dtype}
        end = 0
        for member, start in zip(bucket.members, bucket.starts, strict=True):
            assert start == end
            end += typed[member][1]
        assert end == bucket.count
        assert len(bucket.members) == 1 or bucket.count * bucket.dtype.itemsize <= BUCKET_BYTES
        assert (
            all(typed[i][1] * bucket.dtype.itemsize < ALONE_BYTES for i in bucket.members) or len(bucket.members) == 1
        )
    assert [b.members[0] for b in buckets] == sorted(b.members[0] for b in buckets)
    small = [i for i, (d, n) in enumerate(typed) if n * d.itemsize < ALONE_BYTES]
    if sum(typed[i][1] * typed[i][0].itemsize for i in small) <= BUCKET_BYTES:
        assert sum(1 for b in buckets if b.members[0] in small) == len({typed[i][0] for i in small})


def test_many_small_arrays_are_one_collective_for_each_dtype() -> None:
    def body(comm: Any) -> None:
        executor = comm._engine.executor
        arrays = [np.ones(n, dtype) for n in range(1, 30) for dtype in (np.float32, np.int64)]
        comm.all_reduce_many(arrays)  # the first time the ranks compare their lists too
        executor.calls.clear()
        comm.all_reduce_many(arrays)
        assert executor.calls == ["all_reduce", "all_reduce"]
        for x in arrays:
            same(x, np.full_like(x, 4))
        assert comm._buckets.buffer(DTYPES["float32"], 10).address % 64 == 0

    fake_executor.on_ranks(2, body)


def test_b55_results_are_those_of_each_array_alone(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> None:
        generator = np.random.default_rng(comm.rank)
        x = generator.standard_normal(1000).astype(np.float32)
        alone = comm.all_reduce(x.copy(), order="rank")
        for offset in (0, 1, 7, 4096):
            packed = x.copy()
            comm.all_reduce_many([np.ones(offset, np.float32), packed], order="rank")
            same(packed, alone)

    on_ranks(3, body)


def test_layouts_sizes_and_operations(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> None:
        for op in ("sum", "max"):
            shapes = [(3, 2), (5,), (), (0, 4), (ALONE_BYTES // 4,), (1,)]
            arrays = [
                LAYOUTS[layout](values(comm.rank, shape, dtype))
                for layout, shape in zip(LAYOUTS, shapes, strict=False)
                for dtype in (np.float32, BFLOAT16)
            ]
            result = comm.all_reduce_many(arrays, op=op)
            assert [a is b for a, b in zip(result, arrays, strict=True)] == [True] * len(arrays)
            combine = np.add if op == "sum" else np.maximum
            for x in arrays:
                wanted = combine(values(0, x.shape, x.dtype), values(1, x.shape, x.dtype))
                same(x, wanted)

    on_ranks(2, body)


def test_prepared_many(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> None:
        arrays = [np.ones(3), np.ones((2, 2))[:, 0], np.ones(4, np.int32)]
        call = comm.prepare("all_reduce_many", arrays, op="sum")
        for i in range(1, 4):
            assert call()[0] is arrays[0]
            for x in arrays:
                same(x, np.full_like(x, 2**i))

    on_ranks(2, body)
