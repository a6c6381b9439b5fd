"""Measured rates: tables over sizes, and which of several numbers of ranks stands for another."""

from __future__ import annotations

import numpy as np
import pytest

from multiring.topology import cluster_topology, host_topology
from multiring.topology.measured import (
    COEFFICIENTS,
    KNOTS_BYTES,
    MOST_RANKS,
    Estimate,
    HostRates,
    Measured,
    NetworkRates,
    knot_weights,
)


def exactly(value: float) -> Estimate:
    return Estimate(value, value, value)


def rates(n_ranks: int, n_cores: int = 4) -> HostRates:
    return HostRates(n_ranks, n_cores, {"step": exactly(0.25), "act": exactly(0.5)})


def test_weights_at_and_between_knots() -> None:
    for at, knot in enumerate(KNOTS_BYTES):
        assert knot_weights(knot).tolist() == np.eye(len(KNOTS_BYTES))[at].tolist()
    half_way = knot_weights((KNOTS_BYTES[0] * KNOTS_BYTES[1]) ** 0.5)
    assert half_way[:2] == pytest.approx([0.5, 0.5])
    assert knot_weights(0).tolist() == knot_weights(1).tolist() == knot_weights(KNOTS_BYTES[0]).tolist()
    assert knot_weights(1 << 60).tolist() == knot_weights(KNOTS_BYTES[-1]).tolist()


def test_values_are_in_the_order_of_the_coefficients() -> None:
    values = rates(2).values
    assert values[list(COEFFICIENTS).index("step")] == 0.25
    assert values[list(COEFFICIENTS).index("act")] == 0.5
    assert values.sum() == 0.75


@pytest.mark.parametrize(("wanted", "found"), [(2, 2), (3, 4), (4, 4), (5, 8), (6, 8), (100, 8), (1, 2)])
def test_the_nearest_number_that_shares_cores_or_not(wanted: int, found: int) -> None:
    # 5 ranks on 4 cores wait for a core as 8 do, and not as 4 do.
    chosen = Measured((rates(2), rates(4), rates(8))).for_ranks(wanted)
    assert chosen is not None
    assert chosen.n_ranks == found


def test_nothing_measured() -> None:
    assert Measured().for_ranks(2) is None
    assert host_topology(2, measured=Measured()).rates is None


def test_topologies_carry_the_rates_of_the_ranks_of_a_node() -> None:
    network = NetworkRates(exactly(20.0), exactly(0.5), 2, 4)
    measured = Measured((rates(2), rates(4)), network)
    host = host_topology(4, measured=measured)
    assert host.rates is measured.hosts[1]
    assert host.path(0, 1)[0].latency_us == 0.75
    assert host_topology(1, measured=measured).rates is None
    cluster = cluster_topology((0, 0, 1, 1), measured=measured)
    assert cluster.rates is measured.hosts[0]
    assert sum(wire.latency_us for wire in cluster.path(0, 2)) == 20.0
    assert {wire.bandwidth_gbs for wire in cluster.path(0, 2)} == {0.5}
    assert cluster_topology((0, 0, 0, 0), measured=measured).rates is measured.hosts[1]


def test_many_ranks_have_wires_alone() -> None:
    measured = Measured((rates(2),))
    assert host_topology(MOST_RANKS, measured=measured).rates is measured.hosts[0]
    many = host_topology(MOST_RANKS + 1, measured=measured)
    assert (many.rates, many.path(0, 1)[0].latency_us) == (None, 0.75)
    assert cluster_topology((0, 1) * MOST_RANKS, measured=measured).rates is None
