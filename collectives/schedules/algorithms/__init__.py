"""The registry of algorithms. A new one is one file with one builder, and one line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from multiring.collectives.schedules.algorithms.binomial import binomial
from multiring.collectives.schedules.algorithms.box import box, parse_box
from multiring.collectives.schedules.algorithms.bruck import bruck
from multiring.collectives.schedules.algorithms.chain import chain, parse_chain
from multiring.collectives.schedules.algorithms.direct import direct, one_shot
from multiring.collectives.schedules.algorithms.double_tree import double_tree, parse_slices
from multiring.collectives.schedules.algorithms.halving_doubling import halving_doubling
from multiring.collectives.schedules.algorithms.leaders import leaders, parse_leaders
from multiring.collectives.schedules.algorithms.multi_ring import bidirectional_ring, multi_ring, parse_n_rings
from multiring.collectives.schedules.algorithms.pairwise import pairwise
from multiring.collectives.schedules.algorithms.recursive_doubling import recursive_doubling
from multiring.collectives.schedules.algorithms.ring import ring
from multiring.collectives.schedules.algorithms.torus import parse_torus, torus
from multiring.collectives.schedules.algorithms.van_de_geijn import parse_gather, van_de_geijn
from multiring.collectives.schedules.collective import COLLECTIVES, Collective
from multiring.collectives.schedules.schedule import Schedule
from multiring.errors import ArgumentError

__all__ = ["ALGORITHMS", "Algorithm", "algorithms_for", "build", "check_algorithm"]


def _no_argument(text: str) -> dict[str, Any]:
    raise ArgumentError(f"got {text!r} after its colon, wanted nothing")


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to do some collectives.

    Attributes
    ----------
    name : str
        What users write.
    description : str
        One line, with its trade-off.
    collectives : tuple of str
        The collectives that it serves.
    builder : callable
        ``builder(collective, n_ranks, **options) -> Schedule``.
    parse : callable
        Turns what follows the name and a colon, as in ``"box:4x8"``, into options; refuses it by default.
    """

    name: str
    description: str
    collectives: tuple[str, ...]
    builder: Callable[..., Schedule]
    parse: Callable[[str], dict[str, Any]] = _no_argument


_ALL = tuple(COLLECTIVES)
_HALVES = ("all_reduce", "reduce_scatter", "all_gather")
_TREES = ("all_reduce", "reduce", "broadcast")

ALGORITHMS: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm("direct", "every rank reads its share from all others: fewest bytes, 1 or 2 steps, one rounding",
                  _ALL, direct),
        Algorithm("one_shot", "every rank reads everything: 1 step, p - 1 times the bytes; for short vectors",
                  ("all_reduce", "reduce"), one_shot),
        Algorithm("ring", "neighbours only: fewest bytes on any wiring, 2 (p - 1) steps",
                  (*_HALVES, "reduce", "broadcast"), ring),
        Algorithm("bidirectional_ring", "a ring used both ways: half its time where links are duplex",
                  _HALVES, bidirectional_ring),
        Algorithm("multi_ring", "several rings at once, multi_ring:K for K strides: all links of a full mesh",
                  _HALVES, multi_ring, parse_n_rings),
        Algorithm("box", "rings along each dimension, box:4x8x8:STAGES: fewest bytes in 2 sum(p_i - 1) steps",
                  _HALVES, box, parse_box),
        Algorithm("torus", "a box in both orientations at once, torus:RxC: all links of a 2-D mesh",
                  _HALVES, torus, parse_torus),
        Algorithm("halving_doubling", "swap halves: fewest bytes in 2 lg p steps, far partners",
                  _HALVES, halving_doubling),
        Algorithm("recursive_doubling", "swap everything: lg p steps, lg p times the bytes; for short vectors",
                  ("all_reduce", "all_gather"), recursive_doubling),
        Algorithm("bruck", "distance 1, 2, 4, ...: fewest steps for any number of ranks, far partners",
                  (*_HALVES, "all_to_all"), bruck),
        Algorithm("pairwise", "one partner each way in each of p - 1 steps; for long vectors on networks",
                  ("all_to_all", "reduce_scatter"), pairwise),
        Algorithm("binomial", "a tree of ceil(lg p) levels; for short vectors",
                  (*_TREES, "gather", "scatter"), binomial),
        Algorithm("double_tree", "two pipelined binary trees, double_tree:SLICES: few steps, few bytes, many ranks",
                  _TREES, double_tree, parse_slices),
        Algorithm("chain", "a pipeline along the ranks, chain:SLICES: every link once, sums in rank order",
                  _TREES, chain, parse_chain),
        Algorithm("van_de_geijn", "scatter and all_gather, van_de_geijn:GATHER: 2 n bytes; for long vectors",
                  ("broadcast", "reduce"), van_de_geijn, parse_gather),
        Algorithm("leaders", "sum in groups, all_reduce of leaders, copy, leaders:GROUP:ACROSS; one link per host",
                  ("all_reduce",), leaders, parse_leaders),
    )
}  # fmt: skip


def algorithms_for(collective: str) -> tuple[str, ...]:
    """Return the names of the algorithms that serve a collective."""
    return tuple(name for name, algorithm in ALGORITHMS.items() if collective in algorithm.collectives)


def check_algorithm(name: str, collective: str) -> tuple[Algorithm, dict[str, Any]]:
    """Return the algorithm that a text such as ``"ring"`` or ``"box:4x8"`` names, and its options.

    Raises
    ------
    ArgumentError
        If there is none, if it does not serve the collective, or if what follows the colon is not understood.
    """
    base, colon, argument = name.partition(":")
    algorithm = ALGORITHMS.get(base)
    if algorithm is None or collective not in algorithm.collectives:
        why = "is not known" if algorithm is None else f"does not serve {collective}"
        raise ArgumentError(
            f"algorithm: {base!r} {why}, wanted one that serves {collective}: {', '.join(algorithms_for(collective))}"
        )
    try:
        return algorithm, algorithm.parse(argument) if colon else {}
    except ArgumentError as error:
        raise ArgumentError(f"algorithm {base!r}: {error}") from None


def build(name: str, collective: Collective | str, n_ranks: int, **options: Any) -> Schedule:
    """Build the schedule of a collective by an algorithm's name.

    Parameters
    ----------
    name : str
        A key of :data:`ALGORITHMS`, with its argument after a colon where it takes one.
    collective : Collective or str
        What to build; a name means root 0.
    n_ranks : int
        At least 1.
    **options
        What the builder takes beyond these.

    Raises
    ------
    ArgumentError
        If the name is not known or does not serve the collective: the text lists those that do.
    ScheduleError
        If the algorithm cannot be built for this many ranks.
    """
    wanted = Collective(collective) if isinstance(collective, str) else collective
    algorithm, parsed = check_algorithm(name, wanted.name)
    return algorithm.builder(wanted, n_ranks, **parsed, **options)
