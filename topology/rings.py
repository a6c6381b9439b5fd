"""The ring orders of a machine or cluster that together give the most bandwidth, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from multiring.topology.canonical import canonical_order
from multiring.topology.cycles import pack_cycles
from multiring.topology.machine import Machine
from multiring.topology.model import Resource, Topology
from multiring.topology.orders import best_order
from multiring.topology.rails import node_orders
from multiring.topology.routes import MachineWires

__all__ = ["Ring", "RingSet", "levels", "link_counts", "rings", "share_gbs"]

MAX_CANONICAL = 16
"""GPUs up to which the total does not depend on how they are numbered."""


@dataclass(frozen=True, slots=True)
class Ring:
    """One ring.

    Attributes
    ----------
    order : tuple of int
        Ranks; each sends to the next, the last to the first.
    bandwidth_gbs : float
        What each of its links carries while all rings of its set run.
    """

    order: tuple[int, ...]
    bandwidth_gbs: float


@dataclass(frozen=True, slots=True)
class RingSet:
    """Rings that run at once.

    Attributes
    ----------
    rings : tuple of Ring
        An order that is worth several shares comes several times: all rings have one bandwidth.
    reason : str
        Why these.
    bottleneck : str
        The wire that limits them, and how many rings share it.
    unused : tuple of str
        Links that no ring uses.
    is_best : bool
        Whether it is shown that no set of rings over these links has more.
    """

    rings: tuple[Ring, ...]
    reason: str
    bottleneck: str
    unused: tuple[str, ...]
    is_best: bool

    @property
    def orders(self) -> tuple[tuple[int, ...], ...]:
        """The orders, as ``multi_ring`` takes them."""
        return tuple(ring.order for ring in self.rings)

    @property
    def total_bandwidth_gbs(self) -> float:
        """What all rings carry together."""
        return sum(ring.bandwidth_gbs for ring in self.rings)

    def __iter__(self) -> Iterator[Ring]:
        return iter(self.rings)

    def __len__(self) -> int:
        return len(self.rings)


def rings(topology: Topology) -> RingSet:
    """Return the ring orders of a topology that together give the most bandwidth.

    Parameters
    ----------
    topology : Topology

    Returns
    -------
    RingSet
        At least one ring. The same topology gives the same rings on every run and every rank.

    Notes
    -----
    One node: over NVLink, each direction of each link in at most one ring; over an NVSwitch in rank order; else over
    PCIe, with NVLink where it helps. Several nodes: one ring for each rail, entering and leaving a node at the GPUs of
    its NIC. Where links carry less together than PCIe does, PCIe it is.
    """
    if topology.n_ranks == 1:
        return RingSet((Ring((0,), 0.0),), "one rank: nothing to send", "nothing", (), True)
    if not topology.machines:
        return _plain(topology)
    if topology.n_nodes > 1:
        return _between_nodes(topology)
    return _in_node(topology, topology.machines[0])


def link_counts(machine: Machine) -> NDArray[np.int64]:
    """Return how many direct links join each pair of GPUs that may use them; shape (n, n)."""
    counts = np.zeros((len(machine.gpus),) * 2, dtype=np.int64)
    for bundle in machine.bundles:
        if (bundle.a, bundle.b) not in machine.refused:
            counts[bundle.a, bundle.b] = counts[bundle.b, bundle.a] = bundle.count
    return counts


def share_gbs(topology: Topology, orders: Sequence[Sequence[int]]) -> tuple[float, Resource, int]:
    """Return what each of several rings carries if all run at once, the wire that limits them, and its rings.

    Parameters
    ----------
    topology : Topology
    orders : sequence of sequence of int
        At least one ring of at least two ranks.

    Notes
    -----
    Nodes of one kind are alike: of many, the first four and the last are counted.
    """
    nodes = topology.nodes
    alike = len(set(map(id, topology.machines))) == 1
    loads: Counter[Resource] = Counter()
    for order in orders:
        for src, dst in zip(order, [*order[1:], order[0]], strict=True):
            if not alike or nodes[src] < 4 or nodes[src] == topology.n_nodes - 1:
                loads.update(topology.path(src, dst))
    wire = min(loads, key=lambda it: (it.bandwidth_gbs / loads[it], it.name))
    return wire.bandwidth_gbs / loads[wire], wire, loads[wire]


def levels(topology: Topology) -> tuple[int, ...]:
    """Return the sizes of the box that fits the machine, nearest ranks first: what the ``box`` schedules take.

    GPUs that NVLink joins, such groups in a node, nodes. One size where groups differ or their ranks are not
    consecutive.
    """
    if not topology.machines:
        sizes = Counter(topology.nodes)
        per_node = set(sizes.values())
        return (
            (topology.n_ranks,)
            if len(per_node) > 1
            else tuple(s for s in (per_node.pop(), len(sizes)) if s > 1) or (1,)
        )
    groups: list[int] = []
    for machine in topology.machines:
        sizes_in_node = _islands(machine)
        if sizes_in_node is None or len(set(sizes_in_node)) != 1:
            sizes_in_node = [len(machine.gpus)]
        groups.extend(sizes_in_node)
    per_node = {len(machine.gpus) for machine in topology.machines}
    if len(set(groups)) != 1 or len(per_node) != 1:
        return (topology.n_ranks,)
    size = per_node.pop()
    return tuple(s for s in (groups[0], size // groups[0], topology.n_nodes) if s > 1) or (1,)


def _islands(machine: Machine) -> list[int] | None:
    """Return the sizes of the groups that links join; None where a group's ranks are not consecutive."""
    size = len(machine.gpus)
    joined = [[machine.switched(a, b) or machine.bundle(a, b) is not None for b in range(size)] for a in range(size)]
    group = list(range(size))
    for a in range(size):
        for b in range(a):
            if joined[a][b]:
                group = [group[b] if it == group[a] else it for it in group]
    if not any(map(any, joined)):
        return [size]
    runs = [at for at in range(size) if at == 0 or group[at] != group[at - 1]]
    return [b - a for a, b in zip(runs, [*runs[1:], size], strict=True)] if len(runs) == len(set(group)) else None


