"""A machine from the matrix of ``nvidia-smi topo -m``: the tree of switches and sockets that its cells imply."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from multiring.errors import TopologyError
from multiring.topology import constants as known
from multiring.topology.machine import Bundle, Gpu, Machine, Nic, Place
from multiring.topology.smi_matrix import KINDS, Matrix

__all__ = ["GpuFacts", "machine_of_matrix"]


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What is known of a GPU beside the matrix."""

    model: str = ""
    bus_id: str = ""
    uuid: str = ""
    capability: int | None = None
    pcie_gbs: float | None = None
    link_rate_gbs: float | None = None
    """Line rate of one NVLink, where the generation is not known by name."""


def machine_of_matrix(
    matrix: Matrix,
    name: str,
    source: str,
    facts: dict[str, GpuFacts] | None = None,
    nic_gbs: dict[str, float] | None = None,
    refused: Iterable[tuple[int, int]] = (),
) -> Machine:
    """Return the machine that a matrix describes.

    Parameters
    ----------
    matrix : Matrix
        Of ``topo -m`` or ``topo -mp``.
    name, source : str
        As in :class:`~multiring.topology.machine.Machine`.
    facts : dict, optional
        By label, ``"GPU0"``.
    nic_gbs : dict, optional
        What the port of a NIC carries, by the kernel's name of it.
    refused : iterable of tuple of int
        Pairs that cannot read each other's memory.

    Raises
    ------
    TopologyError
        If GPUs on an NVSwitch do not reach each other over the same links.

    Notes
    -----
    Devices at PIX of each other share a switch, at PXB a switch above those, at PHB a host bridge, at NODE or with the
    same affinity a NUMA node. NV# hides how two GPUs are plugged in: their cells with others tell, or nothing does, and
    they count as plugged in apart. More links than a GPU can have, added over its row, are an NVSwitch: the same links
    each time.
    """
    facts = facts or {}
    n_gpus, names = len(matrix.gpus), matrix.gpus + matrix.nics
    notes: list[str] = []
    links = _links(matrix)
    switched = _switched(matrix, links, facts, source)
    places, plugged = _tree(matrix)
    gpus: list[Gpu] = []
    for at, label in enumerate(matrix.gpus):
        known_of = facts.get(label, GpuFacts())
        capability = _capability(known_of, matrix, links[at], at in switched)
        numa = re.match("[0-9]+", matrix.numa[at])
        gpus.append(
            Gpu(
                label,
                plugged[at],
                known_of.pcie_gbs or known.pcie_of(capability),
                known_of.model,
                known_of.bus_id,
                known_of.uuid,
                known_of.capability,
                max(links[at]) if at in switched else 0,
                _link_gbs(known_of, capability),
                int(numa[0]) if numa else None,
                matrix.cpus[at],
            )
        )
    if any(gpu.capability is None for gpu in gpus):
        notes.append(_guessed(gpus, links))
    if matrix.hides_nvlink:
        notes.append("topo -mp leaves NVLinks out: rings go over PCIe; topo -m shows them")
    ports = nic_gbs or {}
    nics = tuple(
        Nic(
            label,
            plugged[n_gpus + at],
            known.pcie_of(gpus[0].capability),
            ports.get(matrix.nic_devices[label], known.DEFAULT_NETWORK_GBS),
            matrix.nic_devices[label],
        )
        for at, label in enumerate(matrix.nics)
    )
    if any(nic.device not in ports for nic in nics):
        notes.append(f"NIC speeds are not in this text: taken as {known.DEFAULT_NETWORK_GBS:g} GB/s (100 Gbit/s)")
    return Machine(
        name,
        tuple(gpus),
        nics,
        places,
        tuple(
            Bundle(a, b, count, min(gpus[a].link_gbs, gpus[b].link_gbs))
            for a in range(n_gpus)
            for b in range(a + 1, n_gpus)
            if (count := links[a][b]) and not {a, b} <= switched
        ),
        link_latency_us=known.NVLINK_LATENCY_US,
        kinds=tuple(tuple(cell or "?" for cell in row) for row in matrix.cells),
        refused=frozenset((min(pair), max(pair)) for pair in refused if max(pair) < len(names)),
        notes=tuple(notes),
        source=source,
    )


def _links(matrix: Matrix) -> list[list[int]]:
    n_gpus = len(matrix.gpus)
    return [[int(cell[2:]) if cell.startswith("NV") else 0 for cell in row[:n_gpus]] for row in matrix.cells[:n_gpus]]


