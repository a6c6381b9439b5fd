"""Peers of GPUs that are killed, late, gone, or call something else: what the others get, and how soon."""

from __future__ import annotations

import gc
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import multiring as mr
from multiring.collectives.communicator import Communicator
from multiring.collectives.drivers.device_simulator import SimulatedArray
from tests.cuda.device_ranks import cuda_comm, executor_of
from tests.shm.helpers import await_mark, mark
from tests.support.ranks import Outcome, results, run_ranks

pytestmark = pytest.mark.sim

MODES = ("stepped", "fused")
SOON_S = 2.0 + 1.0
"""The contract's two seconds, and one for the simulator, whose threads take turns with the watchdog."""


def error_of(comm: Communicator, call: Callable[[], Any]) -> tuple[str, str, float]:
    """Return (type, text, seconds until) of what a call raises, at once or when the device is asked."""
    begun = time.monotonic()
    try:
        call()
        comm.check()
    except mr.MultiringError as raised:
        error, seconds = raised, time.monotonic() - begun
    else:
        return "", "", time.monotonic() - begun
    # Every later call raises the same.
    with pytest.raises(type(error), match=re.escape(str(error))):
        comm.all_reduce(SimulatedArray.of(np.zeros(3, np.float32)))
    with pytest.raises(type(error)):
        comm.check()
    return type(error).__name__, str(error), seconds


