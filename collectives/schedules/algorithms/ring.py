"""Ring algorithms: each rank only sends to the next one in the ring."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.schedules.algorithms.chain import chain
from multiring.collectives.schedules.collective import Collective
from multiring.collectives.schedules.compose import then
from multiring.collectives.schedules.schedule import Schedule, Step
from multiring.errors import ScheduleError

__all__ = ["ring", "ring_order"]

# positions  0 ──▶ 1 ──▶ 2 ──▶ 3 ─╮     reduce_scatter: the sum for position j starts at j + 1, goes round,
#            ▲                    │     gains a rank at each stop and is whole when it reaches j.
#            ╰────────────────────╯     all_gather: the chunk of position j starts at j and goes round.


def ring(collective: Collective, n_ranks: int, order: Sequence[int] | None = None) -> Schedule:
    """Build a collective on one ring.

    Parameters
    ----------
    collective : Collective
        all_reduce, reduce_scatter or all_gather; broadcast and reduce, as chains that follow the ring from, or to, the
        root, with one chunk for each rank under way at once.
    n_ranks : int
        At least 1.
    order : sequence of int, optional
        The ranks in ring order; 0, 1, 2, ... otherwise. It changes who talks to whom, never who owns what.

    Raises
    ------
    ScheduleError
        If the order does not name every rank once.

    Notes
    -----
    all_reduce: ``2 (p-1)`` steps, ``2 (p-1)/p n`` bytes sent per rank, which no algorithm can better.
    Source: Patarasuk and Yuan 2009; Thakur, Rabenseifner and Gropp 2005.
    """
    at = ring_order(order, n_ranks)
    if collective.name == "reduce_scatter":
        return _reduce_scatter(collective, at)
    if collective.name == "all_gather":
        return _all_gather(collective, at)
    if collective.name == "all_reduce":
        halves = _reduce_scatter(Collective("reduce_scatter"), at), _all_gather(Collective("all_gather"), at)
        return then(*halves, collective=collective)
    # The root opens a broadcast and closes a reduce.
    turn = int(np.flatnonzero(at == collective.root)[0]) + (collective.name == "reduce")
    return chain(collective, n_ranks, order=np.roll(at, -turn).tolist(), n_chunks=n_ranks, algorithm="ring")


def ring_order(order: Sequence[int] | None, n_ranks: int) -> NDArray[np.int64]:
    """Return a ring order as an array, checked."""
    at = np.arange(n_ranks) if order is None else np.asarray(order, dtype=np.int64)
    if at.shape != (n_ranks,) or not np.array_equal(np.sort(at), np.arange(n_ranks)):
        raise ScheduleError(f"ring: got order {at.tolist()}, wanted each of the ranks 0 to {n_ranks - 1} once")
    return at


def _reduce_scatter(collective: Collective, at: NDArray[np.int64]) -> Schedule:
    n, position = len(at), np.arange(len(at))
    steps = [Step(at, np.roll(at, -1), at[(position - 1 - step) % n], True) for step in range(n - 1)]
    return Schedule(collective, n, n, tuple(steps), "ring")


def _all_gather(collective: Collective, at: NDArray[np.int64]) -> Schedule:
    n, position = len(at), np.arange(len(at))
    steps = [Step(at, np.roll(at, -1), at[(position - step) % n], False) for step in range(n - 1)]
    return Schedule(collective, n, n, tuple(steps), "ring")
