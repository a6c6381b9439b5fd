"""Which schedule a call gets, and why.

The choice is a function of the call and of facts that all ranks agreed on, never of what one rank knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from multiring.collectives.schedules.algorithms import ALGORITHMS, algorithms_for, build, check_algorithm
from multiring.collectives.schedules.collective import COLLECTIVES, Collective
from multiring.collectives.schedules.ordering import is_rank_ordered, n_roundings
from multiring.collectives.schedules.schedule import Schedule
from multiring.errors import ArgumentError

__all__ = ["ONE_SHOT_BYTES", "Alternative", "Choice", "choose", "parse_algorithms"]

ONE_SHOT_BYTES = 8192
"""Up to here one_shot beats direct through shared memory: it saves a step, which costs as much as reading this much."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """A schedule that was not chosen, and why."""

    algorithm: str
    reason: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The schedule that a call gets.

    Attributes
    ----------
    schedule : Schedule
        To be lowered and executed.
    algorithm : str
        As the user would write it.
    reason : str
        Why it was chosen.
    alternatives : tuple of Alternative
        The other algorithms that serve the collective.
    """

    schedule: Schedule
    algorithm: str
    reason: str
    alternatives: tuple[Alternative, ...]


def parse_algorithms(text: str) -> dict[str, str]:
    """Read the value of ``MULTIRING_ALGORITHM``.

    Parameters
    ----------
    text : str
        ``"all_reduce:box:4x8x8:ring,ring;all_gather:direct"``: entries split at semicolons, each split at its first
        colon into a collective and an algorithm. Spaces and empty entries are ignored.

    Returns
    -------
    dict
        Algorithm by collective.

    Raises
    ------
    ArgumentError
        Naming the entry, what was wanted, and the algorithms that serve the collective.
    """
    chosen: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in text.split(";"))):
        collective, colon, algorithm = (part.strip() for part in entry.partition(":"))
        where = f"MULTIRING_ALGORITHM: entry {entry!r}"
        if not colon or not algorithm:
            raise ArgumentError(f"{where}, wanted COLLECTIVE:ALGORITHM such as all_reduce:ring")
        if collective not in COLLECTIVES:
            raise ArgumentError(f"{where} names collective {collective!r}, wanted one of {', '.join(COLLECTIVES)}")
        if collective in chosen:
            raise ArgumentError(f"{where}: {collective} was given before, as {chosen[collective]!r}; give it once")
        try:
            check_algorithm(algorithm, collective)
        except ArgumentError as error:
            raise ArgumentError(f"{where}: {error}") from None
        chosen[collective] = algorithm
    return chosen


def choose(
    collective: Collective,
    n_ranks: int,
    nbytes: int,
    *,
    order: str | None = None,
    algorithm: str | None = None,
    environment_choice: str | None = None,
    reduces16: bool = False,
) -> Choice:
    """Choose the schedule of a call.

    Parameters
    ----------
    collective : Collective
        What to do.
    n_ranks : int
        At least 1.
    nbytes : int
        Bytes of the whole vector: of the big array for reduce_scatter, all_gather, gather and scatter, of one rank's
        array elsewhere.
    order : {None, "rank"}
        ``"rank"``: only schedules that add in ascending rank.
    algorithm : str, optional
        The caller's wish, which wins.
    environment_choice : str, optional
        The value of ``MULTIRING_ALGORITHM``, which wins over the rule. It is a preference for a whole program: where it
        cannot keep ``order="rank"`` it is passed over, and the reason says so.
    reduces16 : bool
        Whether partial sums that travel would be rounded to 16 bits: then the rule takes only schedules that round
        once.

    Raises
    ------
    ArgumentError
        If the order or the algorithm is not known, or the algorithm is not rank-ordered and ``order="rank"``.
    """
    if order not in (None, "rank"):
        raise ArgumentError(f"order: got {order!r}, wanted None or 'rank'")
    ordered = order == "rank" and collective.reduces
    passed_over: dict[str, str] = {}
    if algorithm is not None:
        if ordered and not _is_ordered(algorithm, collective, n_ranks):
            raise ArgumentError(
                f"algorithm={algorithm!r} does not add {n_ranks} ranks in ascending rank, as order='rank' wants: "
                f"use one of {', '.join(_ordered_names(collective, n_ranks))}, or leave order out"
            )
        return _choice(collective, n_ranks, algorithm, "the caller asked for it", passed_over)
    wish = parse_algorithms(environment_choice).get(collective.name) if environment_choice else None
    if wish is not None:
        if not ordered or _is_ordered(wish, collective, n_ranks):
            return _choice(collective, n_ranks, wish, "MULTIRING_ALGORITHM asks for it", passed_over)
        passed_over[wish] = "MULTIRING_ALGORITHM asks for it, but it does not add in ascending rank"
    for name, reason in _ranking(collective, nbytes):
        if ordered and not _is_ordered(name, collective, n_ranks):
            passed_over[name] = "does not add in ascending rank"
        elif reduces16 and (roundings := n_roundings(_built(name, collective, n_ranks))) > 1:
            passed_over[name] = f"rounds sums to 16 bits {roundings} times"
        else:
            if passed_over:
                reason += "".join(f"; {other} passed over: {why}" for other, why in passed_over.items())
            return _choice(collective, n_ranks, name, reason, passed_over)
    raise ArgumentError(f"{collective.name}: none of {', '.join(algorithms_for(collective.name))} fits the call")


def _ranking(collective: Collective, nbytes: int) -> list[tuple[str, str]]:
    """List the algorithms for ranks that share memory, the best first, each with the reason to take it."""
    direct = ("direct", "ranks that share memory read each other: fewest bytes in the fewest steps")
    if "one_shot" not in algorithms_for(collective.name):
        return [direct]
    if nbytes <= ONE_SHOT_BYTES:
        return [("one_shot", f"{nbytes} bytes are at most {ONE_SHOT_BYTES}: a step costs more than the bytes"), direct]
    return [(direct[0], f"{nbytes} bytes are more than {ONE_SHOT_BYTES}: {direct[1]}"), ("one_shot", "fits the call")]


def _choice(collective: Collective, n_ranks: int, name: str, reason: str, passed_over: dict[str, str]) -> Choice:
    schedule = _built(name, collective, n_ranks)
    losers = tuple(
        Alternative(other, passed_over.get(other, ALGORITHMS[other].description))
        for other in algorithms_for(collective.name)
        if other != name.partition(":")[0]
    )
    return Choice(schedule, name, reason, losers)


def _ordered_names(collective: Collective, n_ranks: int) -> list[str]:
    return [name for name in algorithms_for(collective.name) if _is_ordered(name, collective, n_ranks)]


@lru_cache(maxsize=256)
def _built(name: str, collective: Collective, n_ranks: int) -> Schedule:
    return build(name, collective, n_ranks)


@lru_cache(maxsize=1024)
def _is_ordered(name: str, collective: Collective, n_ranks: int) -> bool:
    return is_rank_ordered(_built(name, collective, n_ranks))