def works(comm: Communicator) -> None:
    x = comm.all_reduce(SimulatedArray.of(np.full(5, comm.rank + 1, np.int32)))
    assert x.numpy().tolist() == [comm.size * (comm.size + 1) // 2] * 5


def array(comm: Communicator, symmetric: bool, count: int = 300) -> Any:
    x: Any = comm.empty(count) if symmetric else SimulatedArray.of(np.zeros(count, np.float32))
    x.numpy()[:] = comm.rank
    return x


def survivors(outcomes: list[Outcome], victim: int) -> list[Any]:
    assert outcomes[victim].signal == signal.SIGKILL
    return results([o for r, o in enumerate(outcomes) if r != victim])


def killed(rank: int, exchange: Any, mode: str, symmetric: bool) -> Any:
    comm = cuda_comm(rank, exchange, 3, mode)
    works(comm)
    x = array(comm, symmetric)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return error_of(comm, lambda: comm.all_reduce(x))


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_a_killed_peer(mode: str, symmetric: bool) -> None:
    for kind, text, seconds in survivors(run_ranks(3, killed, mode, symmetric), 1):
        assert kind == "PeerLostError"
        assert text.startswith("rank 1 on ")
        assert "waits for rank 1 to call all_reduce(300 x float32, op='sum')" in text
        assert seconds < SOON_S


def killed_half_way(rank: int, exchange: Any) -> Any:
    comm = cuda_comm(rank, exchange, 3, "stepped")
    works(comm)
    x = array(comm, False)
    call = comm.prepare("all_reduce", x, algorithm="ring")
    if rank == 1:
        call()
        launches = 0
        gpu, launcher = executor_of(comm).gpu, executor_of(comm).gpu.launcher
        assert gpu.launcher is launcher
        real = gpu.synchronize

        def synchronize(stream: int) -> None:
            nonlocal launches
            launches += 1
            if launches == 4:
                os.kill(os.getpid(), signal.SIGKILL)
            real(stream)

        gpu.synchronize = synchronize  # type: ignore[method-assign]
    else:
        call()
    return error_of(comm, call)


def test_a_peer_that_is_killed_between_two_steps() -> None:
    for kind, text, seconds in survivors(run_ranks(3, killed_half_way), 1):
        assert kind == "PeerLostError"
        assert text.startswith("rank 1 on ")
        assert "(ring) at step " in text
        assert "over CUDA IPC" in text
        assert seconds < SOON_S


def late(rank: int, exchange: Any, mode: str, folder: Path) -> Any:
    comm = cuda_comm(rank, exchange, 3, mode)
    works(comm)
    x = array(comm, False)
    if rank == 2:
        await_mark(folder, "given up")
        return error_of(comm, lambda: comm.all_reduce(x, timeout=5.0))
    found = error_of(comm, lambda: comm.all_reduce(x, timeout=0.5))
    mark(folder, "given up")
    return found


@pytest.mark.parametrize("mode", MODES)
def test_a_late_peer(mode: str, tmp_path: Path) -> None:
    for kind, text, _ in results(run_ranks(3, late, mode, tmp_path)):
        assert kind == "CollectiveTimeout"
        assert text.startswith("rank 2 did not come within the time limit of 0.5 s: rank ")
        assert "waits for rank 2 to call all_reduce(300 x float32, op='sum')" in text


def unequal(rank: int, exchange: Any, mode: str, what: str) -> Any:
    comm = cuda_comm(rank, exchange, 3, mode)
    works(comm)
    x = array(comm, False, 301 if what == "count" and rank == 1 else 300)
    options: dict[str, Any] = {"op": "max"} if what == "op" and rank == 1 else {}
    if what == "algorithm":
        options = {"algorithm": "chain" if rank == 1 else "ring"}
    found = error_of(comm, lambda: comm.all_reduce(x, **options))
    return (*found[:2], bool((x.numpy() == rank).all()))


@pytest.mark.parametrize(
    ("what", "part"),
    [
        ("count", "rank 1: all_reduce(301 x float32, op='sum') where ranks 0 and 2 have all_reduce(300 x float32"),
        ("op", "rank 1: all_reduce(300 x float32, op='max') where ranks 0 and 2 have all_reduce(300 x float32"),
        ("algorithm", "(algorithm chain against ring)"),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_unequal_calls(mode: str, what: str, part: str) -> None:
    for kind, text, untouched in results(run_ranks(3, unequal, mode, what)):
        assert kind == "MismatchError"
        assert part in text
        assert untouched, "something was written"


def on_host_and_device(rank: int, exchange: Any) -> Any:
    comm = cuda_comm(rank, exchange, 2, "stepped")
    if rank == 0:
        told = np.zeros(2, np.int64)
        # What split and the like do inside, on arrays of the host.
        executor = executor_of(comm)
        return error_of(comm, lambda: executor.gather_bytes(b"x" * told.size))[0]
    y = SimulatedArray.of(np.zeros(2, np.int64))
    return error_of(comm, lambda: comm.all_gather(SimulatedArray.of(np.zeros(1, np.int64)), y))[0]


def test_a_call_on_the_host_is_none_on_the_device() -> None:
    assert results(run_ranks(2, on_host_and_device)) == ["MismatchError", "MismatchError"]


def leaves(rank: int, exchange: Any, mode: str) -> Any:
    comm = cuda_comm(rank, exchange, 2, mode)
    works(comm)
    if rank == 1:
        comm.close()
        return "", "", 0.0
    return error_of(comm, lambda: comm.all_reduce(array(comm, True)))


@pytest.mark.parametrize("mode", MODES)
def test_a_peer_that_closes(mode: str) -> None:
    kind, text, seconds = results(run_ranks(2, leaves, mode))[0]
    assert kind == "CommunicatorClosed"
    assert "rank 1 closed the communicator or exited" in text
    assert seconds < SOON_S


def aborts(rank: int, exchange: Any, mode: str) -> Any:
    comm = cuda_comm(rank, exchange, 2, mode)
    works(comm)
    if rank == 1:
        comm.abort("the loss is NaN")
        return "", "", 0.0
    return error_of(comm, lambda: comm.all_reduce(array(comm, False)))


@pytest.mark.parametrize("mode", MODES)
def test_an_abort(mode: str) -> None:
    kind, text, seconds = results(run_ranks(2, aborts, mode))[0]
    assert (kind, text) == ("CommunicatorClosed", "rank 1 aborted the communicator: the loss is NaN")
    assert seconds < SOON_S


def all_refuse(rank: int, exchange: Any, mode: str) -> int:
    comm = cuda_comm(rank, exchange, 2, mode)
    x = array(comm, True, 4)
    for _ in range(2):
        with pytest.raises(mr.ArgumentError, match="root: got 7"):
            comm.broadcast(x, root=7)
        works(comm)
    comm.close()
    return 1


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_all_refuse_is_none(mode: str) -> None:
    assert results(run_ranks(2, all_refuse, mode)) == [1, 1]


def one_refuses(rank: int, exchange: Any, mode: str) -> Any:
    comm = cuda_comm(rank, exchange, 2, mode)
    works(comm)
    x = array(comm, True, 4)
    if rank == 1:
        with pytest.raises(mr.ArgumentError, match="root: got 7"):
            comm.broadcast(x, root=7)
        return error_of(comm, lambda: comm.broadcast(x))
    return error_of(comm, lambda: comm.broadcast(x))


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_one_rank_refuses(mode: str) -> None:
    (kind, text, _), (other, *_) = results(run_ranks(2, one_refuses, mode))
    assert kind == "MismatchError"
    assert "rank 1" in text
    assert "refused for a bad argument" in text
    assert other in ("MismatchError", "CommunicatorClosed")


def late_work(rank: int, exchange: Any, mode: str, folder: Path) -> Any:
    comm = cuda_comm(rank, exchange, 2, mode)
    works(comm)
    if rank == 1:
        await_mark(folder, "given up")
        return "", ""
    work = comm.all_reduce(array(comm, True), timeout=0.5, async_op=True)
    with pytest.raises(mr.CollectiveTimeout) as raised:
        work.wait()
    assert work.is_completed()
    assert work.exception() is raised.value
    checked = error_of(comm, lambda: comm.all_reduce(array(comm, False), check=True))[0]
    mark(folder, "given up")
    return str(raised.value), checked


@pytest.mark.parametrize("mode", MODES)
def test_work_that_is_waited_for_raises_what_the_kernel_found(mode: str, tmp_path: Path) -> None:
    text, checked = results(run_ranks(2, late_work, mode, tmp_path))[0]
    assert text.startswith("rank 1 did not come within the time limit of 0.5 s")
    assert checked == "CollectiveTimeout"


def often(rank: int, exchange: Any, mode: str) -> Any:
    """Communicators that come and go leave nothing open and no memory behind."""
    found = []
    for _ in range(4):
        comm = cuda_comm(rank, exchange, 2, mode)
        gpu = executor_of(comm).gpu
        big = comm.empty(20 << 20, "uint8")  # a segment of its own
        x = comm.empty(100, "uint8")
        cast(Any, x).numpy()[:] = 1
        comm.all_reduce(x)
        part = comm.dup()
        part.all_reduce(x)
        part.close()
        comm.close()
        del big, x, part, comm
        gc.collect()
        segments, opened = cast(Any, gpu)._segments, cast(Any, gpu)._opened
        found.append((len(segments), len(opened), threading.active_count()))
    return found


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_left_behind(mode: str) -> None:
    for found in results(run_ranks(2, often, mode)):
        assert all(opened == 0 and threads <= 2 for _, opened, threads in found), found
        assert max(segments for segments, _, _ in found) <= 2, found
