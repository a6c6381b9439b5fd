"""Rings of machines and clusters: the most bandwidth, no wire overbooked, and the same whatever the numbering."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from math import isclose
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multiring.collectives.schedules import Collective
from multiring.collectives.schedules.algorithms.box import Box, box
from multiring.collectives.schedules.algorithms.multi_ring import multi_ring
from multiring.collectives.schedules.verify import verify
from multiring.topology import Machine, Resource, Topology, cluster, load
from multiring.topology.devices import keep_gpus
from multiring.topology.rings import levels, rings
from tests.topology.machines import DGX1_V100, Counts, arcs, check_rings, counts_of, machine_of

PRESETS = ["s822lc", "dgx1-p100", "dgx1-v100", "dgx2", "dgx-a100", "dgx-h100", "hgx-h200", "pcie-4", "pcie-8"]


@pytest.mark.parametrize(
    ("name", "gbs"),
    [
        ("s822lc", 38.4),  # the link between sockets
        ("dgx1-p100", 4 * 18.0),
        ("dgx1-v100", 6 * 20.0),
        ("dgx2", 6 * 20.0),
        ("dgx-a100", 12 * 20.0),
        ("dgx-h100", 18 * 20.6),
        ("hgx-h200", 18 * 20.6),
        ("gb200-nvl72", 18 * 40.1),
        ("pcie-8", 10.0),  # the link between sockets
        ("mesh-4x4", 2 * 82.0),
        ("torus-4x4", 4 * 82.0),
    ],
)
def test_presets_carry_what_their_links_allow(name: str, gbs: float) -> None:
    topology = load(name)
    found = rings(topology)
    check_rings(topology, found)
    assert isclose(found.total_bandwidth_gbs, gbs)


@pytest.mark.parametrize("name", [*PRESETS, "torus-3x3", "mesh-3x3"])
@pytest.mark.parametrize("n_nodes", [2, 3])
def test_rings_between_nodes_overbook_nothing(name: str, n_nodes: int) -> None:
    topology = load(name, n_nodes)
    found = rings(topology)
    check_rings(topology, found)
    # Each ring enters and leaves each node once.
    for order in found.orders:
        crossings = sum(
            topology.nodes[a] != topology.nodes[b] for a, b in zip(order, order[1:] + order[:1], strict=True)
        )
        assert crossings == n_nodes


def test_rails_are_used_whole() -> None:
    assert isclose(rings(load("dgx-a100", 2)).total_bandwidth_gbs, 8 * 24.0)
    assert isclose(rings(load("dgx1-v100", 4)).total_bandwidth_gbs, 4 * 12.0)
    for name, n_nodes in (("dgx-a100", 2), ("dgx-h100", 4)):
        topology = load(name, n_nodes)
        for order in rings(topology).orders:
            for a, b in zip(order, order[1:] + order[:1], strict=True):
                if topology.nodes[a] != topology.nodes[b]:
                    # One rail: the sender's NIC number is the receiver's.
                    assert [wire.name for wire in topology.path(a, b) if "spine" in wire.name] == []


def relabelled(machine: Machine, order: list[int]) -> Machine:
    return keep_gpus(machine, order)


@given(st.sampled_from([*PRESETS[:3], "pcie-4", "pcie-8", "mesh-3x3"]), st.randoms(use_true_random=False))
@settings(max_examples=12)
def test_a_machine_carries_as_much_whatever_its_numbers(name: str, random: Random) -> None:
    (machine,) = load(name).machines
    order = list(range(len(machine.gpus)))
    random.shuffle(order)
    other = cluster("other", [relabelled(machine, order)])
    found = rings(other)
    check_rings(other, found)
    assert isclose(found.total_bandwidth_gbs, rings(load(name)).total_bandwidth_gbs)


@st.composite
def counts(draw: st.DrawFn, most: int) -> Counts:
    size = draw(st.integers(1, most))
    found = np.zeros((size, size), dtype=np.int64)
    for a in range(size):
        for b in range(a):
            found[a, b] = found[b, a] = draw(st.sampled_from([0, 0, 1, 2]))
    return found


@given(counts(16), st.randoms(use_true_random=False))
@settings(max_examples=15)
def test_any_links_give_rings_that_do_not_depend_on_numbers(links: Counts, random: Random) -> None:
    machine = machine_of(links)
    machine = replace(
        machine,
        places=(*machine.places, replace(machine.places[0], label="s", kind="switch", parent=0, uplink_gbs=12.0)),
    )
    machine = replace(machine, gpus=tuple(replace(gpu, place=1) for gpu in machine.gpus))
    order = list(range(len(links)))
    random.shuffle(order)
    totals: list[float] = []
    for it in (machine, relabelled(machine, order)):
        topology = cluster("t", [it])
        found = rings(topology)
        check_rings(topology, found)
        totals.append(found.total_bandwidth_gbs)
    assert isclose(*totals)


# The search finds two or three cycles of this graph, by the order of its vertices: the numbers must not decide it.
IRREGULAR = [
    "0011010111011", "0010011101100", "1100110100010", "1000100011011", "0011001101110", "1110001011110",
    "0100110111111", "1110101000101", "1001011001001", "1101111010101", "0100111101011", "1011111000101",
    "1001001111110",
]  # fmt: skip


def test_a_search_that_ends_early_ends_alike_for_all_numbers() -> None:
    machine = machine_of(counts_of([" ".join(row) for row in IRREGULAR]), link_gbs=1000.0)
    random = Random(3)
    totals: set[float] = set()
    for _ in range(5):
        order = list(range(len(IRREGULAR)))
        random.shuffle(order)
        totals.add(rings(cluster("t", [relabelled(machine, order)])).total_bandwidth_gbs)
    assert len(totals) == 1


def test_the_weakest_link_of_one_order_is_the_best_there_is() -> None:
    # Two pairs with NVLink, the rest over PCIe: by brute force over all orders, one way and both.
    topology = load("s822lc")
    found = rings(topology)
    best = 0.0
    for rest in permutations(range(1, 4)):
        for both in (False, True):
            orders = [(0, *rest), (0, *rest[::-1])] if both else [(0, *rest)]
            load_of: dict[Resource, int] = {}
            for (a, b), times in arcs(orders).items():
                for wire in topology.path(a, b):
                    load_of[wire] = load_of.get(wire, 0) + times
            best = max(best, len(orders) * min(wire.bandwidth_gbs / times for wire, times in load_of.items()))
    assert isclose(found.total_bandwidth_gbs, best)


def test_the_reason_names_the_limit_and_what_is_unused() -> None:
    found = rings(load("mesh-2x3"))
    assert "share no ICI link" in found.reason
    assert found.bottleneck == "the 2 ICI links of TPU0, 82 GB/s each"
    assert found.unused == ("TPU1-TPU4: 1 and 1 of 1 ICI links",)
    lonely = counts_of(["X 4 0", "4 X 0", "0 0 X"])
    found = rings(cluster("t", [replace(machine_of(lonely), places=load("pcie-4").machines[0].places)]))
    assert found.reason.startswith("NVLink does not reach GPU2: one order, one way, over PCIe and the host with links")
    assert rings(load("pcie-4")).bottleneck == "socket0 down (10 GB/s, 1 sharer)"


def test_links_without_access_are_left_out() -> None:
    machine = machine_of(counts_of(DGX1_V100))
    machine = replace(machine, places=load("dgx1-v100").machines[0].places, refused=frozenset({(0, 3)}))
    topology = cluster("t", [machine])
    found = rings(topology)
    check_rings(topology, found)
    assert arcs(found.orders)[0, 3] == 0
    assert found.total_bandwidth_gbs == 4 * 20.0
    assert all("NV" not in wire.name for wire in topology.path(0, 3))


def test_one_rank_has_one_ring_of_nothing() -> None:
    found = rings(cluster("t", [machine_of(np.zeros((1, 1), dtype=np.int64))]))
    assert (found.orders, found.total_bandwidth_gbs) == (((0,),), 0.0)


def test_ranks_without_machines_go_in_their_order() -> None:
    wire = Resource("wire", 1.0, 10.0)
    topology = Topology("t", ("a", "b", "c"), (0, 0, 0), lambda _a, _b: (wire,))
    found = rings(topology)
    assert found.orders == ((0, 1, 2),)
    assert isclose(found.total_bandwidth_gbs, 10.0 / 3)


@pytest.mark.parametrize(("name", "n_nodes"), [("dgx1-v100", 1), ("dgx-a100", 2), ("s822lc", 2), ("host-4", 2)])
def test_rings_and_levels_make_schedules(name: str, n_nodes: int) -> None:
    topology = load(name, n_nodes)
    reduce = Collective("all_reduce")
    verify(multi_ring(reduce, topology.n_ranks, rings(topology).orders))
    verify(box(reduce, topology.n_ranks, Box(levels(topology))))


@pytest.mark.parametrize(
    ("name", "n_nodes", "sizes"),
    [
        ("s822lc", 1, (2, 2)),
        ("s822lc", 64, (2, 2, 64)),
        ("dgx1-v100", 2, (8, 2)),
        ("dgx-a100", 1, (8,)),
        ("pcie-4", 2, (4, 2)),
        ("host-4", 2, (4, 2)),
        ("host-1", 1, (1,)),
    ],
)
def test_levels(name: str, n_nodes: int, sizes: tuple[int, ...]) -> None:
    assert levels(load(name, n_nodes)) == sizes
