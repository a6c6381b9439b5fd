"""Recursive doubling: partners at distance 1, 2, 4, ... exchange all that they have."""

from __future__ import annotations

import numpy as np

from multiring.collectives.schedules.collective import Collective
from multiring.collectives.schedules.compose import on, then
from multiring.collectives.schedules.schedule import Schedule, Step

__all__ = ["fold_extras", "power_of_two_below", "recursive_doubling"]

#   rank   0   1   2   3        more ranks than a power of two, such as 4 and 5 of 6:
#   d = 1  ╰─▶◀╯   ╰─▶◀╯          first  4 ──▶ 0,  5 ──▶ 1
#   d = 2  ╰─▶──◀──╯   │          then   0 to 3 as usual
#              ╰─▶──◀──╯          last   0 ──▶ 4,  1 ──▶ 5


def recursive_doubling(collective: Collective, n_ranks: int) -> Schedule:
    """Build an all_reduce or all_gather by recursive doubling.

    Parameters
    ----------
    collective : Collective
        all_reduce or all_gather.
    n_ranks : int
        At least 1.

    Notes
    -----
    all_reduce: ``lg p`` steps, ``lg p n`` bytes sent per rank: few steps, for short vectors. all_gather: ``lg p``
    steps, ``(p-1)/p n`` bytes. Other numbers of ranks take two more steps and ``n`` more bytes.
    Source: Thakur, Rabenseifner and Gropp 2005.
    """
    core = power_of_two_below(n_ranks)
    if collective.name == "all_reduce":
        ranks = np.arange(core)
        steps = [Step(ranks, ranks ^ distance, np.zeros_like(ranks), True) for distance in _distances(core)]
        inner = Schedule(collective, core, 1, tuple(steps), "recursive_doubling")
        return fold_extras(inner, collective, n_ranks)
    extra = np.arange(core, n_ranks)
    steps = [Step(extra, extra - core, extra, False)]
    for distance in _distances(core):
        rank, place = np.divmod(np.arange(core * distance), distance)
        # All that the block of `distance` ranks around `rank` owned at the start.
        chunk = rank // distance * distance + place
        rank, chunk = np.concatenate((rank, rank)), np.concatenate((chunk, chunk + core))
        rank, chunk = rank[chunk < n_ranks], chunk[chunk < n_ranks]
        steps.append(Step(rank, rank ^ distance, chunk, False))
    chunk, dst = np.divmod(np.arange(n_ranks * extra.size), max(1, extra.size))
    dst += core
    steps.append(Step(dst[chunk != dst] - core, dst[chunk != dst], chunk[chunk != dst], False))
    return Schedule(collective, n_ranks, n_ranks, tuple(s for s in steps if len(s)), "recursive_doubling")


def power_of_two_below(n_ranks: int) -> int:
    """Return the largest power of two that is at most ``n_ranks``."""
    return 1 << (n_ranks.bit_length() - 1)


def fold_extras(inner: Schedule, collective: Collective, n_ranks: int) -> Schedule:
    """Give an all_reduce of the first ranks to all: the others add theirs before it, and get the sum after it.

    Parameters
    ----------
    inner : Schedule
        An all_reduce of at least half of the ranks.
    collective : Collective
        all_reduce.
    n_ranks : int
        At least ``inner.n_ranks``.
    """
    core, n_chunks = inner.n_ranks, inner.n_chunks
    if core == n_ranks:
        return inner
    chunk, extra = (axis.reshape(-1) for axis in np.indices((n_chunks, n_ranks - core)))
    before = Schedule(collective, n_ranks, n_chunks, (Step(extra + core, extra, chunk, True),))
    after = Schedule(collective, n_ranks, n_chunks, (Step(extra, extra + core, chunk, False),))
    middle = on(inner, range(core), np.arange(n_chunks).reshape(-1, 1), n_ranks, n_chunks)
    return then(before, middle, after, collective=collective, algorithm=inner.algorithm)


def _distances(core: int) -> list[int]:
    return [1 << bit for bit in range(core.bit_length() - 1)]
