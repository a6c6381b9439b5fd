"""Ranks on several hosts: shared memory inside each, one network port for each.

::

    node 0                          node 1
    rank 0   rank 1                 rank 2
      |________|__ shared memory      |
           |                          |
      node 0 send  ------------>  node 1 receive      one port of each node, each way
"""

from __future__ import annotations

from collections.abc import Sequence

from multiring.errors import TopologyError
from multiring.topology.host import SHARED_MEMORY_BANDWIDTH_GBS, SHARED_MEMORY_LATENCY_US, host_topology
from multiring.topology.measured import MOST_RANKS, Measured
from multiring.topology.model import Resource, Topology

__all__ = ["ASSUMED_NETWORK_GBS", "ASSUMED_NETWORK_LATENCY_US", "cluster_topology"]

ASSUMED_NETWORK_LATENCY_US = 10.0
"""Assumed, until the network is measured: a message between two hosts over Ethernet, through the kernel."""
ASSUMED_NETWORK_GBS = 1.25
"""Assumed, until the network is measured: a 10 Gbit/s port."""


def cluster_topology(
    nodes: Sequence[int],
    *,
    latency_us: float = SHARED_MEMORY_LATENCY_US,
    bandwidth_gbs: float = SHARED_MEMORY_BANDWIDTH_GBS,
    network_latency_us: float = ASSUMED_NETWORK_LATENCY_US,
    network_gbs: float = ASSUMED_NETWORK_GBS,
    measured: Measured | None = None,
) -> Topology:
    """Return ranks on hosts that reach each other through one port for each host.

    Parameters
    ----------
    nodes : sequence of int
        The node of each rank, numbered from 0 without gaps, in any order: ``(0, 1, 0, 1)`` for round-robin placement,
        ``(0, 0, 0, 1)`` for hosts of unequal numbers.
    latency_us, bandwidth_gbs : float
        Of one rank reading another's memory on the same host, as in
        :func:`~multiring.topology.host.host_topology`.
    network_latency_us : float
        Of a message from one host to another.
    network_gbs : float
        What the port of a host sends, and what it receives at the same time. All ranks of the host share it; the
        network between the ports never blocks.
    measured : Measured, optional
        What was measured on such hosts, and between them, instead of these.

    Returns
    -------
    Topology
        Called ``"cluster"``; for a single node the one of :func:`~multiring.topology.host.host_topology`.

    Raises
    ------
    TopologyError
        If there is no rank, the numbers of nodes have gaps, or a constant is out of range.
    """
    of_rank = tuple(int(node) for node in nodes)
    if set(of_rank) != set(range(len(set(of_rank)))) or not of_rank:
        raise TopologyError(
            f"cluster: got nodes {list(of_rank)}, wanted one for each rank, numbered 0, 1, 2, ... without gaps"
        )
    if len(set(of_rank)) == 1:
        return host_topology(len(of_rank), latency_us, bandwidth_gbs, measured)
    rates = network = None
    if measured is not None:
        most = max(of_rank.count(node) for node in set(of_rank))
        network = measured.network
        rates = network.host if network is not None and network.host is not None else measured.for_ranks(most)
        if rates is not None:
            latency_us, bandwidth_gbs = rates.latency_us, rates.bandwidth_gbs
            rates = rates if len(of_rank) <= MOST_RANKS else None
        if network is not None:
            network_latency_us, network_gbs = network.latency_us.value, network.bandwidth_gbs.value
    n_nodes = max(of_rank) + 1
    readers = tuple(
        Resource(f"shared memory to rank {rank}", latency_us, bandwidth_gbs) for rank in range(len(of_rank))
    )
    half_us = network_latency_us / 2
    send, receive = (
        tuple(Resource(f"node {node} {way}", half_us, network_gbs) for node in range(n_nodes))
        for way in ("send", "receive")
    )

    def route(src: int, dst: int) -> tuple[Resource, ...]:
        if of_rank[src] == of_rank[dst]:
            return (readers[dst],)
        return send[of_rank[src]], receive[of_rank[dst]]

    devices = tuple(f"node {node} rank {rank}" for rank, node in enumerate(of_rank))
    return Topology("cluster", devices, of_rank, route, rates=rates, network=network)
