"""All ways to do a collective on a machine, priced, the cheapest first."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from multiring.collectives.schedules.algorithms import algorithms_for, build, check_algorithm
from multiring.collectives.schedules.algorithms.box import Box, box, factorisations
from multiring.collectives.schedules.algorithms.leaders import leaders
from multiring.collectives.schedules.algorithms.multi_ring import multi_ring
from multiring.collectives.schedules.collective import Collective
from multiring.collectives.schedules.compose import reordered
from multiring.collectives.schedules.cost import cost
from multiring.collectives.schedules.measured_cost import MANNERS, SYMMETRIC, Manner
from multiring.collectives.schedules.schedule import Schedule
from multiring.errors import ScheduleError
from multiring.topology.model import Topology
from multiring.topology.rings import rings

__all__ = [
    "MAX_BOXES",
    "NODE_BOX",
    "NODE_LEADERS",
    "TOPOLOGY_RINGS",
    "Priced",
    "built",
    "candidates",
    "explore",
    "explore_fairly",
    "size_class",
]

MAX_BOXES = 40
"""Factorisations that are tried: those of fewest dimensions, which is where the better ones are."""
TOPOLOGY_RINGS = "multi_ring:topology"
"""All rings that a topology has room for, at once, in place of strides."""
NODE_LEADERS = "leaders:nodes"
"""Groups of the ranks of each node, however many and wherever placed."""
NODE_BOX = "box:nodes"
"""A box of the ranks of a node by the nodes, where ranks of a node do not follow each other."""
QUADRATIC = ("one_shot",)
"""Algorithms that move p - 1 times the vector: hopeless above ``MAX_QUADRATIC_RANKS`` and slow to price."""
MAX_QUADRATIC_RANKS = 64
MAX_KEPT_RANKS = 64
"""Schedules of more ranks are built anew each time: those of 1024 ranks take 30 MB each."""


@dataclass(frozen=True, slots=True)
class Priced:
    """An algorithm, as a user would write it, and what it would take."""

    algorithm: str
    predicted_us: float


def candidates(
    collective: Collective, n_ranks: int, *, boxes: bool = True, topology: Topology | None = None
) -> tuple[str, ...]:
    """Return the algorithms worth pricing: those that serve the collective, and the boxes that the ranks can form.

    Parameters
    ----------
    collective : Collective
        What to do.
    n_ranks : int
        At least 1.
    boxes : bool
        Whether to list every box of at least two dimensions; otherwise the most nearly square one alone.
    topology : Topology, optional
        Where: the rings in it are worth a try where its machines are known.
    """
    names = [
        name
        for name in algorithms_for(collective.name)
        if not (name in QUADRATIC and n_ranks > MAX_QUADRATIC_RANKS) and not (name == "box" and boxes)
    ]
    if boxes and "box" in algorithms_for(collective.name):
        shapes = sorted((dims for dims in factorisations(n_ranks) if len(dims) > 1), key=len)
        names += ["box:" + "x".join(map(str, dims)) for dims in shapes[:MAX_BOXES]]
    if topology is not None and topology.machines and "multi_ring" in names and n_ranks > 1:
        names.insert(names.index("multi_ring") + 1, TOPOLOGY_RINGS)
    if topology is not None and 1 < topology.n_nodes < n_ranks:
        names += _of_nodes(names, topology)
    return tuple(names)


def _of_nodes(names: list[str], topology: Topology) -> list[str]:
    """Return algorithms that keep to the nodes of a topology, besides the boxes among ``names``."""
    found = []
    if "leaders" in names:
        found += [NODE_LEADERS, f"{NODE_LEADERS}:recursive_doubling"]
        found += [f"{NODE_LEADERS}:{across}" for across in ("direct", "ring") if topology.n_nodes > 2]
    sizes = {len(topology.ranks_of(node)) for node in range(topology.n_nodes)}
    if len(sizes) == 1 and any(name.startswith("box") for name in names):
        shape = (
            NODE_BOX
            if _node_order(topology) != list(range(topology.n_ranks))
            else (f"box:{sizes.pop()}x{topology.n_nodes}")
        )
        found += [NODE_BOX] if shape == NODE_BOX else []
        found += [f"{shape}:{stages}" for stages in ("direct", "direct,ring", "direct,halving_doubling")]
    return found


def _node_order(topology: Topology) -> list[int]:
    return [rank for node in range(topology.n_nodes) for rank in topology.ranks_of(node)]


def explore(
    collective: Collective,
    topology: Topology,
    nbytes: int,
    names: tuple[str, ...] | None = None,
    reduction_gbs: float = float("inf"),
    manner: Manner = SYMMETRIC,
) -> tuple[Priced, ...]:
    """Price algorithms on a machine.

    Parameters
    ----------
    collective : Collective
        What to do.
    topology : Topology
        Where.
    nbytes : int
        Bytes of the whole vector, as in :func:`~multiring.collectives.schedules.volume.chunk_bytes`.
    names : tuple of str, optional
        The algorithms; all :func:`candidates` otherwise.
    reduction_gbs : float
        As in :func:`~multiring.collectives.schedules.cost.cost`.
    manner : Manner
        How the call is made, on a host that was measured.

    Returns
    -------
    tuple of Priced
        The cheapest first; equal prices in the order of the registry.
    """
    if names is None:
        names = candidates(collective, topology.n_ranks, topology=topology)
    n_ranks = topology.n_ranks
    prices = [
        Priced(
            name,
            cost(built(name, collective, n_ranks, topology), topology, nbytes, reduction_gbs, manner=manner).total_us,
        )
        for name in names
    ]
    return tuple(sorted(prices, key=lambda priced: priced.predicted_us))


def size_class(nbytes: int) -> int:
    """Return the size that stands for a size: sizes below 16, and else the next of eight from each power of two on."""
    step = 1 << max(nbytes.bit_length() - 4, 0)
    return -(-nbytes // step) * step


@lru_cache(maxsize=512)
def explore_fairly(collective: Collective, topology: Topology, nbytes: int) -> tuple[Priced, ...]:
    """Price algorithms on a measured machine for calls of which nobody knows where their arrays lie.

    Ranks must choose alike, and one may have its arrays in other memory than another. So the first is the one that is
    best on the whole: each is compared with the cheapest in each kind of memory, and the mean ratio decides.

    Returns
    -------
    tuple of Priced
        The best first, with its price in symmetric memory, out of place.
    """
    names = [
        name for name in candidates(collective, topology.n_ranks, topology=topology) if _can(name, collective, topology)
    ]
    prices = {
        manner: {
            one.algorithm: one.predicted_us
            for one in explore(collective, topology, nbytes, tuple(names), manner=manner)
        }
        for manner in MANNERS
    }
    least = {manner: min(found.values()) or 1.0 for manner, found in prices.items()}
    ratio = {name: sum(found[name] / least[manner] for manner, found in prices.items()) for name in names}
    # The registry's order decides between equals; a price is not known to a millionth.
    best = sorted(names, key=lambda name: round(ratio[name], 6))
    return tuple(Priced(name, prices[SYMMETRIC][name]) for name in best)


def _can(name: str, collective: Collective, topology: Topology) -> bool:
    try:
        built(name, collective, topology.n_ranks, topology)
    except ScheduleError:
        return False
    return True


def built(name: str, collective: Collective, n_ranks: int, topology: Topology | None = None) -> Schedule:
    """Return :func:`~multiring.collectives.schedules.algorithms.build`'s schedule; small ones are kept.

    ``"multi_ring:topology"`` is :data:`TOPOLOGY_RINGS`: the rings that are found in the topology.
    :data:`NODE_LEADERS` and :data:`NODE_BOX`, with what may follow, group the ranks by its nodes.
    """
    if topology is not None and (name + ":").startswith((NODE_LEADERS + ":", NODE_BOX + ":")):
        return _by_nodes(name, collective, topology)
    if name == TOPOLOGY_RINGS and topology is not None:
        check_algorithm(name, collective.name)
        return multi_ring(collective, n_ranks, orders=_orders(topology))
    return (_kept if n_ranks <= MAX_KEPT_RANKS else build)(name, collective, n_ranks)


@lru_cache(maxsize=64)
def _by_nodes(name: str, collective: Collective, topology: Topology) -> Schedule:
    _, options = check_algorithm(name, collective.name)
    groups = [topology.ranks_of(node) for node in range(topology.n_nodes)]
    if "groups" in options:
        options["groups"] = groups
        return leaders(collective, topology.n_ranks, **options)
    if len({len(members) for members in groups}) > 1:
        raise ScheduleError(
            f"{name}: got nodes of {[len(members) for members in groups]} ranks, wanted as many on each: "
            f"use {NODE_LEADERS}"
        )
    stages = options["shape"].stage_algorithms
    shape = Box((len(groups[0]), topology.n_nodes), stages)
    return reordered(box(collective, topology.n_ranks, shape), _node_order(topology))


@lru_cache(maxsize=8)
def _orders(topology: Topology) -> tuple[tuple[int, ...], ...]:
    return rings(topology).orders


@lru_cache(maxsize=256)
def _kept(name: str, collective: Collective, n_ranks: int) -> Schedule:
    return build(name, collective, n_ranks)
