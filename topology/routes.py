"""The wires between the ranks of one machine or of several: every wire that transfers share appears once, by name.

::

    one node       NVLink bundle  |  GPU -> NVSwitch -> GPU  |  connector, switches, sockets, connector
    two nodes      GPU -> (tree) -> NIC  ->  rail switch (or spine, for another rail)  ->  NIC -> (tree) -> GPU
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from multiring.errors import TopologyError
from multiring.topology.constants import NETWORK_LATENCY_US, PCIE_LATENCY_US
from multiring.topology.machine import Machine
from multiring.topology.model import Resource, Topology

__all__ = ["MachineWires", "cluster", "nearest_nics", "own_nics"]


def nearest_nics(machine: Machine, gpu: int) -> tuple[int, ...]:
    """Return the NICs that are nearest to a GPU in the tree, in their order."""
    distances = [machine.distance(gpu, len(machine.gpus) + nic) for nic in range(len(machine.nics))]
    return tuple(nic for nic, distance in enumerate(distances) if distance == min(distances))


class MachineWires:
    """The wires inside one machine.

    Parameters
    ----------
    machine : Machine
    prefix : str
        Put before the names of its wires, so that those of two nodes differ.
    """

    def __init__(self, machine: Machine, prefix: str = "") -> None:
        self.machine = machine
        self._prefix = prefix
        self._paths: dict[tuple[int, int, bool], tuple[Resource, ...]] = {}
        # Every pair of GPUs of two nodes takes one of these: they are few, and asked for thousands of times.
        self._to_nic: dict[tuple[int, int], tuple[Resource, ...]] = {}
        self._from_nic: dict[tuple[int, int], tuple[Resource, ...]] = {}

    def path(self, a: int, b: int, links: bool = True) -> tuple[Resource, ...]:
        """Return the wires from one GPU to another; over PCIe and the sockets alone where ``links`` is false."""
        key = (a, b, links)
        if key not in self._paths:
            self._paths[key] = self._link_path(a, b) if links else ()
            if not self._paths[key]:
                self._paths[key] = self._tree(a, b, both_connectors=True)
        return self._paths[key]

    def to_nic(self, gpu: int, nic: int) -> tuple[Resource, ...]:
        """Return the wires from a GPU to a NIC, and through it to the network."""
        if (gpu, nic) not in self._to_nic:
            machine, it = self.machine, self.machine.nics[nic]
            tree = self._tree(gpu, len(machine.gpus) + nic, both_connectors=False)
            port = Resource(f"{self._prefix}{it.label} send", NETWORK_LATENCY_US / 2, self._nic_gbs(nic))
            self._to_nic[gpu, nic] = (*tree, port)
        return self._to_nic[gpu, nic]

    def from_nic(self, nic: int, gpu: int) -> tuple[Resource, ...]:
        """Return the wires from the network through a NIC to a GPU."""
        if (nic, gpu) not in self._from_nic:
            machine, it = self.machine, self.machine.nics[nic]
            tree = self._tree(len(machine.gpus) + nic, gpu, both_connectors=False)
            port = Resource(f"{self._prefix}{it.label} receive", NETWORK_LATENCY_US / 2, self._nic_gbs(nic))
            self._from_nic[nic, gpu] = (port, *tree)
        return self._from_nic[nic, gpu]

    def _nic_gbs(self, nic: int) -> float:
        return min(self.machine.nics[nic].network_gbs, self.machine.nics[nic].pcie_gbs)

    def _link_path(self, a: int, b: int) -> tuple[Resource, ...]:
        machine = self.machine
        if (min(a, b), max(a, b)) in machine.refused:
            # Through host memory.
            return ()
        if machine.bundle(a, b):
            return (self._bundle(a, b),)
        if machine.switched(a, b):
            return self._through_switch(a, b)
        if len(machine.places) == 1 and machine.bundles:
            # Chips without PCIe between them: over the links of others.
            hops = _shortest(machine, a, b)
            return tuple(self._bundle(x, y) for x, y in pairwise(hops))
        return ()

    def _bundle(self, a: int, b: int) -> Resource:
        machine = self.machine
        bundle = machine.by_pair[min(a, b), max(a, b)]
        name = f"{machine.gpus[a].label}->{machine.gpus[b].label} {machine.link_kind}{bundle.count}"
        return Resource(self._prefix + name, machine.link_latency_us, bundle.count * bundle.link_gbs)

    def _through_switch(self, a: int, b: int) -> tuple[Resource, ...]:
        up, down = self.machine.gpus[a], self.machine.gpus[b]
        latency_us = self.machine.link_latency_us / 2
        return (
            Resource(f"{self._prefix}{up.label}->NVSwitch", latency_us, up.switch_links * up.link_gbs),
            Resource(f"{self._prefix}NVSwitch->{down.label}", latency_us, down.switch_links * down.link_gbs),
        )

    def _tree(self, a: int, b: int, both_connectors: bool) -> tuple[Resource, ...]:
        """Return the wires through the tree; the connectors share the latency, a NIC's own counts with its port."""
        machine = self.machine
        up, _, down = machine.climb(a, b)
        half_us = PCIE_LATENCY_US / 2
        wires: list[Resource] = []
        if both_connectors or a < len(machine.gpus):
            wires.append(
                Resource(f"{self._prefix}{machine.devices[a].label} PCIe out", half_us, machine.devices[a].pcie_gbs)
            )
        for way, places in (("up", up), ("down", down)):
            wires += [
                Resource(f"{self._prefix}{it.label} {way}", 0.0, it.uplink_gbs)
                for it in (machine.places[place] for place in places)
                if math.isfinite(it.uplink_gbs)
            ]
        if both_connectors or b < len(machine.gpus):
            wires.append(
                Resource(f"{self._prefix}{machine.devices[b].label} PCIe in", half_us, machine.devices[b].pcie_gbs)
            )
        return tuple(wires)


