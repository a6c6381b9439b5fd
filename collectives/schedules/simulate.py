"""Schedules on machines that are not here: what algorithms and boxes would take on so many nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from multiring.collectives.schedules.algorithms.box import STAGES, Box, factorisations
from multiring.collectives.schedules.collective import Collective
from multiring.collectives.schedules.cost import cost
from multiring.collectives.schedules.explore import TOPOLOGY_RINGS, built, candidates
from multiring.collectives.schedules.schedule import Schedule
from multiring.collectives.schedules.volume import bytes_sent
from multiring.errors import ScheduleError
from multiring.topology.model import Topology

__all__ = [
    "EXPLORED_STAGES",
    "MAX_SHAPES",
    "Point",
    "Price",
    "box_names",
    "explore_boxes",
    "points",
    "price",
    "prices",
    "quick_candidates",
]

MAX_SHAPES = 256
"""Factorisations that :func:`explore_boxes` tries: those of fewest dimensions. 256 ranks have 128, 512 have 256."""
MAX_REFINED = 3
"""The best of them, whose stages are then chosen one by one."""
EXPLORED_STAGES = ("ring", "halving_doubling", "direct", "bidirectional_ring", "bruck")
"""Stage algorithms that are tried for each dimension."""
QUICK = ("ring", TOPOLOGY_RINGS, "halving_doubling", "recursive_doubling", "bruck", "double_tree", "binomial")
"""What :func:`quick_candidates` keeps for many ranks, besides boxes."""
MAX_THOROUGH_RANKS = 64
REFERENCE_BYTES = 1 << 16
"""For each chunk, when the slope of a price is taken."""


@dataclass(frozen=True, slots=True)
class Point:
    """One prediction.

    Attributes
    ----------
    n_nodes, n_ranks : int
    collective : str
    nbytes : int
        Bytes of the whole vector, as in :func:`~multiring.collectives.schedules.volume.chunk_bytes`.
    algorithm : str
    n_steps : int
    bytes_sent_per_rank : int
        The most that one rank sends.
    predicted_us : float
    """

    n_nodes: int
    n_ranks: int
    collective: str
    nbytes: int
    algorithm: str
    n_steps: int
    bytes_sent_per_rank: int
    predicted_us: float


@dataclass(frozen=True, slots=True)
class Price:
    """What an algorithm takes on a machine, whatever the size: exact where the chunks are equal.

    Attributes
    ----------
    algorithm : str
    latency_us : float
        Of no bytes.
    us_per_byte : float
        Of each byte of the whole vector.
    """

    algorithm: str
    latency_us: float
    us_per_byte: float

    def of(self, nbytes: float) -> float:
        """Return the microseconds for a size."""
        return self.latency_us + self.us_per_byte * nbytes


def points(
    collective: Collective, topology: Topology, sizes: Sequence[int], names: Iterable[str]
) -> tuple[list[Point], dict[str, str]]:
    """Predict algorithms for sizes on one machine.

    Parameters
    ----------
    collective : Collective
    topology : Topology
    sizes : sequence of int
        Bytes.
    names : iterable of str
        Algorithms, with their arguments.

    Returns
    -------
    list of Point
        By size, then the cheapest first.
    dict of str to str
        Algorithms that cannot be built for so many ranks, and why.
    """
    found: list[Point] = []
    impossible: dict[str, str] = {}
    for name in names:
        try:
            schedule = built(name, collective, topology.n_ranks, topology)
        except ScheduleError as error:
            impossible[name] = str(error)
            continue
        found += [_point(name, schedule, topology, nbytes) for nbytes in sizes]
    found.sort(key=lambda point: (sizes.index(point.nbytes), point.predicted_us))
    return found, impossible


def box_names(n_ranks: int) -> tuple[str, ...]:
    """Return every box that a number of ranks can form, the flat ring first: up to :data:`MAX_SHAPES`."""
    shapes = sorted(factorisations(n_ranks), key=len)[:MAX_SHAPES]
    return tuple("box:" + "x".join(map(str, dims)) for dims in shapes)


def quick_candidates(collective: Collective, topology: Topology) -> tuple[str, ...]:
    """Return the algorithms worth pricing, for many ranks without those whose steps join all with all."""
    names = candidates(collective, topology.n_ranks, topology=topology)
    few = tuple(name for name in names if name.startswith("box:") or name in QUICK)
    return few if few and topology.n_ranks > MAX_THOROUGH_RANKS else names


def explore_boxes(collective: Collective, topology: Topology, nbytes: int) -> list[Point]:
    """Try every box on a machine, and for the best ones every algorithm of :data:`EXPLORED_STAGES` in each stage.

    A stage's price does not depend on the other stages' algorithms, so choosing them one by one finds the best
    combination.

    Returns
    -------
    list of Point
        The cheapest first.
    """
    found, _ = points(collective, topology, [nbytes], box_names(topology.n_ranks))
    for best in found[:MAX_REFINED]:
        found.append(_refined(best, collective, topology))
    # A refined box may be the ring box that it started from.
    return sorted({point.algorithm: point for point in found}.values(), key=lambda point: point.predicted_us)


def price(name: str, collective: Collective, topology: Topology) -> Price:
    """Price an algorithm for all sizes at once.

    Raises
    ------
    ScheduleError
        If it cannot be built for so many ranks.
    """
    schedule = built(name, collective, topology.n_ranks, topology)
    nbytes = schedule.n_chunks * REFERENCE_BYTES
    steps = cost(schedule, topology, nbytes).steps
    latency_us = sum(step.latency_us for step in steps)
    return Price(name, latency_us, sum(step.transfer_us + step.reduction_us for step in steps) / nbytes)


def prices(collective: Collective, topology: Topology, names: Iterable[str]) -> list[Price]:
    """Price the algorithms that can be built.

    Raises
    ------
    ScheduleError
        If none can: the last one's reason.
    """
    found: list[Price] = []
    why: ScheduleError | None = None
    for name in names:
        try:
            found.append(price(name, collective, topology))
        except ScheduleError as error:
            why = error
    if not found and why is not None:
        raise why
    return found


def _refined(best: Point, collective: Collective, topology: Topology) -> Point:
    """Return a box with the best algorithm in each of its stages."""
    dims = Box.parse(best.algorithm.removeprefix("box:")).dims
    stages = ["ring"] * len(dims)
    for at in range(len(dims)):
        trials = {}
        for stage in EXPLORED_STAGES:
            if stage in STAGES:
                tried = Box(dims, (*stages[:at], stage, *stages[at + 1 :]))
                schedule = built(f"box:{tried}", collective, topology.n_ranks)
                trials[stage] = cost(schedule, topology, best.nbytes).total_us
        # Equal prices keep the ring, which comes first.
        stages[at] = min(trials, key=lambda stage: trials[stage])
    name = f"box:{Box(dims, tuple(stages))}"
    return _point(name, built(name, collective, topology.n_ranks, topology), topology, best.nbytes)


def _point(name: str, schedule: Schedule, topology: Topology, nbytes: int) -> Point:
    return Point(
        topology.n_nodes,
        topology.n_ranks,
        schedule.collective.name,
        nbytes,
        name,
        schedule.n_steps,
        int(bytes_sent(schedule, nbytes).max()),
        cost(schedule, topology, nbytes).total_us,
    )
