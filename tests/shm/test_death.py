"""Peers that are killed, stopped, or leave: what the survivors get, and how soon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multiring.collectives.communicator import Communicator
from multiring.collectives.drivers.control import Waiting
from tests.shm.helpers import SOON_S, array, await_mark, await_sleep, caught, join, mark
from tests.support.ranks import Outcome, results, run_ranks

pytestmark = pytest.mark.shm

VICTIM = 2
BIG = 2 << 20


def for_ever(call: Callable[[], Any]) -> None:
    while True:
        call()


def collective(name: str, symmetric: bool, count: int = BIG, **options: Any) -> Callable[[Communicator], None]:
    def go(comm: Communicator) -> None:
        x, out = (array(comm, count, "float32", symmetric, comm.rank) for _ in range(2))
        for_ever(lambda: getattr(comm, name)(x, out, **options))

    return go


def ring_of_messages(symmetric: bool) -> Callable[[Communicator], None]:
    def go(comm: Communicator) -> None:
        x, out = (array(comm, BIG, "float32", symmetric, comm.rank) for _ in range(2))
        for_ever(lambda: comm.send_recv(x, (comm.rank + 1) % comm.size, out, (comm.rank - 1) % comm.size))

    return go


def different_waits(comm: Communicator) -> None:
    """Rank 0 waits for rank 1, rank 1 for the victim, rank 3 for all."""
    x = np.zeros(8, np.float32)
    if comm.rank == VICTIM:
        time.sleep(3600)
    if comm.rank == 3:
        comm.barrier()
    comm.recv(x, comm.rank + 1)


def never_calls(comm: Communicator) -> None:
    if comm.rank == VICTIM:
        time.sleep(3600)
    comm.barrier()


def rounds_of_barriers(comm: Communicator) -> None:
    for_ever(comm.barrier)


GOING = {
    "arrival": never_calls,
    "arrivals": rounds_of_barriers,
    "eager": collective("all_reduce", False, 100),
    "step-chain": collective("all_reduce", False, algorithm="chain"),
    "step-ring": collective("all_reduce", False, algorithm="ring"),
    "step-direct": collective("all_reduce", False),
    "exit": collective("all_reduce", True),
    "all_to_all": collective("all_to_all", True),
    "messages": ring_of_messages(False),
    "messages-symmetric": ring_of_messages(True),
    "different": different_waits,
}


def body(rank: int, exchange: Any, going: str, waiting: Waiting | None, folder: Path) -> Any:
    comm = join(rank, exchange, 4, timeout_s=60.0, waiting=waiting)
    mark(folder, f"ready{rank}")
    first = caught(lambda: GOING[going](comm))
    when = time.monotonic()
    again = caught(comm.barrier)
    third = caught(comm.check)
    heap = comm.empty(4, "float32")  # The heap lives on, and hands out other memory.
    comm.close()
    return first, again, third, when, heap.size


def survivors(outcomes: list[Outcome]) -> list[Any]:
    assert outcomes[VICTIM].signal == signal.SIGKILL
    return results([o for rank, o in enumerate(outcomes) if rank != VICTIM])


@pytest.mark.parametrize("stopped", [True, False], ids=["others-asleep", "running"])
@pytest.mark.parametrize("going", GOING)
def test_a_killed_rank_is_named_to_all_others_soon(going: str, stopped: bool, tmp_path: Path) -> None:
    killed_at = 0.0

    def kill(pids: list[int]) -> None:
        nonlocal killed_at
        for rank in range(4):
            await_mark(tmp_path, f"ready{rank}")
        time.sleep(0.1)
        if stopped:
            os.kill(pids[VICTIM], signal.SIGSTOP)
            for rank, pid in enumerate(pids):
                if rank != VICTIM:
                    await_sleep(pid)
        os.kill(pids[VICTIM], signal.SIGKILL)
        killed_at = time.monotonic()

    waiting = Waiting(spins=0, yields=0) if stopped else None
    for first, again, third, when, size in survivors(run_ranks(4, body, going, waiting, tmp_path, during=kill)):
        assert first[0] == "PeerLostError"
        assert f"rank {VICTIM} on {os.uname().nodename} ended while it was needed" in first[1]
        assert when - killed_at < SOON_S
        assert again[:2] == third[:2] == first[:2]
        assert size == 4


def test_a_late_rank_that_would_map_a_dead_ones_array(tmp_path: Path) -> None:
    """Rank 2 publishes its symmetric arrays and dies; rank 0 comes to the call after that."""

    def late(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 3)
        x, out = (array(comm, BIG, "float32", True, rank) for _ in range(2))
        mark(tmp_path, f"ready{rank}")
        if rank == 0:
            await_mark(tmp_path, "killed")
        return caught(lambda: comm.all_reduce(x, out)), caught(comm.barrier)

    def kill(pids: list[int]) -> None:
        await_mark(tmp_path, "ready1")
        await_mark(tmp_path, "ready2")
        await_sleep(pids[1])
        await_sleep(pids[2])
        # Not rank 1's wait for rank 0 but rank 0's own look must find the end: rank 1 stands still meanwhile.
        os.kill(pids[1], signal.SIGSTOP)
        os.kill(pids[2], signal.SIGKILL)
        mark(tmp_path, "killed")
        time.sleep(0.5)
        os.kill(pids[1], signal.SIGCONT)

    for first, again in survivors(run_ranks(3, late, during=kill)):
        assert first[0] == "PeerLostError"
        assert f"rank {VICTIM} on {os.uname().nodename} ended" in first[1]
        assert again[:2] == first[:2]


@pytest.mark.parametrize("symmetric", [False, True], ids=["ordinary", "symmetric"])
def test_a_stopped_rank_goes_on_where_it_was(symmetric: bool, tmp_path: Path) -> None:
    def go(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 3)
        x, out = (array(comm, 1 << 18, "float32", symmetric, rank + 1) for _ in range(2))
        wrong = 0
        mark(tmp_path, f"ready{rank}")
        for step in range(150):
            x[:] = rank + step
            comm.all_reduce(x, out)
            wrong += int((out != 3 + 3 * step).sum())
        comm.close()
        return wrong

    def stop_and_go(pids: list[int]) -> None:
        for rank in range(3):
            await_mark(tmp_path, f"ready{rank}")
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.1)
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.02)

    assert results(run_ranks(3, go, during=stop_and_go)) == [0, 0, 0]


# --- leaving ---------------------------------------------------------------------------------------------------------


def steps(rank: int, exchange: Any, closes: bool) -> Any:
    """Rank 1 does two steps, the others three."""
    comm = join(rank, exchange, 3)
    x = np.ones(1000, np.float32)
    for _ in range(2):
        comm.all_reduce(x)
    if rank == 1:
        if closes:
            comm.close()
        return None
    found = caught(lambda: comm.all_reduce(x))
    return found, caught(comm.barrier)


@pytest.mark.parametrize("closes", [True, False])
def test_a_rank_that_leaves_early_is_named(closes: bool) -> None:
    answers = results(run_ranks(3, steps, closes))
    for found, again in (answers[0], answers[2]):
        assert found[2] < SOON_S
        assert again[:2] == found[:2]
        assert found[0] == ("CommunicatorClosed" if closes else "PeerLostError")
        assert ("rank 1 closed the communicator or exited" if closes else "rank 1 on") in found[1]


@pytest.mark.parametrize("closes", [True, False])
def test_a_message_from_a_rank_that_left_does_not_come(closes: bool, tmp_path: Path) -> None:
    """What it sent before it left is received; the next receive says that it left."""

    def go(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 3)
        x = np.full(100, rank, np.float32)
        if rank == 1:
            comm.send(x, 0)
            if closes:
                comm.close()
                time.sleep(1.0)  # Still alive: its end is not what tells.
            return None
        if rank == 2:
            await_mark(tmp_path, "received")
            return None, 1.0, caught(comm.barrier)
        time.sleep(0.2)
        comm.recv(x, 1)
        mark(tmp_path, "received")
        return caught(lambda: comm.recv(x, 1)), float(x[0]), caught(comm.barrier)

    answers = results(run_ranks(3, go))
    found, value, later = answers[0]
    assert value == 1.0
    assert found[0] == ("CommunicatorClosed" if closes else "PeerLostError")
    assert found[2] < SOON_S
    assert "rank 1" in found[1]
    assert later[:2] == found[:2]


@pytest.mark.parametrize("symmetric", [False, True], ids=["ordinary", "symmetric"])
@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "broadcast", "gather"])
def test_a_rank_that_exits_after_its_last_call_harms_nobody(name: str, symmetric: bool) -> None:
    """Many times, since the window is small: rank 1 exits at once, the others go on as long as they like."""

    def go(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 3, waiting=Waiting(spins=0, yields=0, delay=128, seed=rank))
        x = array(comm, 30_000, "float32", symmetric, 1)
        out = array(comm, 30_000 * (1 if name in ("all_reduce", "broadcast") else 3), "float32", symmetric, -7)
        if name == "broadcast":
            comm.broadcast(x, 1, out)
        elif name == "gather":
            comm.gather(x, out if rank == 0 else None, 0)
        else:
            getattr(comm, name)(x, out)
        return float(out[-1])

    for _ in range(3):
        answers = results(run_ranks(3, go))
        assert answers[0] == (3.0 if name == "all_reduce" else 1.0)
        if name != "gather":
            assert len(set(answers)) == 1


def test_a_rank_that_sends_and_exits_harms_nobody() -> None:
    def go(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 2)
        x = np.full(1000, 5.0, np.float32)
        if rank == 0:
            comm.send(x, 1)
            return 5.0
        time.sleep(0.5)
        out = np.zeros(1000, np.float32)
        comm.recv(out, 0)
        return float(out[-1])

    assert results(run_ranks(2, go)) == [5.0, 5.0]


def test_abort_reaches_those_who_wait(tmp_path: Path) -> None:
    waits: dict[int, Callable[[Communicator, Any], Any]] = {
        0: lambda c, x: c.barrier(),
        1: lambda c, x: c.recv(x, 0),
        2: lambda c, x: c.all_reduce(x),
    }

    def go(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 4, waiting=Waiting(spins=0, yields=0))
        x = np.zeros(10, np.float32)
        if rank < 3:
            mark(tmp_path, f"ready{rank}")
            found = caught(lambda: waits[rank](comm, x))
            when = time.monotonic()
        else:
            for other in range(3):
                await_mark(tmp_path, f"ready{other}")
            time.sleep(0.3)
            when = time.monotonic()
            comm.abort("loss is nan")
            found = caught(comm.barrier)
            comm.abort("again")
        return found, when, caught(comm.check)

    answers = results(run_ranks(4, go))
    for found, when, later in answers:
        assert found[:2] == later[:2]
        assert found[0] == "CommunicatorClosed"
        assert "rank 3 aborted the communicator: loss is nan" in found[1]
        assert when - answers[3][1] < SOON_S


def test_abort_by_another_thread_ends_the_waiting_call() -> None:
    def go(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 2)
        if rank == 0:
            threading.Timer(0.3, comm.abort, ["watchdog"]).start()
            return caught(comm.barrier), caught(comm.check)
        time.sleep(0.1)
        x = np.zeros(1 << 22, np.float32)
        return caught(lambda: comm.recv(x, 0)), caught(comm.barrier)

    for found, again in results(run_ranks(2, go)):
        assert found[0] == "CommunicatorClosed"
        assert "rank 0 aborted the communicator: watchdog" in found[1]
        assert found[2] < SOON_S
        assert again[:2] == found[:2]


PROGRAM = """
import sys
import numpy as np
import multiring as mr

