"""Direct algorithms: every rank reads what it needs from where it lies, so sums round once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.schedules.collective import Collective
from multiring.collectives.schedules.compose import then
from multiring.collectives.schedules.schedule import Schedule, Step

__all__ = ["direct", "one_shot"]

# one_shot all_reduce             direct (two-shot) all_reduce
# every rank reads everything     rank r reduces chunk r        ...and all copy it
#   0 ⇄ 1                           0:[c0+]  1: c1  2: c2         0:[c0 c1 c2]
#   ⇅ ⤫ ⇅                           0: c0  1:[c1+]  2: c2         1:[c0 c1 c2]
#   2 ⇄ 3                           0: c0  1: c1  2:[c2+]         2:[c0 c1 c2]


def direct(collective: Collective, n_ranks: int) -> Schedule:
    """Build any collective from direct reads: two steps where there is a sum to share, one elsewhere.

    Parameters
    ----------
    collective : Collective
        Any.
    n_ranks : int
        At least 1.

    Notes
    -----
    all_reduce: 2 steps, ``2 (p-1)/p n`` bytes received per rank, one rounding. Where all ranks reach each other's
    memory it moves as little as a ring in 2 steps instead of ``2 (p-1)``.
    """
    return _BUILDERS[collective.name](collective, n_ranks)


def one_shot(collective: Collective, n_ranks: int) -> Schedule:
    """Build an all_reduce, or a reduce, of one step: whoever wants the sum reads the whole vector of every rank.

    Parameters
    ----------
    collective : Collective
        all_reduce or reduce.
    n_ranks : int
        At least 1.

    Notes
    -----
    1 step, ``(p-1) n`` bytes received, one rounding: the fewest steps, and so the fastest for short vectors.
    """
    if collective.name == "reduce":
        src = _others(collective.root, n_ranks)
        step = Step(src, np.full_like(src, collective.root), np.zeros_like(src), True)
    else:
        src, dst = _pairs(n_ranks)
        step = Step(src, dst, np.zeros_like(src), True)
    return _schedule(collective, n_ranks, 1, step, algorithm="one_shot")


def _reduce_scatter(collective: Collective, n_ranks: int) -> Schedule:
    src, dst = _pairs(n_ranks)
    return _schedule(collective, n_ranks, n_ranks, Step(src, dst, dst, True))


def _all_gather(collective: Collective, n_ranks: int) -> Schedule:
    src, dst = _pairs(n_ranks)
    return _schedule(collective, n_ranks, n_ranks, Step(src, dst, src, False))


def _all_reduce(collective: Collective, n_ranks: int) -> Schedule:
    shares = _reduce_scatter(Collective("reduce_scatter"), n_ranks)
    return then(shares, _all_gather(Collective("all_gather"), n_ranks), collective=collective)


def _reduce(collective: Collective, n_ranks: int) -> Schedule:
    shares = _reduce_scatter(Collective("reduce_scatter"), n_ranks)
    return then(shares, _gather(Collective("gather", collective.root), n_ranks), collective=collective)


def _broadcast(collective: Collective, n_ranks: int) -> Schedule:
    dst = _others(collective.root, n_ranks)
    return _schedule(collective, n_ranks, 1, Step(np.full_like(dst, collective.root), dst, np.zeros_like(dst), False))


def _gather(collective: Collective, n_ranks: int) -> Schedule:
    src = _others(collective.root, n_ranks)
    return _schedule(collective, n_ranks, n_ranks, Step(src, np.full_like(src, collective.root), src, False))


def _scatter(collective: Collective, n_ranks: int) -> Schedule:
    dst = _others(collective.root, n_ranks)
    return _schedule(collective, n_ranks, n_ranks, Step(np.full_like(dst, collective.root), dst, dst, False))


def _all_to_all(collective: Collective, n_ranks: int) -> Schedule:
    src, dst = _pairs(n_ranks)
    return _schedule(collective, n_ranks, n_ranks * n_ranks, Step(src, dst, src * n_ranks + dst, False))


def _barrier(collective: Collective, n_ranks: int) -> Schedule:
    # Every collective starts with all ranks publishing their call and seeing all others': a barrier is that alone.
    return _schedule(collective, n_ranks, 1)


_BUILDERS: dict[str, Callable[[Collective, int], Schedule]] = {
    "barrier": _barrier,
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "gather": _gather,
    "scatter": _scatter,
}


def _others(rank: int, n_ranks: int) -> NDArray[np.int64]:
    return np.delete(np.arange(n_ranks, dtype=np.int64), rank)


def _pairs(n_ranks: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Every ordered pair of two ranks, by destination."""
    dst, src = np.divmod(np.arange(n_ranks * n_ranks), n_ranks)
    apart = src != dst
    return src[apart], dst[apart]


def _schedule(collective: Collective, n_ranks: int, n_chunks: int, *steps: Step, algorithm: str = "direct") -> Schedule:
    return Schedule(collective, n_ranks, n_chunks, tuple(step for step in steps if len(step)), algorithm)