def cluster(name: str, machines: Sequence[Machine]) -> Topology:
    """Join machines by their NICs: NIC i of every node on rail i, all rails on a spine that never blocks.

    Parameters
    ----------
    name : str
    machines : sequence of Machine
        One for each node.

    Returns
    -------
    Topology
        Ranks by node, then by GPU.

    Raises
    ------
    TopologyError
        If there is no machine, or one of several has no NIC.

    Notes
    -----
    GPU i of those that are equally near to a NIC uses the i-th of their nearest NICs: ranks of one place spread over
    its rails, as with NCCL's rail-aligned rings.
    """
    if not machines:
        raise TopologyError(f"topology {name}: got no machine, wanted at least one")
    if len(machines) > 1:
        for node, machine in enumerate(machines):
            if not machine.nics:
                raise TopologyError(
                    f"topology {name}: node {node} ({machine.name}) has no NIC to reach the other {len(machines) - 1} "
                    "nodes, wanted a description that lists its NICs"
                )
    prefixes = [f"node{node} " if len(machines) > 1 else "" for node in range(len(machines))]
    wires = [MachineWires(machine, prefix) for machine, prefix in zip(machines, prefixes, strict=True)]
    where = [(node, gpu) for node, machine in enumerate(machines) for gpu in range(len(machine.gpus))]
    n_rails = max(len(machine.nics) for machine in machines)
    total_gbs = sum(min(nic.network_gbs, nic.pcie_gbs) for machine in machines for nic in machine.nics)
    rails = [Resource(f"rail {rail} switch", 0.0, max(total_gbs, 1.0)) for rail in range(n_rails)]
    spine = Resource("spine switch", 0.0, max(total_gbs, 1.0))
    own_nic = [own_nics(machine) for machine in machines] if len(machines) > 1 else []

    @lru_cache(maxsize=1 << 16)
    def route(src: int, dst: int) -> tuple[Resource, ...]:
        (node, gpu), (other, peer) = where[src], where[dst]
        if node == other:
            return wires[node].path(gpu, peer)
        out, into = own_nic[node][gpu], own_nic[other][peer]
        middle = (rails[out],) if out == into else (rails[out], spine, rails[into])
        return (*wires[node].to_nic(gpu, out), *middle, *wires[other].from_nic(into, peer))

    devices = tuple(
        prefix + gpu.label for machine, prefix in zip(machines, prefixes, strict=True) for gpu in machine.gpus
    )
    return Topology(name, devices, tuple(node for node, _ in where), route, tuple(machines))


def own_nics(machine: Machine) -> tuple[int, ...]:
    """Return the NIC of each GPU: the nearest, and among equally near ones the next that no earlier GPU took."""
    taken: dict[tuple[int, ...], int] = {}
    own: list[int] = []
    for gpu in range(len(machine.gpus)):
        near = nearest_nics(machine, gpu)
        taken[near] = taken.get(near, -1) + 1
        own.append(near[taken[near] % len(near)])
    return tuple(own)


def _shortest(machine: Machine, a: int, b: int) -> list[int]:
    """Return the GPUs on a shortest way over links; among equals a mesh goes along its rows first."""
    came: dict[int, int] = {b: b}
    queue = deque([b])
    while queue and a not in came:
        at = queue.popleft()
        for neighbour in machine.neighbours[at]:
            if neighbour not in came:
                came[neighbour] = at
                queue.append(neighbour)
    if a not in came:
        return []
    hops = [a]
    while hops[-1] != b:
        hops.append(came[hops[-1]])
    return hops
