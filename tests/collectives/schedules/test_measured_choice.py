"""Prices and choices on hosts that were measured: what the rates say decides, and nothing that one rank alone knows."""

from __future__ import annotations

import numpy as np
import pytest

from multiring.collectives.schedules import Collective, choose, cost
from multiring.collectives.schedules.algorithms import build
from multiring.collectives.schedules.explanation import explain
from multiring.collectives.schedules.explore import explore_fairly, size_class
from multiring.collectives.schedules.measured_cost import MANNERS, SYMMETRIC, Manner, features
from multiring.collectives.schedules.ordering import n_roundings
from multiring.topology import Topology, cluster_topology, host_topology
from multiring.topology.measured import KNOTS_BYTES, Estimate, HostRates, Measured, NetworkRates

ALL_REDUCE = Collective("all_reduce")


def rates(n_ranks: int, n_cores: int | None = None, **values: float) -> HostRates:
    """Return rates; ``peer_read=1.0`` is for every size, ``call__eager`` is ``call.eager``."""
    found = {}
    for name, value in values.items():
        plain = name.replace("__", ".")
        tables = [f"{plain}.{knot}" for knot in KNOTS_BYTES]
        for each in tables if plain in ("own_read", "peer_read", "write", "sum_write", "rewrite") else [plain]:
            found[each] = Estimate(value, value, value)
    return HostRates(n_ranks, n_cores or n_ranks, found)


def host(n_ranks: int, n_cores: int | None = None, **values: float) -> Topology:
    """Return ranks on a host of such rates."""
    return host_topology(n_ranks, measured=Measured((rates(n_ranks, n_cores, **values),)))


def price(
    name: str, topology: Topology, nbytes: int, manner: Manner = SYMMETRIC, collective: str = "all_reduce"
) -> float:
    return cost(build(name, collective, topology.n_ranks), topology, nbytes, manner=manner).total_us


def test_a_direct_all_reduce_by_hand() -> None:
    nbytes = 1 << 20
    half = nbytes // 2 / 1000
    # In symmetric memory each rank adds its half out of two arrays into both outputs: one step, one act.
    read = price("direct", host(2, peer_read=1.0), nbytes)
    assert read == pytest.approx(half)
    assert price("direct", host(2, own_read=1.0), nbytes) == pytest.approx(half)
    assert price("direct", host(2, sum_write=1.0), nbytes) == pytest.approx(2 * half)
    assert price("direct", host(2, rewrite=1.0), nbytes, Manner(in_place=True)) == pytest.approx(2 * half)
    assert price("direct", host(2, rewrite=1.0), nbytes) == 0.0
    assert price("direct", host(2, sum=1.0), nbytes) == pytest.approx(2 * half)
    assert price("direct", host(2, step=3.0, act=2.0, call__symmetric=7.0), nbytes) == pytest.approx(12.0)
    # Ordinary arrays: the other's half goes into a slot, and comes out of one; so does the sum, for the other rank.
    ordinary = Manner(symmetric=False)
    assert price("direct", host(2, slot_write=1.0), nbytes, ordinary) == pytest.approx(half)
    assert price("direct", host(2, slot_sum_write=1.0), nbytes, ordinary) == pytest.approx(half)
    assert price("direct", host(2, slot_read=1.0), nbytes, ordinary) == pytest.approx(2 * half)
    assert price("direct", host(2, peer_read=1.0), nbytes, ordinary) == 0.0


def test_short_calls_are_eager_as_long_as_they_fit() -> None:
    topology = host(2, call__eager=1.0, call__symmetric=100.0)
    assert price("one_shot", topology, 8192) == pytest.approx(1.0)
    assert price("one_shot", topology, 8193) == pytest.approx(100.0)
    # direct keeps two chunks of half the vector in the slot: the same room.
    assert price("direct", topology, 8192) == pytest.approx(1.0)


def test_calls_start_by_collective_place_and_name() -> None:
    topology = host(2, start__all_reduce__in_place=5.0, named__all_reduce__out_of_place=7.0)
    assert price("direct", topology, 64) == 0.0
    assert price("direct", topology, 64, Manner(in_place=True)) == 5.0
    assert price("direct", topology, 64, Manner(named=True)) == 7.0
    assert price("direct", topology, 64, Manner(named=True), "all_gather") == 0.0


def test_ranks_that_share_cores_add_up() -> None:
    nbytes = 1 << 20
    alone, shared = host(4, 4, peer_read=1.0), host(4, 2, peer_read=1.0)
    # A reduce of one_shot: the root alone reads, 3 n; sharing cores costs it nothing.
    assert price("one_shot", shared, nbytes, collective="reduce") == price(
        "one_shot", alone, nbytes, collective="reduce"
    )
    # An all_reduce of one_shot: all ranks read 3 n, on two cores one after another.
    assert price("one_shot", shared, nbytes) == pytest.approx(2 * price("one_shot", alone, nbytes))


