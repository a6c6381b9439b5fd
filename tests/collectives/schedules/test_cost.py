"""Predicted times are the closed forms, and a shared wire is shared."""

from __future__ import annotations

import math

import pytest

from multiring.collectives.schedules import Collective, Schedule, Step, build, cost
from multiring.errors import ScheduleError
from multiring.topology import Resource, Topology, host_topology

ALPHA_US, BANDWIDTH_GBS = 2.0, 100.0
BETA_US = 1 / (BANDWIDTH_GBS * 1000)


def full_mesh(n_ranks: int) -> Topology:
    """A link of its own for each ordered pair."""
    return Topology(
        "mesh",
        tuple(f"GPU{rank}" for rank in range(n_ranks)),
        (0,) * n_ranks,
        lambda src, dst: (Resource(f"{src}>{dst}", ALPHA_US, BANDWIDTH_GBS),),
    )


def two_nodes() -> Topology:
    """Two nodes of four, one NIC each; ports of 200 GB/s inside."""

    def route(src: int, dst: int) -> tuple[Resource, ...]:
        if src // 4 == dst // 4:
            return Resource(f"out {src}", 0.5, 200.0), Resource(f"in {dst}", 0.5, 200.0)
        return Resource(f"NIC {src // 4} out", 1.5, 25.0), Resource(f"NIC {dst // 4} in", 1.5, 25.0)

    return Topology("pair", tuple(f"GPU{rank}" for rank in range(8)), (0,) * 4 + (1,) * 4, route)


@pytest.mark.parametrize("p", [1, 2, 4, 8, 16])
def test_closed_forms(p: int) -> None:
    n = 1 << 20
    lg = int(math.log2(p))
    mesh = full_mesh(p)
    wanted = {
        "ring": 2 * (p - 1) * (ALPHA_US + n / p * BETA_US),
        "halving_doubling": 2 * lg * ALPHA_US + 2 * (p - 1) / p * n * BETA_US,
        "recursive_doubling": lg * (ALPHA_US + n * BETA_US),
        "binomial": 2 * lg * (ALPHA_US + n * BETA_US),
        # The messages beyond a rank's first cost a quarter of their latency.
        "direct": 2 * (ALPHA_US * (1 + (p - 2) / 4) + n / p * BETA_US) * (p > 1),
        "one_shot": (ALPHA_US * (1 + (p - 2) / 4) + n * BETA_US) * (p > 1),
    }
    got = {name: cost(build(name, "all_reduce", p), mesh, n).total_us for name in wanted}
    assert got == pytest.approx(wanted)


def test_additions_take_their_time_on_the_rank_that_adds_most() -> None:
    p, n, gamma_us = 4, 1 << 20, 1 / (10.0 * 1000)
    plain, adding = (cost(build("ring", "all_reduce", p), full_mesh(p), n, gbs).total_us for gbs in (math.inf, 10.0))
    assert adding - plain == pytest.approx((p - 1) / p * n * gamma_us)
    # At the root alone, while others idle.
    at_root = build("one_shot", Collective("reduce", 2), p)
    plain, adding = (cost(at_root, full_mesh(p), n, gbs).total_us for gbs in (math.inf, 10.0))
    assert adding - plain == pytest.approx((p - 1) * n * gamma_us)


def test_a_ring_that_crosses_the_network_once_beats_one_that_always_does() -> None:
    topology, n = two_nodes(), 1 << 26
    good = cost(build("ring", "all_reduce", 8), topology, n)
    bad = cost(build("ring", "all_reduce", 8, order=[0, 4, 1, 5, 2, 6, 3, 7]), topology, n)
    # Four transfers leave each node in every step, instead of one.
    assert bad.total_us / good.total_us == pytest.approx(4.0, rel=0.01)
    assert bad.steps[0].bottleneck == Resource("NIC 0 out", 1.5, 25.0)
    assert bad.steps[0].load_bytes == 4 * n // 8
    assert good.steps[0].load_bytes == n // 8


def test_a_box_beats_a_ring_where_steps_cost() -> None:
    topology = two_nodes()
    box, ring = (cost(build(name, "all_reduce", 8), topology, 1 << 10) for name in ("box:4x2", "ring"))
    assert box.total_us < ring.total_us


def test_readers_of_one_host_share_nothing_but_their_own_core() -> None:
    topology = host_topology(4, latency_us=1.0, bandwidth_gbs=10.0)
    # Each of 4 ranks reads 3 times a quarter, twice.
    assert cost(build("direct", "all_reduce", 4), topology, 40_000).total_us == pytest.approx(2 * (1.5 + 3.0))


def test_a_step_of_nothing_takes_no_time() -> None:
    schedule = Schedule(Collective("broadcast"), 2, 1, (Step([], [], [], False), Step([0], [1], [0], False)))
    steps = cost(schedule, full_mesh(2), 100).steps
    assert steps[0].total_us == 0.0
    assert steps[0].bottleneck is None
    assert steps[1].total_us == pytest.approx(ALPHA_US + 100 * BETA_US)


def test_wrong_numbers_are_refused() -> None:
    schedule = build("ring", "all_reduce", 4)
    with pytest.raises(ScheduleError, match="cost: got ring of 4 ranks on mesh of 3, wanted equal numbers"):
        cost(schedule, full_mesh(3), 1)
    with pytest.raises(
        ScheduleError, match=r"cost: got -1 bytes, inf GB/s and a message gap of 0.25, wanted at least 0"
    ):
        cost(schedule, full_mesh(4), -1)
    with pytest.raises(ScheduleError, match=r"a message gap of 2.0, .* and a gap from 0 to 1"):
        cost(schedule, full_mesh(4), 1, message_gap=2.0)


def test_messages_of_a_rank_queue_but_chunks_of_a_message_do_not() -> None:
    mesh = full_mesh(4)
    fan_in = Schedule(Collective("gather"), 4, 4, (Step([1, 2, 3], [0, 0, 0], [1, 2, 3], False),))
    fan_out = Schedule(Collective("broadcast"), 4, 1, (Step([0, 0, 0], [1, 2, 3], [0, 0, 0], False),))
    together = Schedule(Collective("broadcast"), 4, 3, (Step([0, 0, 0], [1, 1, 1], [0, 1, 2], False),))
    apart = Schedule(Collective("all_gather"), 4, 4, (Step([0, 1, 2, 3], [1, 2, 3, 0], [0, 1, 2, 3], False),))
    for schedule, gap, wanted_us in [
        (fan_in, 0.5, 2.0 * ALPHA_US),
        (fan_out, 0.5, 2.0 * ALPHA_US),
        (fan_out, 0.0, ALPHA_US),
        (together, 0.5, ALPHA_US),
        (apart, 0.5, ALPHA_US),
    ]:
        assert cost(schedule, mesh, 0, message_gap=gap).total_us == pytest.approx(wanted_us)
