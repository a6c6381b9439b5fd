"""The registry of algorithms. A new one is one file with one builder, and one line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from multiring.collectives.schedules.algorithms.chain import chain
from multiring.collectives.schedules.algorithms.direct import direct, one_shot
from multiring.collectives.schedules.algorithms.ring import ring
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

ALGORITHMS: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm("direct", "every rank reads its share from all others: fewest bytes, 1 or 2 steps, one rounding",
                  _ALL, direct),
        Algorithm("one_shot", "every rank reads everything: 1 step, p - 1 times the bytes; for short vectors",
                  ("all_reduce", "reduce"), one_shot),
        Algorithm("ring", "neighbours only: fewest bytes on any wiring, 2 (p - 1) steps",
                  ("all_reduce", "reduce", "broadcast", "reduce_scatter", "all_gather"), ring),
        Algorithm("chain", "a pipeline along the ranks: every link carries the vector once, sums in rank order",
                  ("all_reduce", "reduce", "broadcast"), chain),
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
