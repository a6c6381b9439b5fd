"""Timing a call that moves data between cores, without fooling oneself.

A call repeated on buffers that nobody touched moves nothing: the lines already lie where they are wanted. So every rank
rewrites its input before each call, untimed, and then all ranks meet, untimed. Each call is timed by itself, on each
rank; the time of an iteration is that of the slowest rank, and the result is the median over iterations. All contenders
take their turns in the same run, in an order that rotates.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

__all__ = ["Trial", "iterations_for", "measure_ns", "slowest_us", "timer_overhead_ns"]


@dataclass(frozen=True, slots=True)
class Trial:
    """One contender in one half of a line.

    Attributes
    ----------
    name : str
    rewrite : callable
        ``rewrite(k)``: writes the rank's input for iteration ``k``, untimed.
    call : callable
        What is timed.
    verify : callable or None
        ``verify(k)``: called after the last iteration's call, untimed.
    in_place : bool
        Which half it belongs to.
    """

    name: str
    rewrite: Callable[[int], object]
    call: Callable[[], object]
    verify: Callable[[int], object] | None = None
    in_place: bool = False


def iterations_for(size_bytes: int) -> int:
    """Return how many iterations a size gets without ``-n``: more where calls are short."""
    if size_bytes <= 8 << 10:
        return 400
    if size_bytes <= 512 << 10:
        return 100
    return 40 if size_bytes <= 8 << 20 else 20


def timer_overhead_ns(clock: Callable[[], int] = perf_counter_ns, samples: int = 1001) -> int:
    """Return what two readings of the clock with nothing between them differ by (median)."""
    return int(np.median([-clock() + clock() for _ in range(samples)]))


def measure_ns(
    trials: Sequence[Trial],
    iterations: int,
    warmup: int,
    barrier: Callable[[], object],
    clock: Callable[[], int] = perf_counter_ns,
) -> NDArray[np.float64]:
    """Time every trial on this rank.

    Parameters
    ----------
    trials : sequence of Trial
        The same ones in the same order on every rank.
    iterations, warmup : int
        Timed rounds, and rounds before them that are not.
    barrier : callable
        Called after each rewriting and before each call, untimed.
    clock : callable
        Nanoseconds.

    Returns
    -------
    ndarray of float64, shape (trials, iterations)
        Nanoseconds, without the clock's own time.
    """
    taken = np.zeros((len(trials), iterations), np.int64)
    overhead = timer_overhead_ns(clock)
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        for k in range(-warmup, iterations):
            for turn in range(len(trials)):
                index = (turn + k) % len(trials)
                trial = trials[index]
                trial.rewrite(k)
                call = trial.call
                barrier()
                start = clock()
                call()
                end = clock()
                if k >= 0:
                    taken[index, k] = end - start
                if k == iterations - 1 and trial.verify is not None:
                    trial.verify(k)
    finally:
        if was_collecting:
            gc.enable()
    return np.maximum(taken - overhead, 1).astype(np.float64)


def slowest_us(by_rank_ns: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the median and the least over iterations of the slowest rank's time.

    Parameters
    ----------
    by_rank_ns : ndarray, shape (ranks, trials, iterations)

    Returns
    -------
    median, fastest : ndarray, shape (trials,)
        Microseconds.
    """
    slowest_rank = by_rank_ns.max(axis=0) / 1e3
    return np.asarray(np.median(slowest_rank, axis=-1), dtype=np.float64), slowest_rank.min(axis=-1)
