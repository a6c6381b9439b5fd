"""Ranks on several hosts: who shares which wire."""

from __future__ import annotations

import pytest

from multiring.collectives.schedules.algorithms import build
from multiring.collectives.schedules.cost import cost
from multiring.errors import TopologyError
from multiring.topology import cluster_topology, host_topology


def test_ranks_of_a_node_share_its_port_and_read_each_other() -> None:
    found = cluster_topology((0, 0, 1, 1), network_latency_us=8.0, network_gbs=2.0)
    assert found.name == "cluster"
    assert found.nodes == (0, 0, 1, 1)
    assert [wire.name for wire in found.path(0, 1)] == ["shared memory to rank 1"]
    assert [wire.name for wire in found.path(1, 2)] == ["node 0 send", "node 1 receive"]
    assert found.path(0, 3) == found.path(1, 2)  # the same wires, so that they share their bandwidth
    assert sum(wire.latency_us for wire in found.path(0, 2)) == 8.0
    assert {wire.bandwidth_gbs for wire in found.path(0, 2)} == {2.0}


def test_both_ways_of_a_port_are_two_wires() -> None:
    found = cluster_topology((0, 1))
    assert not set(found.path(0, 1)) & set(found.path(1, 0))


@pytest.mark.parametrize("nodes", [(0, 1, 0, 1), (0, 0, 0, 1), (1, 0, 0), (2, 0, 1, 0)])
def test_any_placement(nodes: tuple[int, ...]) -> None:
    found = cluster_topology(nodes)
    for src in range(len(nodes)):
        for dst in range(len(nodes)):
            if src != dst:
                crosses = [wire.name for wire in found.path(src, dst) if wire.name.startswith("node")]
                assert bool(crosses) == (nodes[src] != nodes[dst])


def test_a_step_pays_the_port_for_all_ranks_of_a_node() -> None:
    found = cluster_topology((0, 0, 1, 1), network_latency_us=0.0, network_gbs=1.0)
    # all_gather by pairs, 4000 bytes in all: every rank sends its 1000 bytes to both ranks of the other node at once.
    (step,) = cost(build("direct", "all_gather", 4), found, 4000).steps
    assert step.bottleneck is not None
    assert step.bottleneck.name.startswith("node")
    assert step.load_bytes == 4000
    assert step.transfer_us == pytest.approx(4.0)


def test_one_node_is_a_host() -> None:
    found, host = cluster_topology((0, 0, 0)), host_topology(3)
    assert (found.name, found.devices, found.nodes) == (host.name, host.devices, host.nodes)
    assert found.path(0, 1) == host.path(0, 1)


@pytest.mark.parametrize("nodes", [(), (0, 2), (1, 1), (-1, 0)])
def test_numbers_with_gaps_are_refused(nodes: tuple[int, ...]) -> None:
    with pytest.raises(TopologyError, match=r"cluster: got nodes \[.*wanted one for each rank, numbered 0, 1, 2"):
        cluster_topology(nodes)


def test_constants_out_of_range_are_refused() -> None:
    with pytest.raises(TopologyError, match=r"node 0 send: got bandwidth 0\.0 GB/s, wanted more than 0"):
        cluster_topology((0, 1), network_gbs=0.0)
    with pytest.raises(TopologyError, match=r"got latency -1\.0 us, wanted at least 0"):
        cluster_topology((0, 1), network_latency_us=-2.0)
