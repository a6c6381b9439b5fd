"""Prepared calls, splitting, explaining, closing."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import multiring as mr
from tests.collectives import fake_executor
from tests.collectives.cases import caught, column, same, values
from tests.collectives.conftest import OnRanks


def test_prepared_calls_of_every_kind(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> None:
        x, out = np.ones(4), np.zeros(4)
        strided = column(np.ones(4))
        other = 1 - comm.rank
        calls = {
            "all_reduce": (comm.prepare("all_reduce", x, out), out, [2.0] * 4),
            "limited": (comm.prepare("all_reduce", x, out, timeout=10), out, [2.0] * 4),
            "checked": (comm.prepare("all_reduce", x, out, check=True), out, [2.0] * 4),
            "strided": (comm.prepare("all_reduce", strided, out, op="max"), out, [1.0] * 4),
            "all_gather": (comm.prepare("all_gather", x[:2], out), out, [1.0] * 4),
            "reduce_scatter": (comm.prepare("reduce_scatter", x, out[:2]), out[:2], [2.0] * 2),
            "all_to_all_v": (comm.prepare("all_to_all_v", x, [[2, 2], [2, 2]], out=out), out, [1.0] * 4),
            "all_gather_v": (comm.prepare("all_gather_v", x[:1], [1, 1]), None, [1.0] * 2),
            "send_recv": (comm.prepare("send_recv", x, other, out, other), out, [1.0] * 4),
            "broadcast": (comm.prepare("broadcast", x, root=1), x, [1.0] * 4),
        }
        for _ in range(3):
            for name, (call, array, wanted) in calls.items():
                out[:] = -5
                result = call()
                assert array is None or result is call.result
                assert np.asarray(result).tolist() == wanted, name
        assert comm.prepare("barrier")() is None
        in_place = comm.prepare("all_reduce", strided)
        in_place()
        in_place()
        same(strided, np.full(4, 4.0))
        assert in_place.name == "all_reduce"

    on_ranks(2, body)


def test_prepared_calls_hold_their_arrays_and_new_contents_count() -> None:
    def body(comm: Any) -> None:
        call = comm.prepare("all_reduce", np.ones(1000))
        trash = [np.full(1000, -1.0) for _ in range(5)]
        result = call()
        same(result, np.full(1000, 2.0))
        result[:] = 3
        same(call(), np.full(1000, 6.0))
        del trash

    fake_executor.on_ranks(2, body)


@pytest.mark.parametrize(
    ("arguments", "options", "match"),
    [
        (("all_reduce", np.ones(2)), {"async_op": True}, "got async_op for 'all_reduce', wanted a synchronous call"),
        (("allreduce", np.ones(2)), {}, "prepare: got 'allreduce', wanted one of all_reduce"),
        (("all_gather_v", np.ones(2), None), {}, "counts: got None, wanted one number for each rank: a prepared call"),
        (("all_to_all_v", np.ones(2), [2]), {}, "got one row, wanted the whole table"),
        (("barrier",), {"op": "sum"}, "barrier: got keyword 'op', wanted one of timeout"),
        (("all_reduce", np.ones(2)), {"op": "mean"}, "op: got 'mean'"),
    ],
)
def test_bad_preparations_are_local(arguments: Any, options: Any, match: str) -> None:
    def body(comm: Any) -> None:
        if comm.rank == 0:
            with pytest.raises(mr.MultiringError, match=match):
                comm.prepare(*arguments, **options)
        comm.barrier()

    fake_executor.on_ranks(2, body)


def test_b70_b71_split(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> Any:
        rank = comm.rank
        backwards = comm.split(0, -rank)
        assert (backwards.rank, backwards.size) == (comm.size - 1 - rank, comm.size)
        same(backwards.all_gather(np.array([rank])), np.arange(comm.size)[::-1].copy())
        half = comm.split(None if rank == 0 else rank % 2, 0)
        if rank == 0:
            assert half is None
        else:
            x = np.array([rank])
            half.all_reduce(x)
            assert int(x[0]) == (2 if rank == 2 else 4)
            half.close()
        twin = comm.dup()
        assert (twin.rank, twin.size) == (rank, comm.size)
        twin.barrier()
        twin.close()
        comm.barrier()
        kind, text = caught(twin.barrier)
        assert kind == "CommunicatorClosed"
        assert "this communicator was closed here" in text
        return (comm.local_rank, comm.local_size, comm.node, comm.n_nodes, comm.device)

    assert on_ranks(4, body) == [(r, 4, 0, 1, "host") for r in range(4)]


def test_b72_b75_three_communicators_at_once(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> None:
        many = [comm.dup() for _ in range(3)]
        for i, one in enumerate(many):
            same(one.all_reduce(np.array([i])), np.array([2 * i]))
        works = [one.all_reduce(values(comm.rank, (50,)), async_op=True) for one in many]
        for work in works:
            same(work.wait(), values(0, (50,)) + values(1, (50,)))

    on_ranks(2, body)


def test_explain(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> None:
        assert "all_reduce" in comm.explain("all_reduce", nbytes=1 << 20)
        assert comm.explain("broadcast", count=100, dtype="bfloat16", root=1)
        for call, text in (
            (lambda: comm.explain("allreduce", 8), "explain: got 'allreduce', wanted one of barrier"),
            (lambda: comm.explain("all_reduce"), "got nbytes=None and count=None, wanted one of them"),
            (lambda: comm.explain("all_reduce", nbytes=-8), "explain: got nbytes=-8, wanted 0 or more"),
            (lambda: comm.explain("all_reduce", nbytes=-1), "explain: got nbytes=-1, wanted 0 or more"),
            (lambda: comm.plan("all_reduce", count=-2), "explain: got count=-2, wanted 0 or more"),
            (lambda: comm.explain("barrier", nbytes=-8), "explain: got nbytes=-8, wanted 0 or more"),
            (lambda: comm.explain("all_reduce", 8, "foo"), "explain: dtype: got 'foo', wanted one of int8"),
            (lambda: comm.explain("all_reduce", 8, op="mean"), "op: got 'mean'"),
            (lambda: comm.explain("broadcast", 8, root=7), "root: got 7"),
        ):
            assert text in caught(call)[1]

    on_ranks(2, body)


def test_closing(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> None:
        work = comm.all_reduce(np.ones(3), async_op=True)
        assert repr(comm) == f"Communicator(rank={comm.rank}, size=2, device='host')"
        comm.check()
        comm.barrier()
        call = comm.prepare("all_reduce", np.ones(3))
        comm.close()
        comm.close()
        assert work.is_completed()
        assert comm.closed
        assert "closed" in repr(comm)
        for refused in (
            comm.barrier,
            comm.check,
            call,
            comm.dup,
            lambda: comm.all_reduce(np.ones(3)),
            lambda: comm.all_reduce(np.ones(3), async_op=True),
            lambda: comm.send(np.ones(3), 0),
            lambda: comm.empty(3),
            lambda: comm.raw.barrier(),
            lambda: comm.prepare("barrier"),
            lambda: comm.explain("barrier"),
            comm.group().__enter__,
        ):
            assert caught(refused)[0] == "CommunicatorClosed"
        comm.abort("too late")

    on_ranks(2, body)


def test_abort_reaches_the_others(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> str:
        comm.barrier()
        if comm.rank == 0:
            comm.abort("the disk is full")
        kind, text = caught(comm.barrier)
        assert "the disk is full" in text
        return kind

    assert on_ranks(2, body) == ["CommunicatorClosed"] * 2


def test_leaving_a_context_with_an_error_aborts(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> tuple[str, str]:
        def run() -> None:
            with comm as same_one:
                assert same_one is comm
                comm.barrier()
                if comm.rank == 0:
                    raise ZeroDivisionError("by rank 0")
                comm.barrier()

        return caught(run)

    first, second = on_ranks(2, body)
    assert first == ("ZeroDivisionError", "by rank 0")
    assert second[0] == "CommunicatorClosed"
    assert "ZeroDivisionError" in second[1]


def test_b12_one_rank_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with mr.Communicator(fake_executor.FakeExecutor(fake_executor.World(1), 0)) as comm:
            comm.all_reduce(np.ones(3))
    assert capfd.readouterr() == ("", "")


def test_check_asks_the_device_after_the_call() -> None:
    def body(comm: Any) -> None:
        comm.all_reduce(np.ones(2), check=True)
        comm.all_reduce(np.ones(2), check=False)
        assert comm._engine.executor.calls == ["all_reduce", "check", "all_reduce"]

    fake_executor.on_ranks(1, body)


def test_a_timeout_reaches_the_executor() -> None:
    def body(comm: Any) -> str:
        return caught(comm.barrier, timeout=0.05)[0] if comm.rank == 0 else "absent"

    assert fake_executor.on_ranks(2, body) == ["CollectiveTimeout", "absent"]
