"""Three phases with leaders: sum inside each group, all_reduce among the groups' leaders, copy inside each group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isqrt
from typing import Any

import numpy as np

from multiring.collectives.schedules.algorithms.binomial import binomial
from multiring.collectives.schedules.algorithms.bruck import bruck
from multiring.collectives.schedules.algorithms.direct import direct
from multiring.collectives.schedules.algorithms.halving_doubling import halving_doubling
from multiring.collectives.schedules.algorithms.recursive_doubling import recursive_doubling
from multiring.collectives.schedules.algorithms.ring import ring
from multiring.collectives.schedules.collective import Collective
from multiring.collectives.schedules.compose import merge, on, then
from multiring.collectives.schedules.schedule import Schedule
from multiring.errors import ArgumentError, ScheduleError

__all__ = ["leaders", "parse_leaders"]

# groups of 3      0 1 2    3 4 5    6 7
#   1. reduce      0◀┴─╯    3◀┴─╯    6◀╯
#   2. all_reduce  0 ◀─────▶ 3 ◀────▶ 6
#   3. broadcast   0┬▶─▶    3┬▶─▶    6▶╮

_ACROSS: dict[str, Callable[[Collective, int], Schedule]] = {
    "halving_doubling": halving_doubling,
    "ring": ring,
    "recursive_doubling": recursive_doubling,
    "bruck": bruck,
    "direct": direct,
}


def leaders(
    collective: Collective,
    n_ranks: int,
    group: int | None = None,
    across: str = "halving_doubling",
    groups: Sequence[Sequence[int]] | None = None,
) -> Schedule:
    """Build an all_reduce in three phases, of which only the leaders of groups take part in the second.

    Parameters
    ----------
    collective : Collective
        all_reduce.
    n_ranks : int
        At least 1; the last group may be smaller.
    group : int, optional
        Neighbouring ranks in a group, such as the GPUs of a host; otherwise the square root of the ranks.
    across : str
        The all_reduce among leaders: halving_doubling, ring, recursive_doubling, bruck or direct.
    groups : sequence of sequence of int, optional
        The ranks of each group, of any sizes, its leader first: those of each node, wherever ranks were placed.

    Raises
    ------
    ArgumentError
        If the group is below 1 or the second phase is not known.
    ScheduleError
        If ``groups`` are not all ranks once.

    Notes
    -----
    ``2 ceil(lg g)`` steps for groups of g, and those of the second phase. Leaders send the vector whole, and the other
    ranks' links to other groups idle: a box does better where they have any. For one link per host and short vectors.
    Source: Goyal et al. 2017, section 4.
    """
    size = max(1, isqrt(n_ranks)) if group is None else group
    if size < 1 or across not in _ACROSS:
        raise ArgumentError(
            f"leaders: got groups of {size} and {across!r}, wanted groups of at least 1 and one of {', '.join(_ACROSS)}"
        )
    if groups is None:
        groups = [range(head, min(head + size, n_ranks)) for head in range(0, n_ranks, size)]
    if not groups or not all(groups) or sorted(rank for members in groups for rank in members) != list(range(n_ranks)):
        raise ScheduleError(
            f"leaders: got groups {[list(members) for members in groups]}, wanted each of {n_ranks} ranks in one of "
            "them: leaders:nodes needs a topology"
        )
    heads = [members[0] for members in groups]
    middle = _ACROSS[across](collective, len(heads))
    n_chunks = middle.n_chunks
    everything = [np.arange(n_chunks)]
    up, down = (
        merge(
            *(
                on(binomial(Collective(name), len(members)), members, everything, n_ranks, n_chunks)
                for members in groups
            )
        )
        for name in ("reduce", "broadcast")
    )
    among = on(middle, heads, np.arange(n_chunks).reshape(-1, 1), n_ranks, n_chunks)
    return then(up, among, down, collective=collective, algorithm="leaders")


def parse_leaders(text: str) -> dict[str, Any]:
    """Read what follows the colon in ``"leaders:8"`` or ``"leaders:8:ring"``.

    ``"nodes"`` in place of the number is for those who know a topology: they give its nodes as groups.
    """
    group, colon, across = text.partition(":")
    if group == "nodes" and (not colon or across in _ACROSS):
        return {"groups": ()} | ({"across": across} if colon else {})
    if not group.isdecimal() or not int(group) or (colon and across not in _ACROSS):
        raise ArgumentError(
            f"got {text!r} after its colon, wanted ranks in a group, or that and one of {', '.join(_ACROSS)}: 8:ring"
        )
    return {"group": int(group)} | ({"across": across} if colon else {})
