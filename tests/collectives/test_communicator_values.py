"""Every collective gives what numpy gives, for every element type, layout and form."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import multiring as mr
from tests.collectives import fake_executor
from tests.collectives.cases import BFLOAT16, DTYPES, LAYOUTS, Array, caught, same, values
from tests.collectives.conftest import OnRanks


def split(a: Array, size: int) -> list[Array]:
    return np.array_split(np.asarray(a).reshape(-1), size)


def poison(shape: Any, dtype: Any) -> Array:
    out: Array = np.empty(shape, dtype)
    out.reshape(-1).view(np.uint8)[...] = 0xA7
    return out


def numpy_reduce(op: str, parts: list[Array]) -> Array:
    ufunc = {
        "sum": np.add,
        "prod": np.multiply,
        "min": np.minimum,
        "max": np.maximum,
        "avg": np.add,
        "band": np.bitwise_and,
        "bor": np.bitwise_or,
        "bxor": np.bitwise_xor,
    }[op]
    whole = parts[0].astype(np.float64) if op == "avg" else parts[0]
    for part in parts[1:]:
        whole = ufunc(whole, part)
    return (whole / len(parts)).astype(parts[0].dtype) if op == "avg" else whole.astype(parts[0].dtype)


def operations_of(dtype: Any) -> list[str]:
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return ["min", "max"]
    if dtype.kind == "c":
        return ["sum"]
    if dtype.kind in "iu":
        return ["sum", "prod", "min", "max", "band", "bor", "bxor"]
    return ["sum", "prod", "min", "max", "avg"]


@given(
    size=st.integers(1, 5),
    dtype=st.sampled_from([*DTYPES, np.dtype(bool)]),
    shape=st.lists(st.integers(0, 4), max_size=3).map(tuple),
    form=st.sampled_from(["in place", "out", "out is x"]),
    layouts=st.tuples(st.sampled_from(sorted(LAYOUTS)), st.sampled_from(sorted(LAYOUTS))),
    data=st.data(),
)
def test_all_reduce_is_numpys(
    size: int, dtype: Any, shape: tuple[int, ...], form: str, layouts: tuple[str, str], data: st.DataObject
) -> None:
    op = data.draw(st.sampled_from(operations_of(dtype)))
    inputs = [values(rank, shape, dtype, 0, 3) for rank in range(size)]
    wanted = numpy_reduce(op, inputs)

    def body(comm: Any) -> None:
        x = LAYOUTS[layouts[0]](inputs[comm.rank])
        out = None if form == "in place" else x if form == "out is x" else LAYOUTS[layouts[1]](poison(shape, dtype))
        result = comm.all_reduce(x, out, op=op)
        if form == "out":  # and the short way
            result = comm.all_reduce(x, out, op=op)
        assert result is (x if out is None else out)
        same(result, wanted)
        if form == "out":
            same(x, inputs[comm.rank])

    fake_executor.on_ranks(size, body)


def every_collective(comm: Any, layout: str, dtype: Any, shape: tuple[int, ...]) -> None:
    """B20: each collective, one layout, against the path over a contiguous copy, which numpy gives."""
    size, rank, lay = comm.size, comm.rank, LAYOUTS[layout]
    inputs = [values(r, shape, dtype) for r in range(size)]
    mine, total = inputs[rank], numpy_reduce("sum", inputs)
    count = total.size
    shard = split(total, size)[rank]

    def new(shape: Any) -> Array:
        return lay(poison(shape, dtype))

    x = lay(mine)
    assert comm.all_reduce(x) is x
    same(x, total)
    same(comm.all_reduce(lay(mine), new(shape)), total)
    root = size - 1
    result = comm.reduce(lay(mine), new(shape) if rank == root else None, root)
    same(result, total) if rank == root else same(result is None, True)
    x = lay(mine)
    result = comm.reduce(x, root=root)
    same(x, total if rank == root else mine)
    x = lay(mine)
    assert comm.broadcast(x, root) is x
    same(x, inputs[root])
    same(comm.broadcast(lay(mine), root, new(shape)), inputs[root])
    same(comm.reduce_scatter(lay(mine), new(shard.shape)), shard)
    same(comm.reduce_scatter(lay(mine)).reshape(-1), shard)
    gathered = np.concatenate([a.reshape(-1) for a in inputs])
    same(comm.all_gather(lay(mine), new((size, *shape))), gathered.reshape(size, *shape))
    same(comm.all_gather(lay(mine)), np.concatenate(inputs))
    for out in (new((size, *shape)), None):
        result = comm.gather(lay(mine), out if rank == root else None, root)
        same(np.asarray(result).reshape(-1), gathered) if rank == root else same(result is None, True)
    whole = values(99, (size, *shape), dtype)
    same(comm.scatter(lay(whole) if rank == root else None, new(shape), root), whole[rank])
    same(
        comm.all_to_all(lay(values(rank, (size, *shape), dtype))),
        np.stack([values(r, (size, *shape), dtype)[rank] for r in range(size)]),
    )
    counts = [(3 * r) % 5 for r in range(size)]
    start = sum(counts[:rank])
    flat = [values(r, (sum(counts),), dtype) for r in range(size)]
    same(
        comm.reduce_scatter_v(lay(flat[rank]), counts, new((counts[rank],))),
        numpy_reduce("sum", flat)[start : start + counts[rank]],
    )
    parts = [values(r, (counts[r],), dtype) for r in range(size)]
    for given_counts in (counts, None):
        same(comm.all_gather_v(lay(parts[rank]), given_counts, new((sum(counts),))), np.concatenate(parts))
        same(comm.all_gather_v(lay(parts[rank]), given_counts), np.concatenate(parts))
    table = np.array([[(r + 2 * c) % 3 for c in range(size)] for r in range(size)])
    sent = [values(r, (int(table[r].sum()),), dtype) for r in range(size)]
    blocks = [np.split(sent[r], np.cumsum(table[r])[:-1])[rank] for r in range(size)]
    for send_counts, recv_counts in ((table, None), (table[rank], table[:, rank]), (table[rank].tolist(), None)):
        got = comm.all_to_all_v(lay(sent[rank]), send_counts, recv_counts, new((int(table[:, rank].sum()),)))
        same(got, np.concatenate(blocks))
    right, left = (rank + 1) % size, (rank - 1) % size
    same(comm.send_recv(lay(mine), right, new(shape), left), inputs[left])
    if size > 1:
        if rank == 0:
            comm.send(lay(mine), 1)
            comm.recv(x := new(shape), 1)
            same(x, inputs[1])
        elif rank == 1:
            same(comm.recv(new(shape), 0), inputs[0])
            comm.send(lay(mine), 0)
    comm.barrier()
    assert count == total.size


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_b20_b22_b26_b41_every_collective_in_every_layout(on_ranks: OnRanks, size: int) -> None:
    def body(comm: Any) -> None:
        for layout in LAYOUTS:
            for shape in ((6, 2), (5,), (1, 3)):
                every_collective(comm, layout, np.float32, shape)
        # B41: another layout on each rank
        every_collective(comm, sorted(LAYOUTS)[comm.rank], np.int64, (3, 4))

    on_ranks(size, body)


@given(
    size=st.integers(1, 5),
    dtype=st.sampled_from(DTYPES),
    layout=st.sampled_from(sorted(LAYOUTS)),
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple),
)
def test_every_collective_of_every_shape(size: int, dtype: Any, layout: str, shape: tuple[int, ...]) -> None:
    fake_executor.on_ranks(size, lambda comm: every_collective(comm, layout, dtype, shape))


def test_b08_b10_zero_lengths(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> None:
        n = comm.size
        for shape in ((0,), (0, 3), (4, 0)):
            for make in (lambda s: np.empty(s, np.int32), lambda s: comm.empty(s, "int32")):
                x = make(shape)
                same(comm.all_reduce(x), np.empty(shape, np.int32))
                same(comm.broadcast(x), np.empty(shape, np.int32))
                same(comm.all_gather(x), np.empty((n * shape[0], *shape[1:]), np.int32))
                wanted = (shape[0] // n, *shape[1:]) if shape[0] % n == 0 else (0,)
                same(comm.reduce_scatter(x), np.empty(wanted, np.int32))
                same(comm.all_to_all(x), np.empty(shape, np.int32))
        assert comm.all_reduce_many([]) == []
        comm.all_reduce_many([np.empty(0), np.empty((0, 3), np.float32)])

    on_ranks(2, body)
    on_ranks(3, body)


def test_b11_b12_one_rank_keeps_every_bit() -> None:
    def body(comm: Any) -> None:
        for dtype in (np.float32, np.float16, BFLOAT16):
            for n in [*range(1, 71), 1003]:
                x = (
                    np.arange(n).astype(np.uint16).view(np.float16).astype(dtype)
                    if dtype == np.float16
                    else (np.arange(n) / 7).astype(dtype)
                )
                for op in ("sum", "avg", "max"):
                    same(comm.all_reduce(x, poison(n, dtype), op=op), x)
                same(comm.all_gather(x), x)
                same(comm.reduce_scatter(x), x)
        sub = comm.split(0)
        assert (sub.rank, sub.size) == (0, 1)

    fake_executor.on_ranks(1, body)


def test_b14_b15_uneven_shares_are_array_splits(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> int:
        lengths = [comm.reduce_scatter(np.ones(10, np.float32)).size]
        for count in (1, 3, 10, 31, 33, 65):
            x = values(comm.rank, (count,))
            total = numpy_reduce("sum", [values(r, (count,)) for r in range(comm.size)])
            mine = comm.reduce_scatter(x)
            same(mine, split(total, comm.size)[comm.rank])
            same(comm.all_gather(mine, poison(count, np.float32)), total)
            got = comm.gather(mine, root=1, count=count)
            if comm.rank == 1:
                same(got, total)
            back = comm.scatter(total if comm.rank == 1 else None, poison(mine.shape, np.float32), 1, count)
            same(back, mine)
        return int(lengths[0])

    assert on_ranks(4, body) == [3, 3, 2, 2]


def test_b21_reduce_scatter_of_a_transposed_array(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> None:
        x = np.arange(24, dtype=np.float32).reshape(4, 3, 2).transpose(0, 2, 1)
        same(comm.reduce_scatter(x), 4 * x.copy()[comm.rank : comm.rank + 1])

    on_ranks(4, body)


def test_b23_b40_all_gather_makes_c_order_along_axis_0(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> None:
        x = np.asfortranarray(values(comm.rank, (3, 4)))
        got = comm.all_gather(x)
        same(got, np.concatenate([values(r, (3, 4)) for r in range(comm.size)]))
        assert got.flags.c_contiguous
        assert comm.all_gather(np.zeros((2, 3, 2), np.float32)).shape == (2 * comm.size, 3, 2)
        rows = [1, 0, 3, 2]
        got = comm.all_gather_v(np.full((rows[comm.rank], 3, 2), comm.rank, np.float32))
        assert got.shape == (6, 3, 2)
        assert got[:, 0, 0].tolist() == [0, 2, 2, 2, 3, 3]
        assert comm.all_gather(np.array(2.0)).shape == (comm.size,)

    on_ranks(4, body)


def test_b09_all_to_all_v_with_nothing_to_send(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> Any:
        counts = [[0, 3], [0, 0]]
        x = np.arange(sum(counts[comm.rank]), dtype=np.float32)
        assert comm.all_to_all_v(x, counts).tolist() == comm.all_to_all_v(x, counts[comm.rank]).tolist()
        return comm.all_to_all_v(x, counts).tolist()

    assert on_ranks(2, body) == [[], [0.0, 1.0, 2.0]]


def test_b24_read_only_input(on_ranks: OnRanks, tmp_path: Any) -> None:
    np.arange(4, dtype=np.float32).tofile(tmp_path / "x")

    def body(comm: Any) -> None:
        x = np.arange(4, dtype=np.float32)
        frozen = x.copy()
        frozen.setflags(write=False)
        mapped = np.memmap(tmp_path / "x", np.float32, mode="r")
        for given_x, wanted in (
            (frozen, x),
            (mapped, x),
            (np.broadcast_to(np.float32(2), (4,)), np.full(4, 2, np.float32)),
        ):
            for _ in range(2):
                same(comm.all_reduce(given_x, poison(4, np.float32)), comm.size * wanted)
                same(comm.all_gather(given_x), np.tile(wanted, comm.size))
            for write in (comm.all_reduce, lambda a, x=x: comm.all_reduce(x, a)):
                kind, text = caught(write, given_x)
                assert kind == "ArgumentError"
                assert "got a read-only array, wanted a writable array" in text
        if comm.rank == 0:
            comm.broadcast(frozen)
        else:
            same(comm.broadcast(poison(4, np.float32)), frozen)

    on_ranks(2, body)


def test_b27_sizes_and_offsets(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> None:
        for dtype in (np.float32, BFLOAT16):
            for offset in range(0, 16, 3):
                for n in (1, 7, 16, 33):
                    base = poison(64, dtype)
                    before = base.copy()
                    x = base[offset : offset + n]
                    x[:] = values(comm.rank, (n,), dtype)
                    comm.all_reduce(x)
                    same(x, numpy_reduce("sum", [values(r, (n,), dtype) for r in range(comm.size)]))
                    rest = np.ones(64, bool)
                    rest[offset : offset + n] = False
                    assert base[rest].tobytes() == before[rest].tobytes()

    on_ranks(2, body)


def test_b29_b30_places_of_nccl(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> None:
        for count in (8, 10, 3):
            start = sum(len(s) for s in split(np.empty(count), comm.size)[: comm.rank])
            n = len(split(np.empty(count), comm.size)[comm.rank])
            for _ in range(2):  # the second takes the short way
                x = values(comm.rank, (count,))
                before = x.copy()
                total = numpy_reduce("sum", [values(r, (count,)) for r in range(comm.size)])
                comm.reduce_scatter(x, x[start : start + n])
                before[start : start + n] = total[start : start + n]
                same(x, before)  # nothing else of x is changed
                whole = poison(count, np.float32)
                whole[start : start + n] = total[start : start + n]
                same(comm.all_gather(whole[start : start + n], whole), total)
                whole = poison(count, np.float32)
                whole[start : start + n] = total[start : start + n]
                got = comm.gather(whole[start : start + n], whole if comm.rank == 0 else None, count=count)
                if comm.rank == 0:
                    same(got, total)
                    same(comm.scatter(whole, whole[:n], count=count), total[:n])
                else:
                    same(comm.scatter(None, poison(n, np.float32), count=count), total[start : start + n])

    on_ranks(3, body)


def test_b53_integers_wrap_and_b49_averages(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> None:
        x = np.array([120 if comm.rank == 0 else 100], np.int8)
        same(comm.all_reduce(x), np.array([-36], np.int8))
        same(comm.all_reduce(np.array([200], np.uint8)), np.array([144], np.uint8))
        for op in ("sum", "prod", "avg"):
            kind, text = caught(comm.all_reduce, np.ones(2, bool), op=op)
            assert kind == "ArgumentTypeError"
            assert "use op='max' for any() and op='min' for all()" in text
        kind, text = caught(comm.all_reduce, np.array([7, -7], np.int32), op="avg")
        assert kind == "ArgumentTypeError"
        assert "use op='sum' and divide" in text
        same(comm.all_reduce(np.array([comm.rank == 0, False]), op="max"), np.array([True, False]))
        same(
            comm.all_reduce(np.array([1, 2, 6], np.float32) * (comm.rank + 1), op="avg"),
            np.array([1.5, 3, 9], np.float32),
        )

    on_ranks(2, body)


def test_b138_only_avg_divides_and_premul_multiplies(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> None:
        for _ in range(2):
            x = np.full(3, 4, np.float32)
            same(comm.all_reduce(x.copy()), np.full(3, 8, np.float32))
            same(comm.all_reduce(x.copy(), op="max"), x)
            same(comm.all_reduce(x.copy(), op=mr.premul_sum(0.5)), x)

    on_ranks(2, body)


def test_wire_and_accumulate(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> None:
        x = np.full(5, 1 + 2**-12, np.float32)
        got = comm.all_reduce(x, wire="bfloat16")
        same(got, np.full(5, 2, np.float32))
        ones = np.full(40, 1, BFLOAT16)
        same(comm.all_reduce(ones, accumulate="float32", order="rank"), np.full(40, 2, BFLOAT16))

    on_ranks(2, body)


def test_m7_zero_dimensional_arrays_and_scalars(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> None:
        x = np.array(comm.rank + 1.0)
        assert comm.all_reduce(x) is x
        assert float(x) == 3.0
        same(comm.all_reduce(np.float64(comm.rank), np.empty(())), np.array(1.0))
        kind, text = caught(comm.all_reduce, np.float32(3))
        assert kind == "ArgumentError"
        assert "got a numpy scalar, which is read-only" in text

    on_ranks(2, body)


def test_symmetric_arrays_beget_symmetric_arrays(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> None:
        x = comm.empty((4, 3), "bfloat16")
        assert x.dtype == ml_dtypes.bfloat16
        assert x.ctypes.data % 64 == 0
        assert comm.register(x) is x
        x[...] = comm.rank
        got = comm.all_gather(x)
        assert comm.register(got) is got
        same(got, np.repeat(np.arange(2), 12).reshape(8, 3).astype(BFLOAT16))
        kind, text = caught(comm.register, np.zeros(3))
        assert kind == "ArgumentError"
        assert "use comm.empty((3,), 'float64') and copy into it" in text

    on_ranks(2, body)


def test_arrays_of_other_libraries_are_used_in_place(on_ranks: OnRanks) -> None:
    from tests.collectives.test_arrays import Exporter, Interface

    def body(comm: Any) -> None:
        for kind in (Exporter, Interface):
            for base in (np.full(6, 2.0), np.full((6, 2), 2.0)[:, 1]):
                x = kind(base)
                assert comm.all_reduce(x) is x
                same(base, np.full(6, 4.0))

    on_ranks(2, body)
