"""Asynchronous calls, groups, messages, and several threads."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import multiring as mr
from multiring.collectives.communicator.gate import Gate
from tests.collectives import fake_executor
from tests.collectives.cases import LAYOUTS, caught, column, same, values
from tests.collectives.conftest import OnRanks


def test_works_in_order_and_with_results(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> None:
        x = np.ones(4)
        works = [comm.all_reduce(x, async_op=True) for _ in range(3)]
        comm.all_reduce(x)  # keeps its place behind them
        same(x, np.full(4, 16.0))
        assert all(w.is_completed() for w in works)
        assert works[0].wait() is x
        assert works[0].wait(0.0) is x
        assert works[1].exception() is None
        assert "done" in repr(works[2])
        parts = comm.all_gather(np.full(2, comm.rank), async_op=True), comm.barrier(async_op=True)
        same(parts[0].wait(), np.array([0, 0, 1, 1]))
        assert parts[1].wait() is None
        same(comm.all_reduce_many([np.ones(2), np.ones(3, np.int32)], async_op=True).wait()[1], np.full(3, 2, np.int32))

    on_ranks(2, body)


def test_b25_strided_output_is_written_back_once(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> None:
        x = values(comm.rank, (5,))
        out = column(np.full(5, -1, np.float32))
        base = out.base
        assert base is not None
        work = comm.all_reduce(x, out, async_op=True)
        assert work.wait() is out
        same(out, values(0, (5,)) + values(1, (5,)))
        out[:] = -2
        work.wait()
        comm.barrier()
        same(out, np.full(5, -2, np.float32))

    on_ranks(2, body)


def dies(gone: Any) -> bool:
    """Whether a weak reference dies, within a time that is far longer than it needs."""
    for _ in range(2000):
        if gone() is None:
            return True
        time.sleep(0.005)
    return False


def test_b66_b67_arrays_live_until_the_call_is_done(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> None:
        for _ in range(20):
            out = np.empty(1000)
            x = np.ones(2000)[::2].copy()
            gone = weakref.ref(x)
            work = comm.all_reduce(x, out, async_op=True)
            del x
            trash = [np.full(1000, -1.0) for _ in range(4)]
            work.wait()
            same(out, np.full(1000, 2.0))
            del trash
            del work, out
            assert dies(gone)  # and no longer
        x = np.ones(10)
        gone = weakref.ref(x)
        comm.all_reduce(x, async_op=True).wait()
        del x
        assert dies(gone)

    on_ranks(2, body)


def test_works_hold_errors() -> None:
    def body(comm: Any) -> str:
        if comm.rank == 1:
            comm.close()
            return ""
        work = comm.all_reduce(np.ones(2), async_op=True)
        first, second = caught(work.wait), caught(work.wait)
        assert first == second
        assert work.is_completed()
        assert isinstance(work.exception(), mr.CommunicatorClosed)
        assert "failed" in repr(work)
        assert caught(comm.barrier)[0] == "CommunicatorClosed"
        return first[0]

    assert fake_executor.on_ranks(2, body)[0] == "CommunicatorClosed"


def test_bad_arguments_of_asynchronous_calls_are_raised_at_once() -> None:
    def body(comm: Any) -> None:
        x = np.ones(2)
        work = comm.all_reduce(x, async_op=True)
        assert caught(comm.all_reduce, x, op="mean", async_op=True)[0] == "ArgumentError"
        work.wait()
        same(comm.all_reduce(x), np.full(2, 4.0))
        assert comm._engine.executor.calls == ["all_reduce", "refused", "all_reduce"]

    fake_executor.on_ranks(2, body)


def test_waiting_with_a_limit_leaves_the_call_running() -> None:
    release = threading.Event()

    def body(comm: Any) -> None:
        if comm.rank == 1:
            release.wait(10)
            comm.barrier()
            return
        work = comm.barrier(async_op=True)
        kind, text = caught(work.wait, 0.01)
        assert kind == "CollectiveTimeout"
        assert "barrier: not done after waiting 0.01 s, and still running; wait again" in text
        assert not work.is_completed()
        assert "running" in repr(work)
        release.set()
        work.wait()

    fake_executor.on_ranks(2, body)


def test_asynchronous_messages_progress_together(on_ranks: OnRanks) -> None:
    """Every rank receives first: with one queue this would wait for ever, if each were started by itself."""

    def body(comm: Any) -> None:
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        big = np.empty(300_000)
        receive = comm.recv(big, left, async_op=True)
        send = comm.send(np.full(300_000, float(comm.rank)), right, async_op=True)
        assert receive.wait() is big
        assert big[-1] == left
        send.wait()
        # another call starts them too
        receive, send = comm.recv(big, right, async_op=True), comm.send(np.full(300_000, 7.0), left, async_op=True)
        comm.barrier()
        assert receive.is_completed()
        assert big[0] == 7.0

    on_ranks(3, body)


def test_groups_of_messages_progress_together(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> None:
        size, rank = comm.size, comm.rank
        inbox = [np.full(2, -1) for _ in range(size)]
        with comm.group():
            for peer in range(size):
                assert comm.recv(inbox[peer], peer) is inbox[peer]
            for peer in range(size):
                comm.send(column(np.array([rank, peer])), peer)
            assert inbox[0][0] == -1
        same(np.array(inbox), np.array([[peer, rank] for peer in range(size)]))

    on_ranks(3, body)
    on_ranks(1, body)


def test_groups_of_collectives_run_in_order(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> None:
        x, y = np.ones(3), np.ones(3)
        out = column(np.zeros(3))
        with comm.group():
            assert comm.all_reduce(x) is x
            work = comm.all_reduce(y, out, op="max", async_op=True)
            gathered = comm.all_gather(np.array([comm.rank]))
            call = caught(work.wait)
            assert call[0] == "ArgumentError"
            assert "waited for inside its group" in call[1]
            with comm.group():  # joins the outer one
                comm.all_reduce(x)
            same(x, np.ones(3))
        same(x, np.full(3, 4.0))
        same(work.wait(), np.ones(3))
        same(gathered, np.array([0, 1]))
        with comm.group():
            pass
        kind, text = caught(comm.all_to_all_v, np.zeros(2), [1, 1])
        assert kind == ""
        with comm.group():
            kind, text = caught(comm.all_gather_v, np.zeros(2))
            assert "got no counts of the other ranks inside a group" in text

    on_ranks(2, body)


def test_a_group_that_raises_launches_nothing_and_is_refused(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> None:
        x = np.ones(3)

        def broken() -> None:
            with comm.group():
                comm.all_reduce(x)
                comm.all_reduce(x, op="mean")

        kind, text = caught(broken)
        assert kind == "ArgumentError"
        assert "op: got 'mean'" in text
        same(x, np.ones(3))
        same(comm.all_reduce(x), np.full(3, 2.0))
        used = comm.group()
        with used:
            pass
        assert "is or was open already" in caught(used.__enter__)[1]

    on_ranks(2, body)


def test_a_group_that_raises_on_one_rank_is_a_mismatch_on_the_others(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> list[str]:
        x = np.ones(3)

        def run() -> None:
            with comm.group():
                comm.all_reduce(x)
                if comm.rank == 1:
                    raise KeyError("a caller's own error")

        return [caught(run)[0], caught(comm.all_reduce, x)[0]]

    assert on_ranks(2, body) == [["MismatchError", "MismatchError"], ["KeyError", "MismatchError"]]


def test_the_gate_lets_waiters_pass_when_it_is_shut() -> None:
    gate = Gate()
    gate.acquire()
    passed: list[int] = []

    def wait(number: int) -> None:
        gate.acquire()
        passed.append(number)

    threads = [threading.Thread(target=wait, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    assert passed == []
    gate.shut()
    for thread in threads:
        thread.join(20)
    assert sorted(passed) == [0, 1, 2]
    gate.release()
    assert not gate.idle


def test_a_group_behind_asynchronous_calls_and_prepared_calls_inside() -> None:
    def body(comm: Any) -> None:
        x = np.ones(2)
        call = comm.prepare("all_reduce", x)
        comm.all_reduce(x, async_op=True)
        with comm.group():
            call()
            same(x, np.full(2, 2.0))
        same(x, np.full(2, 4.0))
        comm.all_reduce(x, async_op=True)
        call()
        same(x, np.full(2, 16.0))

    fake_executor.on_ranks(2, body)


def test_b68_b73_threads_are_serialised(on_ranks: OnRanks) -> None:
    """Two threads on one communicator, whose calls are alike; then each on its own."""

    def body(comm: Any) -> None:
        def work(own: Any, results: list[float]) -> None:
            for i in range(100):
                x = np.ones(3)
                if i % 10 == 9:
                    own.all_reduce(x, async_op=True).wait()
                else:
                    own.all_reduce(x)
                results.append(float(x[1]))

        twin = comm.dup()
        for pair in ((comm, comm), (comm, twin)):
            results: tuple[list[float], list[float]] = ([], [])
            threads = [threading.Thread(target=work, args=(own, got)) for own, got in zip(pair, results, strict=True)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            assert results == ([2.0] * 100, [2.0] * 100)

    on_ranks(2, body)


def test_the_queue_starts_no_thread_before_it_is_needed_and_ends_it() -> None:
    def body(comm: Any) -> None:
        comm.barrier()
        queue: Any = comm._engine.queue
        assert queue._thread is None
        comm.barrier(async_op=True).wait()
        thread: Any = queue._thread
        assert thread.is_alive()
        comm.close()
        thread.join(10)
        assert not thread.is_alive()

    fake_executor.on_ranks(1, body)


def test_a_dropped_communicator_ends_its_thread() -> None:
    comm = mr.Communicator(fake_executor.FakeExecutor(fake_executor.World(1), 0))
    comm.barrier(async_op=True).wait()
    thread = comm._engine.queue._thread
    assert thread is not None
    del comm
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


@given(
    size=st.integers(1, 4),
    layouts=st.lists(st.sampled_from(sorted(LAYOUTS)), min_size=1, max_size=6),
    mode=st.lists(st.sampled_from(["sync", "async", "group", "prepared", "many"]), min_size=6, max_size=6),
)
def test_every_way_to_call_gives_the_same(size: int, layouts: list[str], mode: list[str]) -> None:
    def body(comm: Any) -> None:
        works = []
        arrays = [LAYOUTS[name](values(comm.rank, (i + 1, 2))) for i, name in enumerate(layouts)]
        for x, how in zip(arrays, mode, strict=False):
            if how == "sync":
                comm.all_reduce(x)
            elif how == "async":
                works.append(comm.all_reduce(x, async_op=True))
            elif how == "group":
                with comm.group():
                    comm.all_reduce(x)
            elif how == "prepared":
                comm.prepare("all_reduce", x)()
            else:
                comm.all_reduce_many([x])
        for work in works:
            work.wait()
        for i, x in enumerate(arrays):
            same(x, sum(values(r, (i + 1, 2)) for r in range(size)))

    fake_executor.on_ranks(size, body)
