"""Bad arguments are refused at once: what, got, wanted and the fix; and what the other ranks then see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multiring as mr
from multiring.collectives.communicator import check
from multiring.collectives.schedules.collective import Collective
from multiring.collectives.schedules.schedule import Schedule
from tests.collectives import fake_executor
from tests.collectives.cases import caught, same
from tests.collectives.conftest import OnRanks

x = np.ones(8, np.float32)
Case = tuple[Callable[[Any], Any], str, str]
OTHER = Schedule(Collective("all_reduce"), 3, 1, ())
PLAIN = Schedule(Collective("all_reduce"), 2, 1, ())
frozen = np.broadcast_to(np.float32(1), (8,))

REFUSED: dict[str, Case] = {
    "no array": (lambda c: c.all_reduce([1.0]), "ArgumentTypeError", "all_reduce: x: got list, wanted a numpy array"),
    "none": (lambda c: c.all_reduce(None), "ArgumentTypeError", "all_reduce: x: got None, wanted an array"),
    "byte order": (lambda c: c.all_reduce(x.astype(">f4")), "ArgumentTypeError", "all_reduce: x: dtype: got '>f4'"),
    "dtype": (
        lambda c: c.all_reduce(x, x.astype("f8")),
        "ArgumentTypeError",
        "out: got dtype float64 for x of float32",
    ),
    "shape": (lambda c: c.all_reduce(x, np.ones((2, 4), "f4")), "ArgumentError", "out: got shape (2, 4), wanted (8,)"),
    "overlap": (
        lambda c: c.all_reduce(x[:4], x[2:6]),
        "ArgumentError",
        "out overlaps x: got 16 bytes that start 8 bytes after",
    ),
    "overlap below": (
        lambda c: c.all_reduce(x[2:6], x[:4]),
        "ArgumentError",
        "8 bytes before x's 16, wanted separate arrays",
    ),
    "strided overlap": (lambda c: c.all_reduce(x[::2], x[:4]), "ArgumentError", "overlaps x"),
    "backwards": (lambda c: c.all_reduce(x, x[::-1]), "ArgumentError", "wanted separate arrays or out=x (in place)"),
    "read-only": (lambda c: c.all_reduce(frozen), "ArgumentError", "got a read-only array, wanted a writable array"),
    "op": (lambda c: c.all_reduce(x, op="mean"), "ArgumentError", "op: got 'mean', wanted one of sum, prod"),
    "op of dtype": (lambda c: c.all_reduce(x, op="bor"), "ArgumentTypeError", "view the array as an unsigned"),
    "keyword": (
        lambda c: c.all_reduce(x, opp="sum"),
        "ArgumentTypeError",
        "got keyword 'opp', wanted one of accumulate",
    ),
    "no op": (lambda c: c.all_gather(x, op="sum"), "ArgumentTypeError", "all_gather: got keyword 'op', wanted"),
    "wire": (lambda c: c.all_reduce(x, wire="int8"), "ArgumentTypeError", "wire: got int8 for an array of float32"),
    "wire of ints": (lambda c: c.all_reduce(x.astype("i4"), wire="float16"), "ArgumentTypeError", "two floating-point"),
    "accumulate": (lambda c: c.all_reduce(x, accumulate="int32"), "ArgumentTypeError", "accumulate: got int32 for"),
    "unknown op": (lambda c: c.all_reduce(x, op="foo"), "ArgumentError", "all_reduce: op: got 'foo', wanted one of"),
    "op type": (lambda c: c.reduce(x, op=3), "ArgumentError", "reduce: op: got 3, wanted one of sum"),
    "named op of dtype": (
        lambda c: c.all_reduce_many([x], op="bor"),
        "ArgumentTypeError",
        "all_reduce_many: op='bor' is not defined for dtype float32",
    ),
    "unknown wire": (
        lambda c: c.all_gather(x, wire="foo"),
        "ArgumentTypeError",
        "all_gather: wire: got 'foo', wanted one of int8",
    ),
    "wire of no type": (lambda c: c.all_reduce(x, wire="(,"), "ArgumentTypeError", "all_reduce: wire: got '(,', want"),
    "wire of structures": (
        lambda c: c.reduce_scatter_v(x, [4, 4], wire="f4,f4"),
        "ArgumentTypeError",
        "reduce_scatter_v: wire: got ",
    ),
    "wire order": (lambda c: c.all_reduce(x, wire=">f2"), "ArgumentTypeError", "all_reduce: wire: got '>f2' in the"),
    "unknown accumulate": (
        lambda c: c.reduce_scatter(x, accumulate="foo"),
        "ArgumentTypeError",
        "reduce_scatter: accumulate: got 'foo', wanted one of int8",
    ),
    "unknown algorithm": (
        lambda c: c.all_gather_v(x, [8, 8], algorithm="foo"),
        "ArgumentError",
        "all_gather_v: algorithm: 'foo' is not known, wanted one that serves all_gather: direct",
    ),
    "another's algorithm": (
        lambda c: c.all_to_all(x, algorithm="double_tree"),
        "ArgumentError",
        "all_to_all: algorithm: 'double_tree' does not serve all_to_all, wanted",
    ),
    "algorithm's argument": (
        lambda c: c.all_reduce(x, algorithm="box:x"),
        "ArgumentError",
        "all_reduce: algorithm 'box': ",
    ),
    "raw dtype": (lambda c: c.raw.all_reduce(0, 0, 4, 99), "ArgumentError", "all_reduce: dtype: got code 99, wanted"),
    "raw dtype's name": (lambda c: c.raw.reduce(0, 0, 4, "foo"), "ArgumentTypeError", "reduce: dtype: got 'foo', wan"),
    "raw op": (lambda c: c.raw.reduce(0, 0, 4, 7, 99), "ArgumentError", "reduce: op: got code 99, wanted one of 0"),
    "raw op's name": (lambda c: c.raw.reduce(0, 0, 4, 7, "foo"), "ArgumentError", "reduce: op: got 'foo', wanted one"),
    "order": (lambda c: c.all_reduce(x, order="rnk"), "ArgumentError", "order: got 'rnk', wanted None or 'rank'"),
    "algorithm type": (
        lambda c: c.all_reduce(x, algorithm=3),
        "ArgumentTypeError",
        "algorithm: got int, wanted a name",
    ),
    "schedule type": (
        lambda c: c.all_reduce(x, schedule="ring"),
        "ArgumentTypeError",
        "schedule: got str, wanted a Sch",
    ),
    "schedule ranks": (lambda c: c.all_reduce(x, schedule=OTHER), "ArgumentError", "got one for 3 ranks, wanted 2"),
    "schedule kind": (lambda c: c.broadcast(x, schedule=PLAIN), "ArgumentError", "got one for all_reduce with root 0"),
    "schedule and algorithm": (
        lambda c: c.all_reduce(x, schedule=PLAIN, algorithm="ring"),
        "ArgumentError",
        "and a schedule, wanted one of them",
    ),
    "timeout": (lambda c: c.all_reduce(x, timeout=0), "ArgumentError", "timeout: got 0, wanted a finite number"),
    "timeout type": (lambda c: c.all_reduce(x, timeout="soon"), "ArgumentTypeError", "timeout: got 'soon', wanted a f"),
    "nan timeout": (lambda c: c.barrier(timeout=float("nan")), "ArgumentError", "barrier: timeout: got nan"),
    "async": (lambda c: c.all_reduce(x, async_op=1), "ArgumentTypeError", "async_op: got 1, wanted True or False"),
    "barrier async": (lambda c: c.barrier(async_op=1), "ArgumentTypeError", "barrier: async_op: got 1, wanted True"),
    "root": (lambda c: c.broadcast(x, 2), "ArgumentError", "broadcast: root: got 2, wanted a rank from 0 to 1"),
    "root below": (lambda c: c.reduce(x, root=-1), "ArgumentError", "reduce: root: got -1, wanted a rank from 0 to 1"),
    "root type": (lambda c: c.broadcast(x, 0.0), "ArgumentTypeError", "root: got 0.0, wanted a whole number"),
    "root bool": (lambda c: c.gather(x, root=True), "ArgumentTypeError", "root: got True, wanted a whole number"),
    "reduce_scatter out": (
        lambda c: c.reduce_scatter(x, np.ones(3, "f4")),
        "ArgumentError",
        "out: got 3 elements (shape (3,)), wanted 4 elements",
    ),
    "reduce_scatter place": (
        lambda c: c.reduce_scatter(x, x[2:6]),
        "ArgumentError",
        "or out at its own place in it, x.reshape(-1)[",
    ),
    "all_gather out": (
        lambda c: c.all_gather(x, np.ones(8, "f4")),
        "ArgumentError",
        "(shape (8,)) for x of 8, wanted 16",
    ),
    "all_to_all count": (
        lambda c: c.all_to_all(x[:7]),
        "ArgumentError",
        "got 7 elements (shape (7,)), wanted a multiple of 2",
    ),
    "all_to_all in place": (lambda c: c.all_to_all(x, x), "ArgumentError", "all_to_all has no in place form"),
    "scatter": (lambda c: c.scatter(None, None, root=0), "ArgumentTypeError", "scatter: "),
    "counts": (
        lambda c: c.reduce_scatter_v(x, [4]),
        "ArgumentError",
        "counts: got 1 numbers, wanted one for each of 2",
    ),
    "counts sum": (lambda c: c.reduce_scatter_v(x, [4, 5]), "ArgumentError", "got 8 elements (shape (8,)), wanted 9"),
    "counts below": (lambda c: c.all_gather_v(x, [9, -1]), "ArgumentError", "counts[1]: got -1, wanted 0 or more"),
    "counts type": (lambda c: c.all_gather_v(x, "ab"), "ArgumentTypeError", "counts: got 'ab', wanted one number"),
    "counts float": (
        lambda c: c.all_gather_v(x, [8.0, 8.0]),
        "ArgumentTypeError",
        "counts[0]: got 8.0, wanted a whole",
    ),
    "table": (
        lambda c: c.all_to_all_v(x, [[8, 0]]),
        "ArgumentError",
        "send_counts: got 1 rows, wanted one for each of 2",
    ),
    "row": (lambda c: c.all_to_all_v(x, [8, 1]), "ArgumentError", "x: got 8 elements (shape (8,)), wanted 9, the sum"),
    "recv_counts": (
        lambda c: c.all_to_all_v(x, [[4, 4], [4, 4]], [4, 3]),
        "ArgumentError",
        "recv_counts: got (4, 3), wanted (4, 4)",
    ),
    "many": (lambda c: c.all_reduce_many(x), "ArgumentTypeError", "arrays: got ndarray, wanted a list of arrays"),
    "many twice": (lambda c: c.all_reduce_many([x, x]), "ArgumentError", "arrays[1] overlaps arrays[0]"),
    "split color": (lambda c: c.split(1.5), "ArgumentTypeError", "split: color: got 1.5, wanted a whole number"),
}


def test_every_bad_argument_is_refused_and_the_communicator_lives(on_ranks: OnRanks) -> None:
    """All ranks refuse: nothing happened."""

    def body(comm: Any) -> None:
        for name, (call, kind, text) in REFUSED.items():
            got_kind, got_text = caught(call, comm)
            assert got_kind == kind, (name, got_kind, got_text)
            assert text in got_text, (name, got_text)
            same(x, np.ones(8, np.float32))
            y = np.full(3, comm.rank + 1.0)
            same(comm.all_reduce(y), np.full(3, 3.0))

    on_ranks(2, body)


@pytest.mark.parametrize(
    ("scale", "error"),
    [
        ("a", mr.ArgumentTypeError),
        ("2", mr.ArgumentTypeError),
        (b"2", mr.ArgumentTypeError),
        (None, mr.ArgumentTypeError),
        (1j, mr.ArgumentTypeError),
        ([1.0], mr.ArgumentTypeError),
        (True, mr.ArgumentTypeError),
        (np.True_, mr.ArgumentTypeError),
        (float("nan"), mr.ArgumentError),
        (float("inf"), mr.ArgumentError),
        (-np.float32("inf"), mr.ArgumentError),
        (10**400, mr.ArgumentError),
    ],
)
def test_a_scale_is_a_finite_real_number(scale: Any, error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        mr.premul_sum(scale)
    assert type(raised.value) is error
    assert str(raised.value) == f"premul_sum: scale: got {scale!r}, wanted a finite real number"


@pytest.mark.parametrize("scale", [2, -0.5, 0, 1e300, np.float32(0.25), np.int64(3)])
def test_any_finite_real_number_is_a_scale(scale: Any) -> None:
    assert mr.premul_sum(scale).scale == float(scale)


@pytest.mark.parametrize("comm", [3, None, "world", object])
def test_from_mpi_wants_a_communicator_of_mpi4py(comm: Any) -> None:
    with pytest.raises(mr.ArgumentTypeError) as raised:
        mr.Communicator.from_mpi(comm)
    assert str(raised.value) == (
        f"from_mpi: comm: got {comm!r}, wanted a communicator of mpi4py, such as mpi4py.MPI.COMM_WORLD"
    )


def test_one_rank_refuses_and_the_others_get_a_mismatch(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> tuple[str, str, str]:
        y = np.ones(4, np.float32)
        first = caught(comm.all_reduce, y, op="mean") if comm.rank == 1 else caught(comm.all_reduce, y)
        same(y, np.ones(4, np.float32))
        second = caught(comm.all_reduce, y)
        return first[0], second[0], "closed" if comm.closed else "open"

    assert on_ranks(3, body) == [
        ("MismatchError", "MismatchError", "closed"),
        ("ArgumentError", "MismatchError", "closed"),
        ("MismatchError", "MismatchError", "closed"),
    ]


def test_peer_arguments_are_not_published(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> None:
        other = 1 - comm.rank
        if comm.rank == 0:  # the other rank makes none of these calls
            for call, text in (
                (lambda: comm.send(x, 2), "send: peer: got 2, wanted a rank from 0 to 1"),
                (lambda: comm.recv(frozen, other), "recv: x: got a read-only array"),
                (lambda: comm.send(x, 0), "send: peer: got 0, this rank itself"),
                (lambda: comm.send_recv(x, other, x, other), "receive_array overlaps send_array"),
                (lambda: comm.send_recv(x, 9, x, other), "send_recv: destination: got 9"),
                (lambda: comm.send(x, 1, op="sum"), "send: got keyword 'op', wanted one of async_op, stream, timeout"),
            ):
                assert text in caught(call)[1]
        same(comm.all_reduce(np.ones(2)), np.full(2, 2.0))

    on_ranks(2, body)


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("b36 counts", [lambda c: c.all_reduce(np.ones(5)), lambda c: c.all_reduce(np.ones(4))]),
        ("b36 rows", [lambda c: c.all_gather(np.ones((2, 3))), lambda c: c.all_gather(np.ones((1, 3)))]),
        ("b37 collective", [lambda c: c.all_reduce(np.ones(4)), lambda c: c.broadcast(np.ones(4))]),
        ("b38 root", [lambda c: c.broadcast(np.ones(4), 0), lambda c: c.broadcast(np.ones(4), 1)]),
        ("b38 op", [lambda c: c.all_reduce(np.ones(4), op="sum"), lambda c: c.all_reduce(np.ones(4), op="max")]),
        ("b37 dtype", [lambda c: c.all_reduce(np.ones(4, "f4")), lambda c: c.all_reduce(np.ones(4, "i4"))]),
        (
            "many",
            [
                lambda c: c.all_reduce_many([np.ones(2), np.ones(3)]),
                lambda c: c.all_reduce_many([np.ones(3), np.ones(2)]),
            ],
        ),
    ],
)
def test_b36_b37_b38_disagreement_raises_on_every_rank(on_ranks: OnRanks, name: str, calls: list[Any]) -> None:
    assert on_ranks(2, lambda comm: caught(calls[comm.rank], comm)[0]) == ["MismatchError"] * 2


def test_b39_a_rank_that_leaves_early_is_named(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> tuple[str, bool]:
        for _ in range(2):
            comm.all_reduce(np.ones(3))
        if comm.rank == 1:
            comm.close()
            return caught(comm.barrier)[0], comm.closed
        kind, text = caught(comm.all_reduce, np.ones(3))
        assert "rank 1" in text
        return kind, comm.closed

    assert on_ranks(2, body) == [("CommunicatorClosed", True)] * 2


def test_b34_all_gather_at_the_wrong_place(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> None:
        counts = np.zeros(2, np.int64)
        counts[0] = comm.rank + 5
        if comm.rank == 0:  # its own place
            assert caught(comm.all_gather, counts[:1], counts)[0] == "MismatchError"
        else:
            kind, text = caught(comm.all_gather, counts[:1], counts)
            assert kind == "ArgumentError"
            assert "wanted separate arrays or x at its own place in it, out.reshape(-1)[1:2]" in text

    on_ranks(2, body)


def test_stride_zero_outputs_are_refused_by_all() -> None:
    """B20: an output whose elements share memory."""

    def body(comm: Any) -> None:
        window = np.lib.stride_tricks.as_strided(np.zeros(4, np.float32), (8,), (0,))
        small = np.lib.stride_tricks.as_strided(np.zeros(4, np.float32), (4,), (0,))
        big = np.lib.stride_tricks.as_strided(np.zeros(4, np.float32), (16,), (0,))
        for call in (
            lambda: comm.all_reduce(window),
            lambda: comm.all_reduce(x, window),
            lambda: comm.reduce_scatter(x, small),
            lambda: comm.all_gather(x, big),
            lambda: comm.all_to_all(x, window),
            lambda: comm.reduce_scatter_v(x, [4, 4], small),
            lambda: comm.all_gather_v(x, [8, 8], big),
            lambda: comm.all_to_all_v(x, [[4, 4], [4, 4]], out=window),
        ):
            kind, text = caught(call)
            assert kind == "ArgumentError"
            assert "whose elements share memory (broadcast_to or a sliding window)" in text
        comm.barrier()

    fake_executor.on_ranks(2, body)


def test_interleaved_columns_do_not_overlap(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> None:
        m = np.zeros((5, 2), np.float32)
        m[:, 0] = 1
        comm.all_reduce(m[:, 0], m[:, 1])
        same(m, np.array([[1, 2]] * 5, np.float32))

    on_ranks(2, body)


def short_way(comm: Any, op: str) -> None:
    options = {} if op == "sum" else {"op": op}  # two short ways: without any keyword, and with
    base, good, out = np.ones(24, np.float32), np.ones(8, np.float32), np.ones(8, np.float32)
    for _ in range(2):
        comm.all_reduce(good, **options)
        comm.all_reduce(good, out, **options)
        comm.all_to_all(good, out)
        comm.reduce_scatter(good, out[:4])
    good[:] = 1
    want = np.full(8, 2.0 if op == "sum" else 1.0, np.float32)
    same(comm.all_reduce(base[:16:2].copy()[::-1], **options), want)
    strided = np.ones(16, np.float32)
    comm.all_reduce(strided[::2], **options)
    same(strided[1::2], np.ones(8, np.float32))
    same(strided[::2], want)
    for call in (
        lambda: comm.all_reduce(frozen, **options),
        lambda: comm.all_reduce(good, frozen, **options),
        lambda: comm.all_reduce(base[:8], base[4:12], **options),
        lambda: comm.all_reduce(base[4:12], base[:8], **options),
        lambda: comm.all_reduce(good, out.reshape(2, 4), **options),
        lambda: comm.all_reduce(good, out.view(np.int32), **options),
        lambda: comm.all_to_all(base[:8], base[:8]),
        lambda: comm.reduce_scatter(base[:8], base[2:6]),
        lambda: comm.all_reduce(good.astype(">f4"), **options),
        lambda: comm.all_reduce(good, op=[]),
    ):
        assert caught(call)[0] in ("ArgumentError", "ArgumentTypeError")
    same(comm.all_reduce(np.ones(8, np.float32), **options, wire=np.dtype(np.float32)), want)


def test_the_short_way_checks_what_changes() -> None:
    """After a call like it: another layout, read-only, overlapping, another shape."""

    def body(comm: Any) -> None:
        for op in ("sum", "max"):
            short_way(comm, op)

    fake_executor.on_ranks(2, body)


def test_a_dtype_object_that_is_gone_is_not_mistaken_for_another() -> None:
    """What is remembered of a call is found by the address of its dtype object, which may be used again."""

    def body(comm: Any) -> None:
        for options in ({}, {"op": "max"}):
            for i in range(40):
                kind: Any = (np.float32, np.int32)[i % 2]
                y = np.full(4, -1, np.dtype(kind, metadata={"i": i}))
                for _ in range(2):
                    comm.all_reduce(y, **options)
                    assert y[0] == -1
                    comm.all_reduce(y, np.empty_like(y), **options)
                del y

    fake_executor.on_ranks(1, body)

    def pair(comm: Any) -> None:
        for i in range(40):
            kind: Any = (np.float32, np.int32)[i % 2]
            y = np.full(4, -1, np.dtype(kind, metadata={"i": i}))
            comm.all_reduce(y)
            assert y.tolist() == [-2] * 4
            del y

    fake_executor.on_ranks(2, pair)


def test_shares_are_numpys() -> None:
    for count in range(20):
        for size in range(1, 6):
            parts = np.array_split(np.arange(count), size)
            for rank, part in enumerate(parts):
                start, n = check.shard(count, size, rank)
                assert np.arange(count)[start : start + n].tolist() == part.tolist()


@pytest.mark.parametrize(
    ("shape", "match"),
    [((-1,), "no extent below 0"), (1.5, "shape: got 1.5, wanted a whole number"), ((2**40, 2**40), "less than 2")],
)
def test_empty_refuses_strange_shapes(shape: Any, match: str) -> None:
    def body(comm: Any) -> None:
        with pytest.raises(mr.MultiringError, match=match):
            comm.empty(shape)

    fake_executor.on_ranks(1, body)


def test_a_scalar_function_as_reduction() -> None:
    larger = mr.reduction(lambda a, b: a if a > b else b)

    def body(comm: Any) -> None:
        same(comm.all_reduce(np.array([comm.rank, 1.0]), op=larger), np.array([2.0, 1.0]))

    fake_executor.on_ranks(3, body)
