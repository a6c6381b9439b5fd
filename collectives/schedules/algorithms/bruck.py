"""Bruck's algorithms: in step k everybody sends to the rank 2^k away, for any number of ranks."""

from __future__ import annotations

import numpy as np

from multiring.collectives.schedules.collective import Collective
from multiring.collectives.schedules.compose import backwards, then
from multiring.collectives.schedules.schedule import Schedule, Step

__all__ = ["bruck"]

# all_gather of 5: what rank 0 has       all_to_all of 5: a block for the rank at distance
#   start   0                              3 = 1 + 2 travels in steps 0 and 1, one for
#   k = 0   0 1          from rank 1       the rank at distance 4 only in step 2
#   k = 1   0 1 2 3      from rank 2
#   k = 2   0 1 2 3 4    from rank 4, only what is missing


def bruck(collective: Collective, n_ranks: int) -> Schedule:
    """Build an all_gather, a reduce_scatter, both as an all_reduce, or an all_to_all in ``ceil(lg p)`` steps each.

    Parameters
    ----------
    collective : Collective
        all_gather, reduce_scatter, all_reduce or all_to_all.
    n_ranks : int
        At least 1.

    Notes
    -----
    all_gather, and reduce_scatter as the same backwards: ``ceil(lg p)`` steps, ``(p-1)/p n`` bytes sent per rank, the
    fewest of both for any number of ranks. all_to_all: ``ceil(lg p)`` steps, about ``n/2 lg p`` bytes; for short
    blocks.
    Source: Bruck et al. 1997; Thakur, Rabenseifner and Gropp 2005; the reduction: Träff 2024.
    """
    if collective.name == "all_gather":
        return _all_gather(collective, n_ranks)
    if collective.name == "reduce_scatter":
        return backwards(_all_gather(Collective("all_gather"), n_ranks), collective)
    if collective.name == "all_reduce":
        gather = _all_gather(Collective("all_gather"), n_ranks)
        return then(backwards(gather, Collective("reduce_scatter")), gather, collective=collective)
    return _all_to_all(collective, n_ranks)


def _all_gather(collective: Collective, n_ranks: int) -> Schedule:
    steps = []
    distance = 1
    while distance < n_ranks:
        src, place = (axis.reshape(-1) for axis in np.indices((n_ranks, min(distance, n_ranks - distance))))
        steps.append(Step(src, (src - distance) % n_ranks, (src + place) % n_ranks, False))
        distance *= 2
    return Schedule(collective, n_ranks, n_ranks, tuple(steps), "bruck")


def _all_to_all(collective: Collective, n_ranks: int) -> Schedule:
    steps = []
    distance = 1
    while distance < n_ranks:
        origin, way = (axis.reshape(-1) for axis in np.indices((n_ranks, n_ranks)))
        travels = way & distance != 0
        origin, way = origin[travels], way[travels]
        at = (origin + way % distance) % n_ranks
        steps.append(Step(at, (at + distance) % n_ranks, origin * n_ranks + (origin + way) % n_ranks, False))
        distance *= 2
    return Schedule(collective, n_ranks, n_ranks * n_ranks, tuple(steps), "bruck")
