"""Binomial trees: whoever has it, gives it on; the number of those who have it doubles in each step."""

from __future__ import annotations

import numpy as np

from multiring.collectives.schedules.collective import Collective
from multiring.collectives.schedules.compose import backwards, from_root, then
from multiring.collectives.schedules.schedule import Schedule, Step

__all__ = ["binomial"]

#   0 ────────────▶ 4          step 0    ranks counted from the root
#   0 ────▶ 2       4 ───▶ 6   step 1    a scatter sends each rank's whole subtree:
#   0 ▶ 1   2 ▶ 3   4 ▶ 5      step 2    0 gives 4 the chunks 4 to 6, and 2 the chunks 2 and 3


def binomial(collective: Collective, n_ranks: int) -> Schedule:
    """Build a broadcast, reduce, scatter, gather, or an all_reduce of the first two, on a binomial tree.

    Parameters
    ----------
    collective : Collective
        broadcast, reduce, scatter, gather or all_reduce.
    n_ranks : int
        At least 1.

    Notes
    -----
    ``ceil(lg p)`` steps, ``n`` bytes in each for broadcast and reduce; scatter and gather send ``(p-1)/p n`` bytes from
    or to the root in all. all_reduce is reduce and broadcast. For short vectors.
    Source: Thakur, Rabenseifner and Gropp 2005.
    """
    if collective.name == "all_reduce":
        down = _tree(Collective("broadcast"), n_ranks)
        return then(backwards(down, Collective("reduce")), down, collective=collective)
    opposite = {"reduce": "broadcast", "gather": "scatter"}.get(collective.name)
    if opposite is None:
        return from_root(_tree(Collective(collective.name), n_ranks), collective.root)
    up = backwards(_tree(Collective(opposite), n_ranks), Collective(collective.name))
    return from_root(up, collective.root)


def _tree(collective: Collective, n_ranks: int) -> Schedule:
    shares = collective.name == "scatter"
    steps = []
    distance = 1 << max(0, (n_ranks - 1).bit_length() - 1)
    while distance and n_ranks > 1:
        src = np.arange(0, n_ranks - distance, 2 * distance)
        dst, chunk = src + distance, np.zeros_like(src)
        if shares:
            dst, chunk = ((src + distance)[:, None] + np.zeros(distance, dtype=np.int64)), np.arange(distance)
            chunk = dst + chunk
            inside = chunk < n_ranks
            src = (dst - distance)[inside]
            dst, chunk = dst[inside], chunk[inside]
        steps.append(Step(src, dst, chunk, False))
        distance //= 2
    return Schedule(collective, n_ranks, n_ranks if shares else 1, tuple(steps), "binomial")
