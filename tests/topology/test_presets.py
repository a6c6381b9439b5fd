"""Presets: shapes, wires, and a source for every figure."""

from __future__ import annotations

from collections import Counter
from math import isfinite
from pathlib import Path

import pytest

from multiring.errors import TopologyError
from multiring.topology import cluster, load, preset
from multiring.topology.load import injected
from multiring.topology.presets import PRESETS
from tests.topology.machines import DGX1_V100, counts_of

GRIDS = ["mesh-3x4", "torus-4x4", "torus-2x3"]


@pytest.mark.parametrize("name", [*PRESETS, *GRIDS])
def test_every_figure_has_a_source(name: str) -> None:
    machine = preset(name)
    assert machine
    text = " ".join(machine.sources)
    for gbs in {it.link_gbs for it in machine.bundles} | {nic.network_gbs for nic in machine.nics}:
        assert f"{gbs:g}" in text, (gbs, text)
    for place in machine.places:
        if place.kind == "numa":
            assert f"{place.uplink_gbs:g}" in text
    assert "latenc" in text


@pytest.mark.parametrize(
    ("name", "ranks", "nics"),
    [
        ("s822lc", 4, 2), ("dgx1-p100", 8, 4), ("dgx1-v100", 8, 4), ("dgx2", 16, 8), ("dgx-a100", 8, 8),
        ("dgx-h100", 8, 8), ("hgx-h200", 8, 8), ("gb200-nvl72", 72, 72), ("pcie-4", 4, 2), ("pcie-8", 8, 2),
        ("mesh-3x4", 12, 1), ("torus-4x8", 32, 1),
    ],
)  # fmt: skip
def test_sizes(name: str, ranks: int, nics: int) -> None:
    machine = preset(name)
    assert machine
    assert (len(machine.gpus), len(machine.nics)) == (ranks, nics)
    topology = load(name, 3)
    assert (topology.n_ranks, topology.n_nodes) == (3 * ranks, 3)
    assert topology.ranks_of(1) == tuple(range(ranks, 2 * ranks))


@pytest.mark.parametrize("name", [*PRESETS, *GRIDS, "host-3"])
@pytest.mark.parametrize("n_nodes", [1, 2])
def test_every_pair_has_a_way_over_finite_wires(name: str, n_nodes: int) -> None:
    if name == "gb200-nvl72" and n_nodes == 2:
        return
    topology = load(name, n_nodes)
    wires: dict[str, float] = {}
    for a in range(topology.n_ranks):
        for b in range(topology.n_ranks):
            for wire in topology.path(a, b):
                assert isfinite(wire.bandwidth_gbs)
                # A name is one wire.
                assert wires.setdefault(wire.name, wire.bandwidth_gbs) == wire.bandwidth_gbs


def test_the_v100_mesh_is_that_of_the_white_paper() -> None:
    machine = preset("dgx1-v100")
    assert machine
    counts = counts_of(DGX1_V100)
    assert {(it.a, it.b): it.count for it in machine.bundles} == {
        (a, b): counts[a, b] for a in range(8) for b in range(a + 1, 8) if counts[a, b]
    }


def test_wires_are_shared() -> None:
    topology = load("pcie-8")
    names = [[wire.name for wire in topology.path(*pair)] for pair in ((0, 1), (0, 2), (0, 4), (2, 6))]
    assert names[0] == ["GPU0 PCIe out", "GPU1 PCIe in"]
    assert names[1] == ["GPU0 PCIe out", "switch0 up", "switch1 down", "GPU2 PCIe in"]
    assert set(names[2]) & set(names[3]) == {"socket0 up", "socket1 down"}
    switched = load("dgx-a100")
    assert [(wire.name, wire.bandwidth_gbs) for wire in switched.path(0, 7)] == [
        ("GPU0->NVSwitch", 240.0),
        ("NVSwitch->GPU7", 240.0),
    ]
    mesh = load("mesh-2x3")
    assert [wire.name for wire in mesh.path(0, 5)] == ["TPU0->TPU1 ICI1", "TPU1->TPU2 ICI1", "TPU2->TPU5 ICI1"]


def test_nodes_meet_on_rails_and_the_spine() -> None:
    topology = load("dgx-h100", 2)
    assert [wire.name for wire in topology.path(3, 11)] == [
        "node0 GPU3 PCIe out", "node0 NIC3 send", "rail 3 switch", "node1 NIC3 receive", "node1 GPU3 PCIe in",
    ]  # fmt: skip
    assert "spine switch" in [wire.name for wire in topology.path(3, 12)]
    uses = Counter(
        next(wire.name for wire in topology.path(rank, 8 + rank) if "send" in wire.name) for rank in range(8)
    )
    assert set(uses.values()) == {1}


def test_what_cannot_be_loaded_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"topology dgx9: got neither a file nor a preset, wanted .* dgx1-p100"):
        load("dgx9")
    with pytest.raises(TopologyError, match=r"topology dgx2: got 0 nodes, wanted at least 1"):
        load("dgx2", 0)
    with pytest.raises(TopologyError, match=r"preset mesh-0x4: got 0 x 4 chips, wanted 1 to 16384"):
        load("mesh-0x4")
    with pytest.raises(TopologyError, match=r"cannot be read: .*directory"):
        load(tmp_path)
    file = tmp_path / "topo.txt"
    file.write_text("\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tPIX\t X \n")
    assert load(file).n_ranks == 2
    with pytest.raises(TopologyError, match=r"node 0 \(topo.txt\) has no NIC to reach the other 1 nodes"):
        load(file, 2)
    with pytest.raises(TopologyError, match="topology none: got no machine, wanted at least one"):
        cluster("none", [])


def test_the_environment_injects_a_topology() -> None:
    assert injected({}, 4) is None
    topology = injected({"MULTIRING_TOPOLOGY": "dgx1-v100"}, 16, 2)
    assert topology
    assert topology.n_nodes == 2
    host = injected({"MULTIRING_TOPOLOGY": "host"}, 6, 2)
    assert host
    assert host.n_ranks == 6
    with pytest.raises(TopologyError, match=r"MULTIRING_TOPOLOGY=dgx2: got 16 ranks on 1 nodes, wanted this job's 4"):
        injected({"MULTIRING_TOPOLOGY": "dgx2"}, 4)
