"""Outputs that people posted of real machines are read or refused, and give the rings that NCCL found."""

from __future__ import annotations

import csv
import re
from math import isclose
from pathlib import Path

import pytest

from multiring.errors import TopologyError
from multiring.topology import load
from multiring.topology.rings import rings
from multiring.topology.smi_lists import read_gpu_list, read_nvlink_status, read_query
from multiring.topology.smi_matrix import read_matrices
from tests.topology.machines import NO_SAVED, SAVED, arcs, check_rings

INDEX = SAVED / "INDEX.tsv"
ENTRIES = list(csv.DictReader(INDEX.read_text().splitlines(), delimiter="\t")) if INDEX.exists() else []
pytestmark = pytest.mark.skipif(not ENTRIES, reason=NO_SAVED)

# What no reader may take for good, and what each refusal says.
REFUSED = {
    "nccl-topo_2x-a100-pcie-bridge_faulty_01.xml": r"line 5: got 1 NVLinks from .* and 12 back",
    "nccl-topo_azure-ncv4-4xa100_01.xml": r"line 5: got an NVLink from 0001:00:00.0 to itself",
    "nccl-topo_aws-g5.48xl-8xa10g_01.xml": r"got no <gpu> and no PCI device of class",
    "nvlink-s_h100-sxm_elided_01.txt": r"line 3: got '\[\.\.\.\]', wanted Link 1",
    "nvlink-s_h800-8gpu_elided_01.txt": r"line 19: got '\.\.\.', wanted Link 8",
}
NOT_TOPOLOGIES = {
    "nccl-graph": r"got an NCCL graph, which holds ring orders",
    "smi-qx": r"got nvidia-smi -q -x, which lists GPUs",
    "nccl-log": r"got no matrix",
    "nvlink-": r"got no matrix",
    "smi-": r"got no matrix",
    "topo-p2p": r"got only matrices of nvidia-smi topo -p2p",
}


def names(*starts: str) -> list[str]:
    return [entry["file"] for entry in ENTRIES if entry["file"].startswith(starts)]


def text_of(name: str) -> str:
    return (SAVED / name).read_bytes().decode("utf-8", "replace")


@pytest.mark.parametrize("name", names("topo-m", "nccl-topo"))
def test_topologies_are_read_whole_or_refused(name: str) -> None:
    if name in REFUSED:
        with pytest.raises(TopologyError, match=REFUSED[name]):
            load(SAVED / name)
        return
    topology = load(SAVED / name)
    (machine,) = topology.machines
    text = text_of(name)
    if name.endswith(".xml"):
        n_gpus = text.count("<gpu ") or len(re.findall('class="0x030[02]', text))
    else:
        n_gpus = len(set(re.findall(r"^[# \t]*(?:\|[^|]*\|[^|]*\|)?\s*(GPU\d+)[\s|]+X?", text, re.MULTILINE)))
    assert topology.n_ranks == n_gpus
    size = len(machine.devices)
    assert all(machine.kind(a, b) == machine.kind(b, a) for a in range(size) for b in range(a))
    found = rings(topology)
    check_rings(topology, found)


@pytest.mark.parametrize("name", names("nccl-graph", "nccl-log", "nvlink-", "smi-", "topo-p2p"))
def test_other_outputs_are_no_topologies(name: str) -> None:
    message = next(message for start, message in NOT_TOPOLOGIES.items() if name.startswith(start))
    with pytest.raises(TopologyError, match=message):
        load(SAVED / name)


@pytest.mark.parametrize("name", names("nvlink-"))
def test_only_nvlink_s_is_a_status(name: str) -> None:
    text = text_of(name)
    if not name.startswith("nvlink-s") or name in REFUSED:
        with pytest.raises(TopologyError, match=REFUSED.get(name, r"line [12]: got")):
            read_nvlink_status(text, name)
        return
    for status in read_nvlink_status(text, name):
        assert len(status.rates_gbs) == text.split(f"GPU {status.index}:")[1].split("GPU ")[0].count("GB/s")
        assert bool(status.rates_gbs) != bool(status.why_none)


@pytest.mark.parametrize("name", names("smi-L", "smi-query", "topo-p2p"))
def test_lists_queries_and_states(name: str) -> None:
    text = text_of(name)
    if name.startswith("smi-L"):
        gpus, lost = read_gpu_list(text, name)
        assert not lost
        assert sum(len(gpu.mig) for gpu in gpus) == text.count("UUID: MIG-")
        assert len(gpus) == text.count("UUID: GPU-")
    elif name.startswith("smi-query"):
        rows = read_query(text, name)
        assert rows
        assert all(re.fullmatch(r"[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.0", row["pci.bus_id"]) for row in rows)
    else:
        (matrix,) = read_matrices(text, name)
        assert matrix.is_p2p