comm = mr.init(timeout=20)
part = comm.dup()
which = {"whole": comm, "part": part}[sys.argv[1]]
which.barrier()
if comm.rank == 1:
    sys.exit(0)  # Without close(), as scripts do.
try:
    which.all_reduce(np.ones(4))
except mr.CommunicatorClosed as error:
    print("CAUGHT", error)
"""


@pytest.mark.parametrize("which", ["whole", "part"])
def test_a_script_that_ends_early_closes_all_its_communicators(which: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "multiring", "launch", "-n", "2", "--", sys.executable, str(program), which],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "CAUGHT rank 1 closed the communicator or exited while rank 0 called all_reduce(4" in done.stdout


def test_abort_after_a_peer_was_killed(tmp_path: Path) -> None:
    def go(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 3)
        if rank == VICTIM:
            mark(tmp_path, "ready")
            time.sleep(3600)
        await_mark(tmp_path, "killed")
        begun = time.monotonic()
        comm.abort("giving up")
        comm.close()
        return time.monotonic() - begun

    def kill(pids: list[int]) -> None:
        await_mark(tmp_path, "ready")
        os.kill(pids[VICTIM], signal.SIGKILL)
        mark(tmp_path, "killed")

    assert all(s < SOON_S for s in survivors(run_ranks(3, go, during=kill)))
