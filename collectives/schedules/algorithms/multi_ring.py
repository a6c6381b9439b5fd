"""Several rings at once, each with its share of every chunk: all links of a machine work, in both directions."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any

import numpy as np

from multiring.collectives.schedules.algorithms.ring import ring, ring_order
from multiring.collectives.schedules.collective import Collective
from multiring.collectives.schedules.compose import merge, on
from multiring.collectives.schedules.schedule import Schedule
from multiring.errors import ArgumentError, ScheduleError

__all__ = ["bidirectional_ring", "multi_ring", "parse_n_rings"]

# bidirectional:   0 ⇄ 1 ⇄ 2 ⇄ 3 ⇄ 0     first half of each chunk to the right, second half to the left
# strides 1, 2 of 5 ranks:   0 1 2 3 4 0   and   0 2 4 1 3 0: no link twice

MAX_DEFAULT_RINGS = 4


def multi_ring(
    collective: Collective,
    n_ranks: int,
    orders: Sequence[Sequence[int]] | None = None,
    n_rings: int | None = None,
    algorithm: str = "multi_ring",
) -> Schedule:
    """Build an all_reduce, reduce_scatter or all_gather on several rings at once.

    Parameters
    ----------
    collective : Collective
        all_reduce, reduce_scatter or all_gather.
    n_ranks : int
        At least 1.
    orders : sequence of ring orders, optional
        One for each ring, such as those that a topology gives. Otherwise rings of different strides, which share no
        link: for machines where all ranks are wired to all.
    n_rings : int, optional
        How many strides, where no orders are given; otherwise up to 4 that exist.
    algorithm : str
        The name that the schedule carries.

    Raises
    ------
    ScheduleError
        If an order does not name every rank once, or there are not so many strides.

    Notes
    -----
    The steps and bytes of one ring; each ring carries its share, so k rings on separate links take 1/k of the time.
    """
    if orders is None:
        orders = _strided(n_ranks, n_rings)
    k = len(orders)
    if not k:
        raise ScheduleError(
            f"{algorithm}: got no ring orders, wanted at least one: multi_ring:topology needs a topology"
        )
    rings = [
        on(
            ring(collective, n_ranks, order=ring_order(order, n_ranks).tolist()),
            range(n_ranks),
            np.arange(n_ranks).reshape(-1, 1) * k + index,
            n_ranks,
            n_ranks * k,
        )
        for index, order in enumerate(orders)
    ]
    return merge(*rings, collective=collective, algorithm=algorithm)


def bidirectional_ring(collective: Collective, n_ranks: int, order: Sequence[int] | None = None) -> Schedule:
    """Build an all_reduce, reduce_scatter or all_gather on one ring used in both directions.

    Parameters
    ----------
    collective : Collective
        all_reduce, reduce_scatter or all_gather.
    n_ranks : int
        At least 1.
    order : sequence of int, optional
        The ranks in ring order; 0, 1, 2, ... otherwise.

    Notes
    -----
    The steps and bytes of a ring, half of them each way: twice as fast where links carry both directions at once.
    """
    there = ring_order(order, n_ranks)
    both = [there.tolist(), there[::-1].tolist()]
    return multi_ring(collective, n_ranks, orders=both, algorithm="bidirectional_ring")


def parse_n_rings(text: str) -> dict[str, Any]:
    """Read what follows the colon in ``"multi_ring:3"``.

    ``"topology"`` is for those who know one: they give its orders instead.
    """
    if text == "topology":
        return {"orders": ()}
    if not text.isdecimal() or not int(text):
        raise ArgumentError(f"got {text!r} after its colon, wanted a number of rings, or topology")
    return {"n_rings": int(text)}


def _strided(n_ranks: int, n_rings: int | None) -> list[list[int]]:
    if n_ranks == 1:
        return [[0]] * (n_rings or 1)
    strides = [stride for stride in range(1, n_ranks) if gcd(stride, n_ranks) == 1]
    if n_rings is not None and n_rings > len(strides):
        raise ScheduleError(
            f"multi_ring: got {n_rings} rings, wanted at most {len(strides)}: {n_ranks} ranks have no more"
        )
    return [
        [index * stride % n_ranks for index in range(n_ranks)] for stride in strides[: n_rings or MAX_DEFAULT_RINGS]
    ]