def _plain(topology: Topology) -> RingSet:
    order = tuple(range(topology.n_ranks))
    gbs, wire, sharers = share_gbs(topology, [order])
    return RingSet((Ring(order, gbs),), "ranks in their order", _limit(wire, sharers), (), False)


def _in_node(topology: Topology, machine: Machine) -> RingSet:
    size = len(machine.gpus)
    if all(gpu.switch_links for gpu in machine.gpus) and not machine.refused:
        order = tuple(range(size))
        gbs, wire, sharers = share_gbs(topology, [order])
        reason = "all GPUs are on an NVSwitch: every order carries as much, so ranks in their order"
        return RingSet((Ring(order, gbs),), reason, _limit(wire, sharers), (), True)
    counts = link_counts(machine)
    # Searched in an order that does not depend on how the GPUs are numbered: so neither does the total.
    wanted = canonical_order(_weights(machine, counts)) if size <= MAX_CANONICAL else list(range(size))
    packing = pack_cycles(counts[np.ix_(wanted, wanted)])
    link_gbs = min((bundle.link_gbs for bundle in machine.bundles), default=0.0)
    found = sorted(_from_zero([wanted[vertex] for vertex in cycle]) for cycle in packing.cycles)
    linked_gbs = len(found) * link_gbs
    orders, gbs, wire, sharers = best_order(MachineWires(machine), size, wanted)
    if linked_gbs >= len(orders) * gbs * (1 - 1e-9):
        return _over_links(machine, counts, found, link_gbs, packing.bound, packing.is_exact)
    missing = _why_not_links(machine, counts, len(found))
    way = "both ways" if len(orders) == 2 else "one way"
    reason = (
        f"{missing}: one order, {way}, over PCIe and the host{' with links where they help' if counts.any() else ''}"
    )
    # Without links every wire of the tree cuts the machine in two: each ring crosses it at least once.
    is_best = not counts.any() and sharers == len(orders)
    # A ring over PCIe shares a bundle with nothing: it takes the whole.
    unused = _unused(machine, counts, orders, int(counts.max()))
    return RingSet(tuple(Ring(order, gbs) for order in orders), reason, _limit(wire, sharers), unused, is_best)