def reference(name: str) -> list[list[int]]:
    """Return the rings that NCCL found, by the index."""
    text = next(entry["NCCL rings (if known)"] for entry in ENTRIES if entry["file"] == name) or ""
    text = re.sub(r".*?(\.xml|\.txt): ", "", text)
    return [[int(rank) for rank in ring.split("-")] for ring in re.findall(r"\d+(?:-\d+)+", text)]


@pytest.mark.parametrize(
    "name", ["topo-m_dgx1-v100_01.txt", "nccl-topo_dgx1-v100_01.xml", "topo-m_8xv100-hybrid-mesh_2026driver_01.txt"]
)
def test_dgx1_v100_uses_every_directed_nvlink_once(name: str) -> None:
    topology = load(SAVED / name)
    found = rings(topology)
    (machine,) = topology.machines
    links = {(a, b): it.count for it in machine.bundles for a, b in ((it.a, it.b), (it.b, it.a))}
    assert len(found) == 6 == len(reference(name))
    assert arcs(found.orders) == links == arcs(reference(name))
    assert found.total_bandwidth_gbs == 120.0
    assert found.is_best
    assert not found.unused


def test_four_gpus_of_it_have_the_four_rings_of_nccl() -> None:
    name = "topo-m_aws-p3.8xlarge-4xv100_01.txt"
    found = rings(load(SAVED / name))
    assert sorted(found.orders) == sorted(map(tuple, reference(name)))
    assert found.total_bandwidth_gbs == 80.0


def test_azures_permuted_mesh_carries_as_much() -> None:
    topology = load(SAVED / "topo-m_azure-ndv2-8xv100_01.txt")
    found = rings(topology)
    assert len(found) == 6
    assert found.total_bandwidth_gbs == 120.0


def test_dgx1_p100_uses_all_its_nvlinks() -> None:
    topology = load(SAVED / "topo-m_dgx1-p100_01.txt")
    found = rings(topology)
    assert len(found) == 4
    assert sum(arcs(found.orders).values()) == 2 * sum(it.count for it in topology.machines[0].bundles) == 32
    assert not found.unused


@pytest.mark.parametrize(
    ("name", "gbs"),
    [
        ("topo-m_a100-hgx-8gpu_01.txt", 240.0),
        ("topo-m_h100-hgx-8gpu_03.txt", 370.8),
        ("topo-m_h200-hgx-8gpu_01.txt", 370.8),
        ("topo-m_a800-hgx-8gpu_01.txt", 160.0),
        ("nccl-topo_h800-hgx-8gpu_01.xml", 164.8),
        ("nccl-topo_oci-b200-8gpu-vm_01.xml", 721.8),
    ],
)
def test_nvswitch_machines_go_in_rank_order(name: str, gbs: float) -> None:
    found = rings(load(SAVED / name))
    assert found.orders == (tuple(range(8)),)
    assert isclose(found.total_bandwidth_gbs, gbs)


@pytest.mark.parametrize("name", ["nccl-topo_4x-a6000-pcie_01.xml", "nccl-topo_4x-4090-trx_01.xml"])
def test_pcie_boxes_go_in_rank_order(name: str) -> None:
    found = rings(load(SAVED / name))
    assert found.orders == ((0, 1, 2, 3),)
    assert [list(order) for order in found.orders] == reference(name) or not reference(name)


def test_two_nodes_of_polaris_alternate_as_nccl_does() -> None:
    topology = load(SAVED / "topo-m_polaris-a100-4gpu_mdtable_01.txt", n_nodes=2)
    found = rings(topology)
    check_rings(topology, found)
    # NCCL crosses between the nodes from 3 to 7 and from 5 to 1, and back: GPU 3 and GPU 1 are next to a NIC.
    crossings = {
        frozenset(pair) for ring in reference_of_log() for pair in pairs(ring) if (pair[0] < 4) != (pair[1] < 4)
    }
    ours = {frozenset(pair) for ring in found.orders for pair in pairs(ring) if (pair[0] < 4) != (pair[1] < 4)}
    assert crossings == {frozenset((3, 7)), frozenset((1, 5))}
    assert ours == crossings


def reference_of_log() -> list[list[int]]:
    return reference("nccl-log_polaris-2n8g_01.txt")


def pairs(ring: list[int] | tuple[int, ...]) -> list[tuple[int, int]]:
    return list(zip(ring, [*ring[1:], ring[0]], strict=True))


def test_the_index_lists_every_file() -> None:
    assert {entry["file"] for entry in ENTRIES} == {path.name for path in Path(SAVED).iterdir()} - {
        "README.md",
        "INDEX.tsv",
    }
