"""Peers that are late, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.shm.helpers import SOON_S, array, await_mark, await_sleep, caught, join, mark
from tests.support.ranks import results, run_ranks

pytestmark = pytest.mark.shm


def test_a_barrier_lists_all_who_are_missing(tmp_path: Path) -> None:
    def go(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 4)
        if rank >= 2:
            await_mark(tmp_path, "done0")
            await_mark(tmp_path, "done1")
            return ("", "", 0.0), caught(comm.check)
        found = caught(lambda: comm.barrier(timeout=1))
        mark(tmp_path, f"done{rank}")
        return found, caught(comm.barrier)

    answers = results(run_ranks(4, go))
    for rank, (found, later) in enumerate(answers):
        assert later[0] == "CollectiveTimeout"
        for text in (later[1], found[1] or later[1]):
            assert "ranks 2 and 3 did not come within" in text
            assert "time limit of 1 s" in text
            assert "to call barrier" in text
        if rank < 2:
            assert found[0] == "CollectiveTimeout"
            assert 0.9 < found[2] < 1.0 + SOON_S
            assert found[:2] == later[:2]


@pytest.mark.parametrize(
    ("name", "symmetric", "texts"),
    [
        ("all_reduce", False, ["(ring)", "step ", "/4", "for chunk ", "slice ", "over shared memory"]),
        ("all_reduce", True, ["all_reduce(4194304 x float32, op='sum')"]),
    ],
    ids=["step", "symmetric"],
)
def test_a_rank_that_stops_in_the_middle(name: str, symmetric: bool, texts: list[str], tmp_path: Path) -> None:
    """The error tells how far the reporter was: step, chunk, slice, and whom it waits for."""

    def go(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 3, timeout_s=1.0)
        x, out = (array(comm, 4 << 20, "float32", symmetric, rank) for _ in range(2))
        comm.all_reduce(x, out, algorithm="ring", timeout=30)
        mark(tmp_path, f"ready{rank}")

        def for_ever() -> None:
            while True:
                comm.all_reduce(x, out, algorithm="ring")

        found = caught(for_ever)
        return found, caught(comm.barrier)

    def stop(pids: list[int]) -> None:
        for rank in range(3):
            await_mark(tmp_path, f"ready{rank}")
        time.sleep(0.2)
        os.kill(pids[1], signal.SIGSTOP)
        time.sleep(2.5)
        os.kill(pids[1], signal.SIGCONT)

    answers = results(run_ranks(3, go, during=stop))
    for found, later in answers:
        assert found[0] == "CollectiveTimeout"
        assert "did not come within the time limit of 1 s: rank " in found[1]
        assert " waits " in found[1]
        assert later[:2] == found[:2]
        if "from rank" in found[1]:
            for text in texts:
                assert text in found[1]


def test_a_message_that_is_late() -> None:
    def go(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 2)
        x = np.zeros(50, np.float32)
        if rank == 0:
            found = caught(lambda: comm.recv(x, 1, timeout=0.5))
        else:
            time.sleep(1.0)
            found = caught(lambda: comm.send(x, 0))
        return found

    found, other = results(run_ranks(2, go))
    assert found[0] == other[0] == "CollectiveTimeout"
    assert "rank 1 did not come within the time limit of 0.5 s" in found[1]
    assert "rank 0 waits for rank 1 in send or recv of 200 bytes of float32" in found[1]


def test_two_sends_that_wait_for_each_other_name_both(tmp_path: Path) -> None:
    """send/send works up to the eager size, then times out."""

    def go(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 2)
        small, big = np.zeros(1000, np.float32), np.zeros(4 << 20, np.float32)
        comm.send(small, 1 - rank)
        comm.recv(small, 1 - rank)
        return caught(lambda: comm.send(big, 1 - rank, timeout=1.0))

    for found in results(run_ranks(2, go)):
        assert found[0] == "CollectiveTimeout"
        assert "in send or recv of 16777216 bytes of float32" in found[1]


@pytest.mark.parametrize("what", ["barrier", "all_reduce", "step", "recv", "prepared"])
def test_ctrl_c_ends_a_waiting_call(what: str, tmp_path: Path) -> None:
    interrupted_at = 0.0

    def go(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 3)
        x, out = np.zeros(1 << 20, np.float32), np.zeros(1 << 20, np.float32)
        calls: dict[str, Callable[[], Any]] = {
            "barrier": comm.barrier,
            "all_reduce": lambda: comm.all_reduce(x),
            "step": lambda: comm.all_reduce(x, out, algorithm="chain"),
            "recv": lambda: comm.recv(x, 2),
            "prepared": comm.prepare("all_reduce", x, out),
        }
        call = calls[what]
        if what == "all_reduce":  # The short way of a call that was made before.
            call()
        mark(tmp_path, f"ready{rank}")
        if rank == 2 and what != "step":
            await_mark(tmp_path, "done0")
            await_mark(tmp_path, "done1")
            return caught(comm.barrier), time.monotonic(), caught(comm.check)

        def for_ever() -> None:
            while True:
                call()

        found = caught(for_ever)
        when = time.monotonic()
        mark(tmp_path, f"done{rank}")
        return found, when, caught(comm.barrier)

    def interrupt(pids: list[int]) -> None:
        nonlocal interrupted_at
        for rank in range(3):
            await_mark(tmp_path, f"ready{rank}")
        if what == "step":
            time.sleep(0.1)
            os.kill(pids[2], signal.SIGSTOP)
        await_sleep(pids[0])
        await_sleep(pids[1])
        interrupted_at = time.monotonic()
        os.kill(pids[0], signal.SIGINT)
        if what == "step":
            time.sleep(0.5)
            os.kill(pids[2], signal.SIGCONT)

    answers = results(run_ranks(3, go, during=interrupt))
    assert answers[0][0][0] == "KeyboardInterrupt"
    assert answers[0][1] - interrupted_at < 0.5
    assert answers[1][1] - interrupted_at < SOON_S
    for found in (answers[0][2], answers[1][0], answers[1][2], answers[2][0]):
        assert found[0] == "CommunicatorClosed"
        assert "rank 0 aborted the communicator: KeyboardInterrupt" in found[1]


def test_ctrl_c_between_calls_harms_nothing(tmp_path: Path) -> None:
    def go(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 2)
        comm.barrier()
        mark(tmp_path, f"ready{rank}")
        found = caught(lambda: time.sleep(20)) if rank == 0 else None
        comm.barrier()
        comm.close()
        return found

    def interrupt(pids: list[int]) -> None:
        await_mark(tmp_path, "ready0")
        time.sleep(0.1)
        os.kill(pids[0], signal.SIGINT)

    found, _ = results(run_ranks(2, go, during=interrupt))
    assert found[0] == "KeyboardInterrupt"
