"""A machine as ranks and the shared wires between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from multiring.errors import TopologyError

if TYPE_CHECKING:
    from multiring.topology.machine import Machine
    from multiring.topology.measured import HostRates, NetworkRates

__all__ = ["Resource", "Topology"]


@dataclass(frozen=True, slots=True)
class Resource:
    """One wire that transfers share: an NVLink bundle, a PCIe switch, a NIC, a memory bus.

    Equal by value: all paths that name the same resource share its bandwidth, so a wire in both directions is two
    resources of different names.

    Attributes
    ----------
    name : str
        Unique in a topology.
    latency_us : float
        Microseconds that one crossing adds to a transfer, at least 0.
    bandwidth_gbs : float
        Bytes per nanosecond (1e9 bytes per second) that all transfers on it share, above 0.
    """

    name: str
    latency_us: float
    bandwidth_gbs: float

    def __post_init__(self) -> None:
        if not self.latency_us >= 0.0:
            raise TopologyError(f"resource {self.name}: got latency {self.latency_us} us, wanted at least 0")
        if not self.bandwidth_gbs > 0.0:
            raise TopologyError(f"resource {self.name}: got bandwidth {self.bandwidth_gbs} GB/s, wanted more than 0")


@dataclass(frozen=True)
class Topology:
    """Ranks, where they are, and which wires a transfer between two of them crosses.

    Parameters
    ----------
    name : str
        What plans call it.
    devices : tuple of str
        The device of each rank, such as ``"GPU2"`` or ``"rank 3"``.
    nodes : tuple of int
        The node of each rank. Nodes are numbered from 0, without gaps.
    route : callable
        ``route(src, dst)`` for two different ranks returns the resources on the way. Pure, so that it can be asked for
        thousands of ranks without a table of all pairs.
    machines : tuple of Machine, optional
        What each node is made of, where that is known: what ring orders are found in.
    rates : HostRates, optional
        What ranks that share a node's memory were measured to take: prices then count copies and sums by them, and
        only wires between nodes by their resources.
    network : NetworkRates, optional
        What calls between nodes were measured to take besides their wires.

    Raises
    ------
    TopologyError
        If there is no rank, or devices and nodes do not match.
    """

    name: str
    devices: tuple[str, ...]
    nodes: tuple[int, ...]
    route: Callable[[int, int], tuple[Resource, ...]] = field(repr=False)
    machines: tuple[Machine, ...] = field(default=(), repr=False, compare=False)
    rates: HostRates | None = field(default=None, repr=False, compare=False)
    network: NetworkRates | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.devices or len(self.devices) != len(self.nodes):
            raise TopologyError(
                f"topology {self.name}: got {len(self.devices)} devices and {len(self.nodes)} nodes of ranks, "
                "wanted one of each for every rank, and at least one rank"
            )
        if set(self.nodes) != set(range(self.n_nodes)):
            raise TopologyError(f"topology {self.name}: got nodes {sorted(set(self.nodes))}, wanted 0, 1, 2, ...")
        if self.machines and [len(machine.gpus) for machine in self.machines] != [
            self.nodes.count(node) for node in range(self.n_nodes)
        ]:
            raise TopologyError(
                f"topology {self.name}: its machines have other numbers of GPUs than its nodes of ranks"
            )

    @property
    def n_ranks(self) -> int:
        """Number of ranks."""
        return len(self.devices)

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return max(self.nodes) + 1

    def ranks_of(self, node: int) -> tuple[int, ...]:
        """Return the ranks on a node, ascending."""
        return tuple(rank for rank, its_node in enumerate(self.nodes) if its_node == node)

    def path(self, src: int, dst: int) -> tuple[Resource, ...]:
        """Return the wires from one rank to another; none from a rank to itself.

        Raises
        ------
        TopologyError
            If there is no such rank, or no way between the two.
        """
        for rank in (src, dst):
            if not 0 <= rank < self.n_ranks:
                raise TopologyError(f"topology {self.name}: got rank {rank}, wanted one of {self.n_ranks}")
        if src == dst:
            return ()
        path = self.route(src, dst)
        if not path:
            raise TopologyError(f"topology {self.name}: no path from rank {src} to rank {dst}")
        return path
