"""Algorithms that keep to the nodes of a cluster, whatever the placement of its ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from multiring.collectives.schedules import Collective, Schedule, choose, cost, verify
from multiring.collectives.schedules.algorithms import build
from multiring.collectives.schedules.compose import reordered
from multiring.collectives.schedules.explore import NODE_BOX, NODE_LEADERS, built, candidates
from multiring.errors import ScheduleError
from multiring.topology import cluster_topology

ALL_REDUCE = Collective("all_reduce")
PLACEMENTS = [(0, 0, 1, 1), (0, 1, 0, 1), (0, 0, 0, 1), (1, 0, 0), (0, 1, 2, 0, 1, 2), (0, 0, 1, 2, 1)]


def crossings(schedule: Schedule, nodes: tuple[int, ...]) -> int:
    """Count the transfers from node to node, by chunks."""
    return sum(nodes[src] != nodes[dst] for step in schedule.steps for src, dst in zip(step.src, step.dst, strict=True))


@pytest.mark.parametrize("nodes", PLACEMENTS)
@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all"])
def test_every_candidate_keeps_its_promise(
    nodes: tuple[int, ...], collective: str, execute: Callable[[Schedule, int, int], None]
) -> None:
    topology = cluster_topology(nodes)
    for name in candidates(Collective(collective), len(nodes), topology=topology):
        try:
            schedule = built(name, Collective(collective), len(nodes), topology)
        except ScheduleError:
            assert ":" not in name  # such as halving_doubling of three ranks, never one made for these nodes
            continue
        verify(schedule)
        execute(schedule, 101, 5)


@pytest.mark.parametrize("nodes", PLACEMENTS)
def test_leaders_of_nodes_cross_as_few_wires_as_leaders_are(nodes: tuple[int, ...]) -> None:
    schedule = built(f"{NODE_LEADERS}:direct", ALL_REDUCE, len(nodes), cluster_topology(nodes))
    n_nodes = len(set(nodes))
    # Between k leaders, direct sends k (k - 1) chunks to be added, and as many that are.
    assert crossings(schedule, nodes) == 2 * n_nodes * (n_nodes - 1)


def test_a_box_of_nodes_under_round_robin_placement() -> None:
    nodes = (0, 1, 0, 1)
    topology = cluster_topology(nodes)
    assert NODE_BOX in candidates(ALL_REDUCE, 4, topology=topology)
    assert NODE_BOX not in candidates(ALL_REDUCE, 4, topology=cluster_topology((0, 0, 1, 1)))
    schedule = built(NODE_BOX, ALL_REDUCE, 4, topology)
    contiguous = build("box:2x2", ALL_REDUCE, 4)
    assert crossings(schedule, nodes) == crossings(contiguous, (0, 0, 1, 1))
    mine = cost(schedule, topology, 1 << 22)
    assert mine.total_us == pytest.approx(cost(contiguous, cluster_topology((0, 0, 1, 1)), 1 << 22).total_us)
    assert mine.total_us < cost(contiguous, topology, 1 << 22).total_us


@pytest.mark.parametrize("collective", ["reduce_scatter", "all_gather", "all_reduce"])
def test_reordered_ranks_own_what_the_old_ones_owned(
    collective: str, execute: Callable[[Schedule, int, int], None]
) -> None:
    schedule = reordered(build("box:2x3", collective, 6), [4, 0, 5, 2, 1, 3])
    verify(schedule)
    execute(schedule, 64, 3)


def test_a_long_all_reduce_on_two_hosts_keeps_to_the_nodes() -> None:
    topology = cluster_topology((0, 0, 1, 1))
    box = cost(build("box:2x2", ALL_REDUCE, 4), topology, 1 << 24).total_us
    assert choose(ALL_REDUCE, 4, 1 << 24, topology=topology).predicted_us == pytest.approx(box)
    round_robin = choose(ALL_REDUCE, 4, 1 << 24, topology=cluster_topology((0, 1, 0, 1)))
    assert round_robin.predicted_us == pytest.approx(box)


def test_what_needs_a_topology_says_so() -> None:
    with pytest.raises(ScheduleError, match=r"leaders: got groups \[\], wanted each of 4 ranks .*needs a topology"):
        build(NODE_LEADERS, ALL_REDUCE, 4)
    with pytest.raises(ScheduleError, match=r"box:nodes: got nodes of \[3, 1\] ranks, wanted as many on each"):
        built(NODE_BOX, ALL_REDUCE, 4, cluster_topology((0, 0, 0, 1)))
