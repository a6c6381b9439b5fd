"""Timing the points of a design on one rank, in the way that benchmarks time: fresh inputs, all ranks in step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import numpy as np

from multiring.bench import machine
from multiring.bench.contender import Ours
from multiring.bench.meeting import Meeting
from multiring.bench.timing import Trial, measure_ns, slowest_us
from multiring.bench.tune_points import Point, rounds_for
from multiring.bench.world import World
from multiring.errors import MultiringError
from multiring.kernels.dtypes import numpy_dtype

__all__ = ["have_own_cores", "measure_points"]

WARMUP = 2


def have_own_cores(world: World, binding: str) -> bool:
    """Tell whether each rank of a world has a core of its own; all ranks ask at the same time.

    Parameters
    ----------
    world : World
    binding : str
        What :func:`~multiring.bench.machine.bind_to_core` said here.
    """
    # Two hosts of a lab, or two ranks of a host, may have been given one core.
    places = world.gather_text(f"{machine.boot()} {binding}")
    return all(" core" in place for place in places) and len(set(places)) == len(places)


def measure_points(
    world: World,
    groups: Iterable[tuple[Point, ...]],
    quick: bool = False,
    alone: bool = True,
    barrier: Callable[[], object] | None = None,
    done: Callable[[int], object] = lambda n_points: None,
) -> list[tuple[Point, float]]:
    """Time every point; all ranks make the same call.

    Parameters
    ----------
    world : World
    groups : iterable of tuple of Point
        Each is measured interleaved.
    quick : bool
        Fewer rounds.
    alone : bool
        Whether each rank has a core of its own.
    barrier : callable, optional
        For between calls; one in shared memory otherwise.
    done : callable
        Told after each group how many points it had.

    Returns
    -------
    list of (Point, float)
        Microseconds: the median over rounds of the slowest rank's time; the same on all ranks.
    """
    if barrier is None:
        barrier = world.barrier
        with suppress(MultiringError):
            barrier = Meeting(world, 0, spin=alone).barrier
    groups = list(groups)
    most = max((_bytes_of(point, world.size) for group in groups for point in group), default=0)
    memory = {True: _pair(lambda n: world.comm.empty((n,), "uint8"), most), False: _pair(_ordinary, most)}
    elsewhere = np.zeros(2 * most, np.uint8)
    contenders: dict[str | None, Ours] = {}
    found: list[tuple[Point, float]] = []
    for group in groups:
        trials = []
        for point in group:
            name = point.algorithm if point.named else None
            ours = contenders.setdefault(name, Ours(world.comm, name))
            trials.append(_trial(world, ours, point, memory[point.symmetric], elsewhere))
        warmup = WARMUP if group[0].nbytes <= 1 << 20 else 1
        taken = measure_ns(trials, rounds_for(group[0].nbytes, quick), warmup, barrier)
        by_rank = world.gather(taken).reshape(world.size, *taken.shape)
        medians, _ = slowest_us(by_rank)
        found += zip(group, medians.tolist(), strict=True)
        done(len(group))
    return found


def _trial(world: World, ours: Ours, point: Point, memory: tuple[Any, Any], elsewhere: Any) -> Trial:
    case = point.case(world.size)
    dtype = numpy_dtype(case.dtype)
    send = memory[0][: case.send_count * dtype.itemsize].view(dtype)
    receive = memory[1][: case.receive_count * dtype.itemsize].view(dtype)
    arrays = case.split(world.rank, send, receive) if point.in_place else (send, receive)
    call = None if arrays is None else ours.bind(case, *arrays, point.in_place)
    if arrays is None or call is None:
        raise MultiringError(f"tune: {point} cannot be called; wanted only calls that exist")
    # As in a benchmark: who sends nothing has nothing to rewrite.
    sends = case.collective not in ("broadcast", "scatter") or world.rank == case.root
    source = arrays[0] if sends else arrays[0][:0]
    others = elsewhere[: send.nbytes + receive.nbytes]

    def rewrite(k: int) -> None:
        # Between two calls a program touches other memory, and a benchmark the other arrays of its line.
        others[...] = k % 2
        source[...] = k % 2

    return Trial(str(point), rewrite, call, None, point.in_place)


def _bytes_of(point: Point, n_ranks: int) -> int:
    case = point.case(n_ranks)
    return max(case.send_count, case.receive_count) * case.dtype.itemsize


def _pair(allocate: Callable[[int], Any], nbytes: int) -> tuple[Any, Any]:
    pair = allocate(nbytes), allocate(nbytes)
    for array in pair:
        array[...] = 0  # every page is there before anything is timed
    return pair


def _ordinary(nbytes: int) -> Any:
    """Return ordinary memory that begins with a cache line."""
    whole = np.empty(nbytes + 64, np.uint8)
    skip = -whole.ctypes.data % 64
    return whole[skip : skip + nbytes]
