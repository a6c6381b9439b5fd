"""Which schedule a call gets, and why.

The choice is a function of the call and of facts that all ranks agreed on, never of what one rank knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from multiring.collectives.schedules.algorithms import ALGORITHMS, algorithms_for, check_algorithm
from multiring.collectives.schedules.collective import COLLECTIVES, Collective
from multiring.collectives.schedules.cost import cost
from multiring.collectives.schedules.explore import Priced, built, candidates, explore, explore_fairly, size_class
from multiring.collectives.schedules.ordering import is_rank_ordered, n_roundings
from multiring.collectives.schedules.schedule import Schedule
from multiring.errors import ArgumentError, ScheduleError
from multiring.topology.host import host_topology
from multiring.topology.model import Topology

__all__ = ["ONE_SHOT_BYTES", "Alternative", "Choice", "choose", "parse_algorithms"]

ONE_SHOT_BYTES = 8192
"""Up to here one_shot beats direct through shared memory: it saves a step, which costs as much as reading this much."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """A schedule that was not chosen, and why."""

    algorithm: str
    reason: str
    predicted_us: float | None = None


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
        The other algorithms that serve the collective; with a topology, the cheapest first.
    predicted_us : float or None
        What it should take; known where a topology is.
    """

    schedule: Schedule
    algorithm: str
    reason: str
    alternatives: tuple[Alternative, ...]
    predicted_us: float | None = None


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
            check_algorithm(algorithm.replace("box:auto", "box:1", 1), collective)
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
    topology: Topology | None = None,
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
        The caller's wish, which wins. ``"box:auto"`` is the cheapest box on the topology.
    environment_choice : str, optional
        The value of ``MULTIRING_ALGORITHM``, which wins over the rule. It is a preference for a whole program: where it
        cannot keep ``order="rank"``, or cannot be built for so many ranks, it is passed over, and the reason says so.
    reduces16 : bool
        Whether partial sums that travel are rounded to 16 bits: the reason then says how often. The rule for ranks that
        share memory takes only schedules that round once.
    topology : Topology, optional
        Where the ranks are: the cheapest schedule on it is chosen. Without it all ranks share memory.

    Raises
    ------
    ArgumentError
        If the order or the algorithm is not known, there is no such root, or the algorithm is not rank-ordered and
        ``order="rank"``.
    ScheduleError
        If ``algorithm`` cannot be built for so many ranks.
    """
    if order not in (None, "rank"):
        raise ArgumentError(f"order: got {order!r}, wanted None or 'rank'")
    if topology is not None and topology.n_ranks != n_ranks:
        raise ArgumentError(
            f"choose: got {n_ranks} ranks on {topology.name} of {topology.n_ranks}, wanted equal numbers"
        )
    if collective.root >= n_ranks:
        raise ArgumentError(f"{collective.name}: got root {collective.root}, wanted one of {n_ranks} ranks")
    call = _Call(collective, n_ranks, nbytes, order == "rank" and collective.reduces, reduces16, topology)
    if algorithm is not None:
        algorithm = call.resolved(algorithm)
        if not call.keeps_order(algorithm):
            raise ArgumentError(
                f"algorithm={algorithm!r} does not add {n_ranks} ranks in ascending rank, as order='rank' wants: "
                f"use one of {', '.join(filter(call.keeps_order, algorithms_for(collective.name)))}, or leave order out"
            )
        return call.choice(algorithm, "the caller asked for it")
    wish = parse_algorithms(environment_choice).get(collective.name) if environment_choice else None
    passed_over: dict[str, str] = {}
    if wish is not None:
        try:
            wish = call.resolved(wish)
            if call.keeps_order(wish):
                return call.choice(wish, "MULTIRING_ALGORITHM asks for it")
            why = "it does not add in ascending rank"
        except ScheduleError as error:
            # It may name a box for all ranks, where this communicator has some of them.
            why = str(error)
        passed_over[wish] = f"MULTIRING_ALGORITHM asks for it, but {why}"
    for name, reason in call.ranking():
        if call.keeps_order(name):
            reason += "".join(f"; {other} passed over: {why}" for other, why in passed_over.items())
            return call.choice(name, reason, passed_over)
        passed_over.setdefault(name, "does not add in ascending rank")
    raise ArgumentError(f"{collective.name}: none of {', '.join(algorithms_for(collective.name))} fits the call")


@dataclass(frozen=True)
class _Call:
    """A call to choose for."""

    collective: Collective
    n_ranks: int
    nbytes: int
    ordered: bool
    reduces16: bool
    topology: Topology | None

    def resolved(self, name: str) -> str:
        """Replace ``box:auto``, with stages behind it or not, by the cheapest box."""
        base, _, argument = name.partition(":")
        shape, _, stages = argument.partition(":")
        if base != "box" or shape != "auto":
            return name
        check_algorithm(base, self.collective.name)
        boxes = [name for name in candidates(self.collective, self.n_ranks) if name.startswith("box:")]
        names = tuple(f"{name}:{stages}" if stages else name for name in boxes or [f"box:{self.n_ranks}"])
        return explore(self.collective, self.topology or host_topology(self.n_ranks), self.nbytes, names)[0].algorithm

    def keeps_order(self, name: str) -> bool:
        return not self.ordered or _is_ordered(name, self.collective, self.n_ranks, self.topology)

    def ranking(self) -> list[tuple[str, str]]:
        """List the algorithms, the best first, each with the reason to take it."""
        if self.topology is not None and self.topology.rates is not None:
            measured = f"us on {self.topology.name}, as measured: the least on the whole, symmetric memory or not"
            return [(one.algorithm, f"{one.predicted_us:.1f} {measured}") for one in self.prices]
        if self.topology is not None:
            least = f"us on {self.topology.name}, the least"
            return [(one.algorithm, f"{one.predicted_us:.1f} {least}") for one in self.prices]
        direct = ("direct", "ranks that share memory read each other: fewest bytes in the fewest steps")
        if "one_shot" not in algorithms_for(self.collective.name):
            return [direct]
        if self.nbytes <= ONE_SHOT_BYTES:
            size = "1 byte is" if self.nbytes == 1 else f"{self.nbytes} bytes are"
            short = f"{size} at most {ONE_SHOT_BYTES}: a step costs more than the bytes"
            return [("one_shot", short), direct]
        return [(direct[0], f"{self.nbytes} bytes are more than {ONE_SHOT_BYTES}: {direct[1]}")]

    @cached_property
    def prices(self) -> tuple[Priced, ...]:
        if self.topology is None:
            return ()
        if self.topology.rates is None:
            return explore(self.collective, self.topology, self.nbytes)
        found = explore_fairly(self.collective, self.topology, size_class(self.nbytes))
        if not self.reduces16 or self.topology.n_nodes > 1:
            return found
        # Between ranks that share memory nothing is won that is worth a second rounding to 16 bits.
        return tuple(one for one in found if self._roundings(one.algorithm) == 1) or found

    def _roundings(self, name: str) -> int:
        return n_roundings(built(name, self.collective, self.n_ranks, self.topology))

    def choice(self, name: str, reason: str, passed_over: dict[str, str] | None = None) -> Choice:
        passed_over = passed_over or {}
        prices = {one.algorithm: one.predicted_us for one in self.prices}
        others = [other for other in prices or algorithms_for(self.collective.name) if other != name]
        losers = tuple(
            Alternative(
                other,
                passed_over.get(other) or ALGORITHMS[other.partition(":")[0]].description,
                prices.get(other),
            )
            for other in others
        )
        predicted_us = prices.get(name)
        schedule = built(name, self.collective, self.n_ranks, self.topology)
        if predicted_us is None and self.topology is not None:
            predicted_us = cost(schedule, self.topology, self.nbytes).total_us
        if self.reduces16 and (roundings := n_roundings(schedule)) > 1:
            reason += f"; sums are rounded to 16 bits up to {roundings} times on their way"
        return Choice(schedule, name, reason, losers, predicted_us)


@lru_cache(maxsize=1024)
def _is_ordered(name: str, collective: Collective, n_ranks: int, topology: Topology | None) -> bool:
    return is_rank_ordered(built(name, collective, n_ranks, topology))