def _switched(matrix: Matrix, links: Sequence[Sequence[int]], facts: dict[str, GpuFacts], source: str) -> set[int]:
    """Return the GPUs on an NVSwitch: those with more links in their row than a GPU can have.

    Where the generation is not known, five or more to each of several GPUs tell too: no machine has that many wired.
    """
    switched: set[int] = set()
    most = [known.max_links(facts.get(label, GpuFacts()).capability) for label in matrix.gpus]
    for at, (label, row) in enumerate(zip(matrix.gpus, links, strict=True)):
        unknown = facts.get(label, GpuFacts()).capability is None
        if sum(row) > most[at] or (unknown and sum(count > 4 for count in row) > 1):
            switched.add(at)
    counts = {links[a][b] for a in switched for b in range(len(links)) if a != b}
    for at in switched:
        wrong = next((b for b in range(len(links)) if links[at][b] and b not in switched), None)
        if wrong is not None or len(counts - {0}) != 1:
            raise TopologyError(
                f"{source}, matrix at line {matrix.line}: got {sum(links[at])} NVLinks in the row of {matrix.gpus[at]}"
                f", wanted at most the {most[at]} of a GPU, or one number to every GPU on its NVSwitch"
            )
    return switched


def _capability(facts: GpuFacts, matrix: Matrix, row: Sequence[int], switched: bool) -> int | None:
    """Return the generation of a GPU; where its name is not known, by how many NVLinks it has."""
    if facts.capability is not None:
        return facts.capability
    if not any(row):
        return None
    count = max(row) if switched else sum(row)
    if count > 12:
        return 90
    return 60 if matrix.old_legend and count <= 4 else 80 if count > 6 else 70


def _link_gbs(facts: GpuFacts, capability: int | None) -> float:
    if facts.capability is None and facts.link_rate_gbs:
        # Four fifths of the line rate: what NCCL's table comes to for every generation.
        return round(0.8 * facts.link_rate_gbs, 3)
    return known.nvlink_gbs(capability)


def _guessed(gpus: Sequence[Gpu], links: Sequence[Sequence[int]]) -> str:
    if not any(map(any, links)):
        return f"GPU models are not in this text: PCIe taken as {gpus[0].pcie_gbs:g} GB/s (Gen3 x16)"
    rate = next(gpu.link_gbs for gpu, row in zip(gpus, links, strict=True) if any(row))
    return (
        f"GPU models are not in this text: NVLink taken as {rate:g} GB/s per link, PCIe as {gpus[0].pcie_gbs:g} GB/s, "
        "by the number of links"
    )


def _tree(matrix: Matrix) -> tuple[tuple[Place, ...], list[int]]:
    """Return the places, and the place of each device."""
    size = len(matrix.cells)
    groups = [*range(size)]
    levels: list[list[int]] = []
    for kind in KINDS[:-1]:
        groups = list(groups)
        for a in range(size):
            for b in range(a):
                if matrix.cells[a][b] == kind:
                    _join(groups, a, b)
        if kind == "NODE":
            for a, b in _same_affinity(matrix):
                # SYS says that they are apart, whatever CPUs the job was given.
                if not any(
                    matrix.cells[x][y] == "SYS"
                    for x in range(size)
                    for y in range(size)
                    if groups[x] == groups[a] and groups[y] == groups[b]
                ):
                    _join(groups, a, b)
        levels.append(groups)
    gpu_gbs = known.pcie_of(None)
    places = [Place("system", "system", -1, float("inf"))]
    parent = [0] * size
    kinds = (("numa", "NUMA"), ("bridge", "bridge"), ("switches", "switches"), ("switch", "switch"))
    for groups, (kind, label) in zip(levels[::-1], kinds, strict=True):
        members: dict[int, list[int]] = {}
        for device, group in enumerate(groups):
            members.setdefault(group, []).append(device)
        number = 0
        for devices in members.values():
            # A place of one device changes nothing, but for the link between sockets.
            above = parent[devices[0]]
            # A bridge for all of a NUMA node adds nothing, nor do several switches that are one.
            is_whole_node = kind == "bridge" and parent.count(above) == len(devices)
            is_one_switch = kind == "switches" and len({levels[0][device] for device in devices}) == 1
            if kind != "numa" and (len(devices) == 1 or is_whole_node or is_one_switch):
                continue
            gbs = known.DEFAULT_SOCKET_GBS if kind == "numa" else gpu_gbs
            places.append(Place(f"{label}{number}", kind, above, gbs))
            number += 1
            for device in devices:
                parent[device] = len(places) - 1
    return tuple(places), parent


def _join(groups: list[int], a: int, b: int) -> None:
    """Put two devices and all that are with them into one group."""
    low, high = sorted((groups[a], groups[b]))
    groups[:] = [low if group == high else group for group in groups]


def _same_affinity(matrix: Matrix) -> Iterable[tuple[int, int]]:
    """Yield pairs of GPUs next to the same CPUs and memory."""
    keys = [(numa or cpus, cpus) if numa or cpus else None for numa, cpus in zip(matrix.numa, matrix.cpus, strict=True)]
    for a, key in enumerate(keys):
        for b in range(a):
            if key is not None and keys[b] == key:
                yield a, b