def _over_links(
    machine: Machine,
    counts: NDArray[np.int64],
    orders: Sequence[tuple[int, ...]],
    gbs: float,
    bound: int,
    is_exact: bool,
) -> RingSet:
    kind = "NVLink" if machine.link_kind == "NV" else f"{machine.link_kind} link"
    times = Counter(orders)
    shared = int(np.gcd.reduce(list(times.values())))
    if shared > 1:
        # The same orders, each carrying more: fewer rings to run.
        orders = [order for order in sorted(times) for _ in range(times[order] // shared)]
    n_links = int(counts.sum())
    used = len(machine.gpus) * len(orders) * shared
    reason = (
        f"{len(orders) * shared} directed Hamiltonian cycles that share no {kind}: they use {used} of {n_links} "
        f"directed links; no group of GPUs has more than {bound} links out"
    )
    if len(orders) * shared < bound:
        reason += (
            ", and no set of cycles has more" if is_exact else ", a larger set was not found within the search's bound"
        )
    weakest = int(counts.sum(axis=1).argmin())
    limit = f"the {int(counts.sum(axis=1).min())} {kind}s of {machine.gpus[weakest].label}, {gbs:g} GB/s each"
    return RingSet(
        tuple(Ring(order, gbs * shared) for order in orders), reason, limit,
        _unused(machine, counts, orders, shared), is_exact,
    )  # fmt: skip


def _between_nodes(topology: Topology) -> RingSet:
    orders, n_rails = node_orders(topology, [link_counts(machine) for machine in topology.machines])
    # The fewest rings that carry what all do: where a node's own wires are full before its NICs are.
    sizes = sorted({min(1 << power, n_rails) for power in range(n_rails.bit_length() + 1)})
    options = [(orders[:size], *share_gbs(topology, orders[:size])) for size in sizes]
    most = max(len(some) * gbs for some, gbs, _, _ in options)
    chosen, gbs, wire, sharers = next(option for option in options if len(option[0]) * option[1] >= 0.98 * most)
    rails = "one rail" if n_rails == 1 else f"{n_rails} rails"
    reason = (
        f"{'one ring' if len(chosen) == 1 else f'{len(chosen)} rings'} over {rails} between {topology.n_nodes} nodes: "
        "each enters and leaves a node at the GPUs of its rail's NIC; where a NIC has one GPU, rings alternate "
        "between two rails"
    )
    return RingSet(tuple(Ring(order, gbs) for order in chosen), reason, _limit(wire, sharers), (), False)


def _limit(wire: Resource, sharers: int) -> str:
    return f"{wire.name} ({wire.bandwidth_gbs:g} GB/s, {sharers} {'sharers' if sharers > 1 else 'sharer'})"


def _weights(machine: Machine, counts: NDArray[np.int64]) -> list[list[int]]:
    """Return numbers that say all that the search uses of a pair of GPUs."""
    size = len(counts)
    ports = sorted({gpu.pcie_gbs for gpu in machine.gpus})
    return [
        [
            ports.index(machine.gpus[a].pcie_gbs) if a == b else int(counts[a, b]) * 8 + machine.distance(a, b)
            for b in range(size)
        ]
        for a in range(size)
    ]


def _from_zero(order: Sequence[int]) -> tuple[int, ...]:
    at = list(order).index(0)
    return (*order[at:], *order[:at])


def _why_not_links(machine: Machine, counts: NDArray[np.int64], n_rings: int) -> str:
    if not counts.any():
        return "no NVLink is known between these GPUs"
    alone = [machine.gpus[at].label for at, row in enumerate(counts) if not row.any()]
    if alone:
        return f"NVLink does not reach {', '.join(alone)}"
    return "links make no ring through all GPUs" if not n_rings else f"{n_rings} rings over links carry less"


def _unused(machine: Machine, counts: NDArray[np.int64], orders: Sequence[Sequence[int]], each: int) -> tuple[str, ...]:
    """Return the links that rings leave if each takes as many of a bundle; both directions of a pair in one text."""
    left = counts.copy()
    for order in orders:
        for a, b in zip(order, [*order[1:], order[0]], strict=True):
            left[a, b] -= each
    texts: list[str] = []
    for bundle in machine.bundles:
        there, back = max(0, int(left[bundle.a, bundle.b])), max(0, int(left[bundle.b, bundle.a]))
        if there or back:
            names = f"{machine.gpus[bundle.a].label}-{machine.gpus[bundle.b].label}"
            texts.append(f"{names}: {there} and {back} of {bundle.count} {machine.link_kind} links")
    return tuple(texts)
