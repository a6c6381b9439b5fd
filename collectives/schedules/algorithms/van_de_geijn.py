"""Van de Geijn's broadcast: scatter the vector, then all_gather it; and the same backwards as a reduce."""

from __future__ import annotations

from typing import Any

from multiring.collectives.schedules.algorithms.binomial import binomial
from multiring.collectives.schedules.algorithms.bruck import bruck
from multiring.collectives.schedules.algorithms.recursive_doubling import recursive_doubling
from multiring.collectives.schedules.algorithms.ring import ring
from multiring.collectives.schedules.collective import Collective
from multiring.collectives.schedules.compose import backwards, from_root, then
from multiring.collectives.schedules.schedule import Schedule
from multiring.errors import ArgumentError

__all__ = ["parse_gather", "van_de_geijn"]

# root   abcd ──binomial scatter──▶  a  b  c  d  ──all_gather──▶  abcd  abcd  abcd  abcd

_GATHERS = {"ring": ring, "bruck": bruck, "recursive_doubling": recursive_doubling}


def van_de_geijn(collective: Collective, n_ranks: int, gather: str = "ring") -> Schedule:
    """Build a broadcast from a scatter and an all_gather, or a reduce from a reduce_scatter and a gather.

    Parameters
    ----------
    collective : Collective
        broadcast or reduce.
    n_ranks : int
        At least 1.
    gather : {"ring", "bruck", "recursive_doubling"}
        The all_gather, or what runs backwards as the reduce_scatter.

    Raises
    ------
    ArgumentError
        If the all_gather is another.

    Notes
    -----
    ``ceil(lg p) + p - 1`` steps with a ring, ``2 ceil(lg p)`` with the others, ``2 (p-1)/p n`` bytes through the root:
    for long vectors. Backwards with recursive doubling it is Rabenseifner's reduce.
    Source: Barnett et al. 1994; Thakur, Rabenseifner and Gropp 2005.
    """
    if gather not in _GATHERS:
        raise ArgumentError(f"van_de_geijn: got {gather!r}, wanted one of {', '.join(_GATHERS)}")
    spread = binomial(Collective("scatter"), n_ranks)
    whole = then(
        spread,
        _GATHERS[gather](Collective("all_gather"), n_ranks),
        collective=Collective("broadcast"),
        algorithm="van_de_geijn",
    )
    if collective.name == "reduce":
        whole = _reduce(whole, spread.n_steps)
    return from_root(whole, collective.root)


def parse_gather(text: str) -> dict[str, Any]:
    """Read what follows the colon in ``"van_de_geijn:bruck"``."""
    if text not in _GATHERS:
        raise ArgumentError(f"got {text!r} after its colon, wanted one of {', '.join(_GATHERS)}")
    return {"gather": text}


def _reduce(whole: Schedule, n_spread: int) -> Schedule:
    pieces = [Schedule(Collective("broadcast"), whole.n_ranks, whole.n_chunks, steps) for steps in
              (whole.steps[n_spread:], whole.steps[:n_spread])]  # fmt: skip
    sums, moves = backwards(pieces[0], Collective("reduce")), backwards(pieces[1], Collective("broadcast"))
    return then(sums, moves, collective=Collective("reduce"), algorithm="van_de_geijn")
