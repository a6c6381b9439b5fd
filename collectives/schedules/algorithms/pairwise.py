"""Pairwise exchange: in step k every rank sends to the k-th next and hears from the k-th before, nobody else."""

from __future__ import annotations

import numpy as np

from multiring.collectives.schedules.collective import Collective
from multiring.collectives.schedules.schedule import Schedule, Step

__all__ = ["pairwise"]

# 4 ranks    step 0: 0→1 1→2 2→3 3→0    step 1: 0→2 1→3 2→0 3→1    step 2: 0→3 1→0 2→1 3→2


def pairwise(collective: Collective, n_ranks: int) -> Schedule:
    """Build an all_to_all or reduce_scatter of ``p - 1`` steps in which each rank has one partner each way.

    Parameters
    ----------
    collective : Collective
        all_to_all or reduce_scatter.
    n_ranks : int
        At least 1.

    Notes
    -----
    ``p - 1`` steps, ``(p-1)/p n`` bytes sent per rank: what ``direct`` does at once, in turn, so that no receiver is
    hit by all. For long vectors on networks.
    Source: Thakur, Rabenseifner and Gropp 2005.
    """
    src = np.arange(n_ranks)
    steps = []
    for distance in range(1, n_ranks):
        dst = (src + distance) % n_ranks
        chunk = dst if collective.reduces else src * n_ranks + dst
        steps.append(Step(src, dst, chunk, collective.reduces))
    return Schedule(collective, n_ranks, collective.n_parts(n_ranks), tuple(steps), "pairwise")