def test_the_price_is_the_features_times_the_values() -> None:
    topology = host(4, step=0.5, act=0.1, peer_read=0.02, own_read=0.01, sum_write=0.03, slot_read=0.02, slice__act=0.2)
    assert topology.rates is not None
    for name in ("ring", "direct", "chain", "recursive_doubling"):
        schedule = build(name, ALL_REDUCE, 4)
        for manner in MANNERS:
            for nbytes in (0, 1, 100, 8192, 1 << 20):
                table = features(schedule, nbytes, topology.rates, manner, topology.nodes)
                assert (table >= 0).all()
                wanted = (table.sum(axis=(0, 1)) * topology.rates.values).sum()
                found = cost(schedule, topology, nbytes, manner=manner)
                assert found.total_us == pytest.approx(wanted)
                # What a plan shows of its steps adds up to its price.
                assert sum(step.total_us for step in found.steps) + found.launch_us == pytest.approx(wanted)


@pytest.mark.parametrize("favourite", ["ring", "recursive_doubling", "binomial"])
def test_tables_make_another_algorithm_win(favourite: str) -> None:
    # Where only one thing costs, the algorithm that does it least wins.
    dear = {
        "ring": {"peer_read": 1.0, "slot_read": 1.0, "own_read": 0.0, "sum": 0.3},
        "recursive_doubling": {"step": 10.0, "act": 10.0, "peer_read": 1.0, "sum": 1.0},
        "binomial": {"slot_sum_write": 5.0},
    }[favourite]
    topology = host(4, None, **dear)
    prices = {one.algorithm: one for one in explore_fairly(ALL_REDUCE, topology, 1 << 16)}
    choice = choose(ALL_REDUCE, 4, 1 << 16, topology=topology)
    assert choice.algorithm == next(iter(prices))
    assert "as measured: the least on the whole" in choice.reason
    ratios = []
    for manner in MANNERS:
        each = {name: price(name, topology, 1 << 16, manner) for name in prices}
        ratios.append(each[choice.algorithm] / (min(each.values()) or 1.0))
    everybody = [
        np.mean(
            [
                price(name, topology, 1 << 16, m) / (min(price(o, topology, 1 << 16, m) for o in prices) or 1.0)
                for m in MANNERS
            ]
        )
        for name in prices
    ]
    assert np.mean(ratios) == pytest.approx(min(everybody))


def test_a_wait_that_costs_makes_one_shot_win_at_any_size() -> None:
    topology = host(2, step=1e6, slice__step=0.0)
    assert choose(ALL_REDUCE, 2, 1 << 20).algorithm == "direct"
    found = choose(ALL_REDUCE, 2, 1 << 20, topology=topology)
    assert found.predicted_us == pytest.approx(1e6)
    assert {other.algorithm for other in found.alternatives} >= {"direct", "ring", "chain"}


def test_sums_of_16_bits_are_rounded_once_on_a_host() -> None:
    topology = host(4, peer_read=1.0, slot_read=1.0, own_read=0.4, sum=0.5)
    for nbytes in (8, 1 << 12, 1 << 16, 1 << 22):
        choice = choose(ALL_REDUCE, 4, nbytes, topology=topology, reduces16=True)
        assert n_roundings(choice.schedule) == 1


def test_the_choice_does_not_depend_on_the_manner_and_the_price_does() -> None:
    topology = host(2, call__symmetric=1.0, call__ordinary=2.0)
    choice = choose(ALL_REDUCE, 2, 1 << 16, topology=topology)
    prices = [explain(choice, 1 << 16, topology, manner=manner).predicted_us for manner in MANNERS]
    assert prices == [1.0, 1.0, 2.0, 2.0]
    text = str(explain(choice, 1 << 16, topology))
    assert "predicted 1.0 us" in text


@pytest.mark.parametrize(
    ("nbytes", "wanted"), [(0, 0), (1, 1), (15, 15), (16, 16), (17, 18), (8192, 8192), (8193, 9216), (1 << 30, 1 << 30)]
)
def test_size_classes(nbytes: int, wanted: int) -> None:
    assert size_class(nbytes) == wanted


def test_between_hosts_wires_are_added() -> None:
    network = NetworkRates(Estimate(10.0, 10.0, 10.0), Estimate(1.0, 1.0, 1.0), 2, 4)
    measured = Measured((rates(2, call__symmetric=1.0, call__eager=1.0),), network)
    topology = cluster_topology((0, 0, 1, 1), measured=measured)
    schedule = build("direct", "all_gather", 4)
    found = cost(schedule, topology, 1 << 20)
    # Each node sends the quarters of its two ranks to both ranks of the other: n bytes at 1 GB/s. Within a node nothing
    # costs here but the call.
    assert found.steps[0].transfer_us == pytest.approx((1 << 20) / 1000)
    assert found.steps[0].bottleneck is not None
    assert found.steps[0].bottleneck.name.startswith("node")
    assert found.steps[0].latency_us >= 10.0
    assert found.launch_us == pytest.approx(1.0)
