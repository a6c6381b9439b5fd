"""What the tests of failure share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import multiring as mr
from multiring.collectives.communicator import Communicator
from multiring.collectives.drivers.control import Layout, Waiting
from multiring.collectives.executor import Executor

SOON_S = 2.0
"""The contract's bound for a peer's death, an abort, and their like."""


def join(
    rank: int,
    exchange: Any,
    size: int,
    *,
    timeout_s: float = 30.0,
    waiting: Waiting | None = None,
    layout: Layout | None = None,
) -> Communicator:
    """Return this rank's communicator."""
    return Communicator(Executor(rank, size, exchange, timeout_s=timeout_s, waiting=waiting, layout=layout))


def caught(function: Callable[[], Any]) -> tuple[str, str, float]:
    """Return (type, text, seconds until) of the error that a function raises; two empty texts for none."""
    begun = time.monotonic()
    try:
        function()
    except (mr.MultiringError, KeyboardInterrupt) as error:
        return type(error).__name__, str(error), time.monotonic() - begun
    return "", "", time.monotonic() - begun


def array(comm: Communicator, count: int, dtype: Any, symmetric: bool, value: float) -> NDArray[Any]:
    """Return an array full of one value."""
    made: NDArray[Any] = comm.empty(count, dtype) if symmetric else np.empty(count, dtype)
    made[:] = value
    return made


def mark(folder: Path, name: str) -> None:
    """Tell the other processes that this one has come so far."""
    (folder / name).touch()


def await_mark(folder: Path, name: str, limit_s: float = 60.0) -> None:
    """Wait for another process's :func:`mark`."""
    end = time.monotonic() + limit_s
    while not (folder / name).exists():
        if time.monotonic() > end:
            raise TimeoutError(f"{name} did not come within {limit_s} s")
        time.sleep(0.002)


def await_sleep(pid: int, limit_s: float = 30.0) -> None:
    """Wait until a process sleeps, as one does that waits for its peers by futex."""
    end = time.monotonic() + limit_s
    asleep = 0
    while asleep < 5:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
        asleep = asleep + 1 if state == b"S" else 0
        if time.monotonic() > end:
            raise TimeoutError(f"process {pid} is busy still after {limit_s} s")
        time.sleep(0.005)


def descriptors() -> int:
    """Return how many file descriptors this process has open."""
    return len(os.listdir("/proc/self/fd")) - 1  # noqa: PTH208
