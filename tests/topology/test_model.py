"""Topologies are whole, or refused."""

from __future__ import annotations

import math

import pytest

from multiring.errors import TopologyError
from multiring.topology import Resource, Topology

WIRE = Resource("wire", 1.0, 10.0)


def test_equal_wires_are_one_wire() -> None:
    assert Resource("wire", 1.0, 10.0) == WIRE
    assert Resource("other", 1.0, 10.0) != WIRE


@pytest.mark.parametrize("latency_us", [-1.0, math.nan])
def test_a_latency_below_zero_is_refused(latency_us: float) -> None:
    with pytest.raises(TopologyError, match=r"resource w: got latency .* us, wanted at least 0"):
        Resource("w", latency_us, 1.0)


@pytest.mark.parametrize("bandwidth_gbs", [0.0, -1.0, math.nan])
def test_a_bandwidth_of_nothing_is_refused(bandwidth_gbs: float) -> None:
    with pytest.raises(TopologyError, match=r"resource w: got bandwidth .* GB/s, wanted more than 0"):
        Resource("w", 0.0, bandwidth_gbs)


def test_devices_and_nodes_match() -> None:
    with pytest.raises(TopologyError, match="topology t: got 2 devices and 1 nodes of ranks"):
        Topology("t", ("a", "b"), (0,), lambda _a, _b: (WIRE,))
    with pytest.raises(TopologyError, match="topology t: got 0 devices and 0 nodes"):
        Topology("t", (), (), lambda _a, _b: (WIRE,))
    with pytest.raises(TopologyError, match=r"topology t: got nodes \[0, 2\], wanted 0, 1, 2"):
        Topology("t", ("a", "b"), (0, 2), lambda _a, _b: (WIRE,))


def test_paths_are_checked() -> None:
    topology = Topology("t", ("a", "b", "c"), (0, 0, 1), lambda a, b: (WIRE,) if {a, b} == {0, 1} else ())
    assert topology.path(0, 1) == (WIRE,)
    assert topology.ranks_of(1) == (2,)
    with pytest.raises(TopologyError, match="topology t: no path from rank 0 to rank 2"):
        topology.path(0, 2)
    with pytest.raises(TopologyError, match="topology t: got rank 3, wanted one of 3"):
        topology.path(0, 3)
