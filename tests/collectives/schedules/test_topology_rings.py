"""The rings of a topology as one algorithm: priced, chosen, executed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from multiring.collectives.schedules import Collective, Schedule, bytes_sent, choose, cost, verify
from multiring.collectives.schedules.explore import TOPOLOGY_RINGS, built, candidates
from multiring.errors import ArgumentError, ScheduleError
from multiring.topology import host_topology, load
from multiring.topology.rings import rings

ALL_REDUCE = Collective("all_reduce")


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather"])
@pytest.mark.parametrize(("machine", "n_nodes"), [("dgx1-v100", 1), ("s822lc", 3), ("torus-3x4", 1), ("dgx-a100", 2)])
def test_rings_of_machines_keep_the_promise(
    collective: str, machine: str, n_nodes: int, execute: Callable[[Schedule, int, int], None]
) -> None:
    topology = load(machine, n_nodes)
    schedule = built(TOPOLOGY_RINGS, Collective(collective), topology.n_ranks, topology)
    verify(schedule)
    execute(schedule, 101, 5)
    assert schedule.n_chunks == topology.n_ranks * len(rings(topology))


def test_all_links_of_a_cube_mesh_carry_a_ring() -> None:
    topology, nbytes = load("dgx1-v100", 1), 8 * 6 * 1000
    schedule = built(TOPOLOGY_RINGS, ALL_REDUCE, 8, topology)
    # 6 rings of 20 GB/s with a sixth of the bytes each: 14 steps of n / 8 / 6 bytes on links that no other ring uses.
    transfer_us = sum(step.transfer_us for step in cost(schedule, topology, nbytes).steps)
    assert transfer_us == pytest.approx(14 * 1000 / 20e3)
    assert bytes_sent(schedule, nbytes).tolist() == [2 * 7 * nbytes // 8] * 8


def test_they_are_chosen_where_links_differ() -> None:
    topology = load("dgx1-v100", 1)
    choice = choose(ALL_REDUCE, 8, 1 << 26, topology=topology)
    assert choice.algorithm == TOPOLOGY_RINGS
    assert choose(ALL_REDUCE, 8, 1 << 26, topology=topology, algorithm=TOPOLOGY_RINGS).schedule == choice.schedule


def test_ordered_calls_pass_them_over() -> None:
    choice = choose(ALL_REDUCE, 8, 1 << 26, topology=load("dgx1-v100", 1), order="rank")
    assert choice.algorithm != TOPOLOGY_RINGS


def test_without_machines_there_are_none() -> None:
    assert TOPOLOGY_RINGS not in candidates(ALL_REDUCE, 4, topology=host_topology(4))
    assert TOPOLOGY_RINGS not in candidates(Collective("broadcast"), 8, topology=load("dgx1-v100", 1))
    with pytest.raises(ScheduleError, match=r"multi_ring: got no ring orders, .*multi_ring:topology needs a topology"):
        choose(ALL_REDUCE, 4, 64, algorithm=TOPOLOGY_RINGS)
    with pytest.raises(ArgumentError, match="'multi_ring': got 'x' after its colon, wanted a number of rings, or topo"):
        choose(ALL_REDUCE, 4, 64, algorithm="multi_ring:x")
