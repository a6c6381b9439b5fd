"""Machines by name. Figures come from :mod:`~multiring.topology.constants`; each machine says where its shape does."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from multiring.errors import TopologyError
from multiring.topology import constants as known
from multiring.topology.machine import Bundle, Gpu, Machine, Nic, Place

__all__ = ["PRESETS", "preset", "preset_names"]

_NCCL = "NCCL 2.30, src/graph/topo.h"
_ROOT = Place("system", "system", -1, float("inf"))
_GBIT = 1 / 8


def preset_names() -> tuple[str, ...]:
    """Return the names of all presets, with R and C standing for numbers."""
    return (*PRESETS, "mesh-RxC", "torus-RxC", "host", "host-N")


def preset(name: str) -> Machine | None:
    """Return the machine of a name, or None where no preset has this name. ``host`` is not one machine: see ``load``.

    Raises
    ------
    TopologyError
        If a mesh or torus has an impossible size.
    """
    if grid := re.fullmatch(r"(mesh|torus)-(\d{1,4})x(\d{1,4})", name):
        return _grid(name, int(grid[2]), int(grid[3]), wraps=grid[1] == "torus")
    return PRESETS[name]() if name in PRESETS else None


def _machine(
    name: str,
    capability: int,
    model: str,
    places: Sequence[Place],
    gpu_places: Sequence[int],
    nic_places: Sequence[int],
    network_gbs: float,
    sources: Sequence[str],
    switch_links: int = 0,
    pairs: Sequence[tuple[int, int, int]] = (),
    pcie: float | None = None,
    notes: Sequence[str] = (),
) -> Machine:
    link_gbs = known.nvlink_gbs(capability)
    pcie = known.pcie_of(capability) if pcie is None else pcie
    numa = _numa_of(places)
    return Machine(
        name,
        tuple(
            Gpu(
                f"GPU{at}",
                place,
                pcie,
                model,
                capability=capability,
                switch_links=switch_links,
                link_gbs=link_gbs,
                numa=numa[place],
            )
            for at, place in enumerate(gpu_places)
        ),
        tuple(
            Nic(f"NIC{at}", place, known.pcie_of(capability), network_gbs, f"mlx5_{at}", numa[place])
            for at, place in enumerate(nic_places)
        ),
        tuple(places),
        tuple(Bundle(a, b, count, link_gbs) for a, b, count in pairs),
        link_latency_us=known.NVLINK_LATENCY_US,
        notes=tuple(notes),
        source=f"preset {name}",
        sources=(
            *sources,
            *([f"NVLink {link_gbs} GB/s per link and direction: {_NCCL}"] if switch_links or pairs else []),
            f"PCIe {known.pcie_of(capability):g} GB/s: {_NCCL}, PCI_BW, by generation",
            "latencies: NCCL 2.30, src/graph/tuning.cc, ring, LL",
        ),
    )


def _numa_of(places: Sequence[Place]) -> list[int | None]:
    numbers: list[int | None] = []
    count = 0
    for place in places:
        if place.kind == "numa":
            numbers.append(count)
            count += 1
        else:
            numbers.append(None if place.parent < 0 else numbers[place.parent])
    return numbers


def _sockets(count: int, switches: int, socket_gbs: float, switch_gbs: float) -> list[Place]:
    """Return the root, ``count`` sockets of one NUMA node each, and PCIe switches dealt out to them.

    Socket s is place ``1 + s``, switch i is place ``1 + count + i``.
    """
    numa = [Place(f"socket{at}", "numa", 0, socket_gbs) for at in range(count)]
    leaves = [Place(f"switch{at}", "switch", 1 + at * count // switches, switch_gbs) for at in range(switches)]
    return [_ROOT, *numa, *leaves]


# Hybrid cube mesh: two quads, each fully linked, and GPU i to GPU i + 4.
_QUAD = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
_CUBE_MESH = [*_QUAD, *((a + 4, b + 4) for a, b in _QUAD), *((at, at + 4) for at in range(4))]
_DOUBLE = {(0, 3), (1, 2), (2, 3), (4, 7), (5, 6), (6, 7), (0, 4), (1, 5)}


def _s822lc() -> Machine:
    # GPUs hang on the CPU's NVLinks instead of PCIe.
    to_cpu_gbs = 2 * known.nvlink_gbs(60)
    places = [
        _ROOT,
        Place("socket0", "numa", 0, known.POWER8_SOCKET_GBS),
        Place("socket1", "numa", 0, known.POWER8_SOCKET_GBS),
        Place("switch0", "switch", 1, known.pcie_gbs(3)),
    ]
    return _machine(
        "s822lc", 60, "Tesla P100-SXM2-16GB", places, (1, 1, 2, 2), (3, 3), known.DEFAULT_NETWORK_GBS,
        [
            (
                "4 P100, two NVLinks between the two GPUs of a socket and two from each to its CPU, one dual-port EDR "
                "InfiniBand adapter: IBM Redpaper REDP-5405, Power System S822LC for High Performance Computing"
            ),
            f"socket link {known.POWER8_SOCKET_GBS} GB/s: the same Redpaper, line rate",
            f"network {known.DEFAULT_NETWORK_GBS} GB/s per port: {_NCCL}, NET_BW",
        ],
        pairs=[(0, 1, 2), (2, 3, 2)],
        pcie=to_cpu_gbs,
        notes=("GPUs reach the CPU and each other's socket over NVLink: nvidia-smi does not show that",),
    )  # fmt: skip


def _dgx1(name: str, capability: int, model: str, counts: Callable[[tuple[int, int]], int]) -> Machine:
    return _machine(
        name, capability, model,
        _sockets(2, 4, known.BROADWELL_SOCKET_GBS, known.pcie_gbs(3)),
        (3, 3, 4, 4, 5, 5, 6, 6), (3, 4, 5, 6), known.DEFAULT_NETWORK_GBS,
        [
            (
                "8 GPUs in a hybrid cube mesh, a PCIe switch with an EDR port for every two: NVIDIA DGX-1 white paper "
                "(WP-08437), and nvidia-smi topo -m of such machines"
            ),
            f"socket link {known.BROADWELL_SOCKET_GBS} GB/s: {_NCCL}, BDW_QPI_BW",
            f"network {known.DEFAULT_NETWORK_GBS} GB/s per port: {_NCCL}, NET_BW",
        ],
        pairs=[(a, b, counts((a, b))) for a, b in sorted(_CUBE_MESH)],
    )  # fmt: skip


def _dgx2() -> Machine:
    return _machine(
        "dgx2", 70, "Tesla V100-SXM3-32GB",
        _sockets(2, 8, known.SKYLAKE_SOCKET_GBS, known.pcie_gbs(3)),
        [3 + at // 2 for at in range(16)], range(3, 11), known.DEFAULT_NETWORK_GBS,
        [
            "16 V100 with 6 links each on NVSwitches, 8 EDR ports: NVIDIA DGX-2 system user guide (DU-09130)",
            f"socket link {known.SKYLAKE_SOCKET_GBS} GB/s: {_NCCL}, SKL_QPI_BW",
            f"network {known.DEFAULT_NETWORK_GBS} GB/s per port: {_NCCL}, NET_BW",
        ],
        switch_links=6,
    )  # fmt: skip


def _dgx_a100() -> Machine:
    return _machine(
        "dgx-a100", 80, "NVIDIA A100-SXM4-80GB",
        _sockets(2, 4, known.EPYC_ZEN2_SOCKET_GBS, known.pcie_gbs(4)),
        (3, 3, 4, 4, 5, 5, 6, 6), (3, 3, 4, 4, 5, 5, 6, 6), 200 * _GBIT,
        [
            (
                "8 A100 with 12 links each on NVSwitches, a PCIe switch with two GPUs and two HDR ports: NVIDIA DGX "
                "A100 system architecture white paper (WP-10083)"
            ),
            f"socket link {known.EPYC_ZEN2_SOCKET_GBS} GB/s: {_NCCL}, AMD_ZEN12_BW",
            "network 25 GB/s per port: 200 Gbit/s, line rate",
        ],
        switch_links=12,
    )  # fmt: skip


def _hopper(name: str, model: str, socket_gbs: float, socket_source: str, shape: str) -> Machine:
    return _machine(
        name, 90, model,
        _sockets(2, 8, socket_gbs, known.pcie_gbs(5)),
        range(3, 11), range(3, 11), 400 * _GBIT,
        [
            f"8 GPUs with 18 links each on NVSwitches, a PCIe switch with one GPU and one NDR port each: {shape}",
            f"socket link {socket_gbs} GB/s: {_NCCL}, {socket_source}",
            "network 50 GB/s per port: 400 Gbit/s, line rate",
        ],
        switch_links=18,
    )  # fmt: skip


def _gb200() -> Machine:
    graces = [Place(f"Grace{at}", "numa", 0, known.C2C_GBS) for at in range(36)]
    gpu_places = [1 + at // 2 for at in range(72)]
    return _machine(
        "gb200-nvl72", 100, "NVIDIA GB200", [_ROOT, *graces], gpu_places, gpu_places, 400 * _GBIT,
        [
            (
                "72 GPUs with 18 links each on NVSwitches, two GPUs to a Grace CPU, a 400 Gbit/s port for each GPU: "
                "NVIDIA GB200 NVL72 reference architecture"
            ),
            f"GPU to Grace {known.C2C_GBS} GB/s: NVIDIA Grace Hopper white paper, NVLink-C2C, half of 900 GB/s",
            "network 50 GB/s per port: 400 Gbit/s, line rate",
        ],
        switch_links=18,
        pcie=known.C2C_GBS,
        notes=("the rack is one node: its 18 trays share an NVLink domain",),
    )  # fmt: skip


def _pcie(n_gpus: int) -> Machine:
    n_switches = n_gpus // 2
    return _machine(
        f"pcie-{n_gpus}", 80, "PCIe GPU",
        _sockets(2, n_switches, known.SKYLAKE_SOCKET_GBS, known.pcie_gbs(4)),
        [3 + at // 2 for at in range(n_gpus)], (1, 2), known.DEFAULT_NETWORK_GBS,
        [
            "a generic server: two sockets, a PCIe Gen4 switch for every two GPUs, a 100 Gbit/s port for each socket",
            f"socket link {known.SKYLAKE_SOCKET_GBS} GB/s: {_NCCL}, SKL_QPI_BW",
            f"network {known.DEFAULT_NETWORK_GBS} GB/s per port: {_NCCL}, NET_BW",
        ],
    )  # fmt: skip


def _grid(name: str, rows: int, columns: int, wraps: bool) -> Machine:
    if not 1 <= rows * columns <= 1 << 14:
        raise TopologyError(f"preset {name}: got {rows} x {columns} chips, wanted 1 to {1 << 14} of them")
    counts: dict[tuple[int, int], int] = {}
    for row in range(rows):
        for column in range(columns):
            for down, right in ((1, 0), (0, 1)):
                there = ((row + down), (column + right))
                if wraps:
                    # A dimension of two has two links between the same chips.
                    there = there[0] % rows, there[1] % columns
                if there[0] < rows and there[1] < columns and there != (row, column):
                    pair = sorted((row * columns + column, there[0] * columns + there[1]))
                    counts[pair[0], pair[1]] = counts.get((pair[0], pair[1]), 0) + 1
    chips = rows * columns
    return Machine(
        name,
        tuple(Gpu(f"TPU{at}", 0, known.TPU_LINK_GBS, "TPU v3", link_gbs=known.TPU_LINK_GBS) for at in range(chips)),
        (Nic("NIC0", 0, known.pcie_gbs(3), known.DEFAULT_NETWORK_GBS),),
        bundles=tuple(Bundle(a, b, count, known.TPU_LINK_GBS) for (a, b), count in sorted(counts.items())),
        link_kind="ICI",
        link_latency_us=known.TPU_LINK_LATENCY_US,
        source=f"preset {name}",
        sources=(
            f"link {known.TPU_LINK_GBS} GB/s per direction: 656 Gbit/s, Jouppi et al. 2020, CACM 63(7)",
            f"latency {known.TPU_LINK_LATENCY_US} us per hop: assumed, no public figure was found",
            f"network {known.DEFAULT_NETWORK_GBS} GB/s: {_NCCL}, NET_BW; one port for the whole grid: assumed",
        ),
    )


PRESETS: dict[str, Callable[[], Machine]] = {
    "s822lc": _s822lc,
    "dgx1-p100": lambda: _dgx1("dgx1-p100", 60, "Tesla P100-SXM2-16GB", lambda _pair: 1),
    "dgx1-v100": lambda: _dgx1("dgx1-v100", 70, "Tesla V100-SXM2-16GB", lambda pair: 2 if pair in _DOUBLE else 1),
    "dgx2": _dgx2,
    "dgx-a100": _dgx_a100,
    "dgx-h100": lambda: _hopper(
        "dgx-h100", "NVIDIA H100 80GB HBM3", known.SAPPHIRE_RAPIDS_SOCKET_GBS, "SRP_QPI_BW",
        "NVIDIA DGX H100 system user guide (DU-11281)",
    ),
    "hgx-h200": lambda: _hopper(
        "hgx-h200", "NVIDIA H200", known.EPYC_ZEN4_SOCKET_GBS, "AMD_ZEN34_BW",
        "NVIDIA HGX platform; servers with two EPYC sockets, as nvidia-smi topo -m shows them",
    ),
    "gb200-nvl72": _gb200,
    "pcie-4": lambda: _pcie(4),
    "pcie-8": lambda: _pcie(8),
}  # fmt: skip
"""Machines by name; ``mesh-RxC`` and ``torus-RxC`` besides."""
