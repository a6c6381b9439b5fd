"""The topology XML of NCCL: what ``NCCL_TOPO_DUMP_FILE`` writes and ``NCCL_TOPO_FILE`` reads.

::

    <system> <cpu numaid> <pci switch> <pci> <gpu dev sm> <nvlink target count tclass/>
                                       <pci> <nic> <net name speed/>
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NoReturn

from multiring.errors import TopologyError
from multiring.topology import constants as known
from multiring.topology.machine import Bundle, Gpu, Machine, Nic, Place
from multiring.topology.smi_lists import normal_bus_id
from multiring.topology.xml_text import Element, parse_xml

__all__ = ["read_nccl_topology"]

_GPU_CLASSES = ("0x0302", "0x0300")
_NET_CLASSES = ("0x0200", "0x0207")
_SWITCH_CLASS = "0x0604"
_NVSWITCH_CLASS = "0x068000"
# Speeds of virtual bridges and tunnels are made up, and nothing is behind them: no PCIe device.


@dataclass(slots=True)
class _Found:
    """A GPU before its links are known."""

    gpu: Gpu
    order: int
    element: Element
    links: list[Element] = field(default_factory=list)


@dataclass(slots=True)
class _Reader:
    where: str
    places: list[Place] = field(default_factory=lambda: [Place("system", "system", -1, float("inf"))])
    gpus: list[_Found] = field(default_factory=list)
    nics: list[Nic] = field(default_factory=list)
    hinted_nics: int = 0


def read_nccl_topology(text: str, where: str) -> Machine:
    """Read an NCCL topology XML.

    Parameters
    ----------
    text : str
    where : str
        What error messages call the text.

    Returns
    -------
    Machine
        GPUs by their ``dev``, or in the order of the text where it is a vendor's hint without ``gpu`` elements.

    Raises
    ------
    TopologyError
        If the text is no such XML, holds no GPU, or its NVLinks do not agree from both ends; with the line.

    Notes
    -----
    As in NCCL, targets of class 0x068000 are NVSwitches whatever bus id they name; no GPU has more links to them than
    its generation has. Network devices without a PCIe device, bridges and tunnels of containers, are left out.
    """
    root = parse_xml(text, where)
    if root.tag == "graphs":
        _refuse(where, root, "got an NCCL graph, which holds ring orders; wanted the topology: NCCL_TOPO_DUMP_FILE")
    if root.tag == "nvidia_smi_log":
        _refuse(
            where, root,
            "got nvidia-smi -q -x, which lists GPUs and not what joins them; wanted nvidia-smi topo -m",
        )  # fmt: skip
    if root.tag != "system":
        _refuse(where, root, f"got <{root.tag}>, wanted <system> as NCCL writes it")
    reader = _Reader(where)
    cpus = root.named("cpu")
    for cpu in cpus:
        _read_cpu(reader, cpu)
    if not reader.gpus:
        _refuse(where, root, "got no <gpu> and no PCI device of class 0x0302 or 0x0300, wanted at least one GPU")
    return _machine(reader)


def _machine(reader: _Reader) -> Machine:
    found = sorted(reader.gpus, key=lambda it: it.order)
    orders = [it.order for it in found]
    if len(set(orders)) != len(orders):
        _refuse(reader.where, found[-1].element, f"got dev numbers {orders}, wanted each once")
    buses = {it.gpu.bus_id: at for at, it in enumerate(found)}
    if len(buses) != len(found):
        _refuse(reader.where, found[-1].element, "got two GPUs of one busid")
    counts: dict[tuple[int, int], tuple[int, Element]] = {}
    switch_links = [0] * len(found)
    for at, it in enumerate(found):
        for link in it.links:
            _read_link(reader, found, buses, at, link, counts, switch_links)
    for (a, b), (count, element) in counts.items():
        if counts.get((b, a), (0, element))[0] != count:
            back = counts.get((b, a), (0, element))[0]
            _refuse(
                reader.where, element,
                f"got {count} NVLinks from {found[a].gpu.bus_id} to {found[b].gpu.bus_id} and {back} back, wanted as "
                "many",
            )  # fmt: skip
    notes = [f"without <gpu> elements: GPUs by PCI class, NVLinks not known ({len(found)} GPUs)"]
    if any(it.element.tag == "gpu" for it in found):
        notes = []
    gpus: list[Gpu] = []
    for at, it in enumerate(found):
        most = known.max_links(it.gpu.capability)
        if switch_links[at] > most:
            notes.append(f"{it.gpu.label}: {switch_links[at]} links to NVSwitches count as {most}, as many as it has")
        gpu, links = it.gpu, min(switch_links[at], most)
        gpus.append(
            Gpu(
                f"GPU{at}", gpu.place, gpu.pcie_gbs, bus_id=gpu.bus_id, capability=gpu.capability, switch_links=links,
                link_gbs=known.nvlink_gbs(gpu.capability), numa=gpu.numa,
            )
        )  # fmt: skip
    return Machine(
        "nccl-topology",
        tuple(gpus),
        tuple(reader.nics),
        tuple(reader.places),
        tuple(
            Bundle(a, b, count, min(gpus[a].link_gbs, gpus[b].link_gbs))
            for (a, b), (count, _) in sorted(counts.items())
            if a < b
        ),
        link_latency_us=known.NVLINK_LATENCY_US,
        notes=tuple(notes),
        source=reader.where,
    )


def _read_link(
    reader: _Reader,
    found: list[_Found],
    buses: dict[str, int],
    at: int,
    link: Element,
    counts: dict[tuple[int, int], tuple[int, Element]],
    switch_links: list[int],
) -> None:
    count = _number(reader.where, link, "count", 1, 1000)
    if link.attributes.get("tclass", "").lower() == _NVSWITCH_CLASS:
        switch_links[at] += count
        return
    target = _bus_id(reader.where, link, "target")
    if target not in buses:
        # A link to the CPU (POWER, Grace), or to a GPU that this container does not see.
        return
    peer = buses[target]
    if peer == at:
        _refuse(reader.where, link, f"got an NVLink from {target} to itself, wanted a link to another GPU")
    before = counts.get((at, peer), (0, link))[0]
    counts[at, peer] = (before + count, link)


def _read_cpu(reader: _Reader, cpu: Element) -> None:
    numa = _number(reader.where, cpu, "numaid", -1, 1 << 16)
    place = len(reader.places)
    reader.places.append(Place(f"NUMA{numa}", "numa", 0, _socket_gbs(cpu)))
    if len({it.label for it in reader.places}) != len(reader.places):
        _refuse(reader.where, cpu, f"got numaid {numa} twice, wanted each once")
    for pci in cpu.named("pci"):
        _read_pci(reader, pci, place, numa)


def _read_pci(reader: _Reader, pci: Element, above: int, numa: int) -> None:
    bus_id, pcie_gbs = _bus_id(reader.where, pci, "busid"), _pcie_gbs(reader.where, pci)
    kind = pci.attributes.get("class", "").lower()
    gpus, nics, below = pci.named("gpu"), pci.named("nic"), pci.named("pci")
    if below or kind.startswith(_SWITCH_CLASS):
        place = len(reader.places)
        reader.places.append(Place(f"switch {bus_id}", "switch", above, pcie_gbs))
        for child in below:
            _read_pci(reader, child, place, numa)
    for gpu in gpus:
        capability = _number(reader.where, gpu, "sm", 10, 999)
        dev = _number(reader.where, gpu, "dev", 0, 1 << 16)
        it = Gpu(f"GPU{dev}", above, pcie_gbs, bus_id=bus_id, capability=capability, numa=numa)
        reader.gpus.append(_Found(it, dev, gpu, gpu.named("nvlink")))
    if not gpus and kind.startswith(_GPU_CLASSES):
        order = len(reader.gpus)
        it = Gpu(f"GPU{order}", above, pcie_gbs, bus_id=bus_id, numa=numa)
        reader.gpus.append(_Found(it, order, pci))
    for net in (net for nic in nics for net in nic.named("net")):
        mbits = _number(reader.where, net, "speed", 0, 10**8)
        name = net.attributes.get("name", "")
        label = f"NIC{len(reader.nics)}"
        # NCCL writes -1 or 0 where it does not know the speed.
        speed_gbs = mbits / 8000 if mbits else known.DEFAULT_NETWORK_GBS
        reader.nics.append(Nic(label, above, pcie_gbs, speed_gbs, name, numa))
    if not nics and kind.startswith(_NET_CLASSES):
        reader.nics.append(Nic(f"NIC{len(reader.nics)}", above, pcie_gbs, known.DEFAULT_NETWORK_GBS, bus_id, numa))


def _pcie_gbs(where: str, pci: Element) -> float:
    """Return what a connection carries; Gen3 x16 where a virtual machine hides it, as NCCL takes it."""
    text, width = pci.attributes.get("link_speed", ""), pci.attributes.get("link_width", "")
    rate = re.match(r"([0-9]{1,3}(?:\.[0-9]{1,2})?) GT/s", text, re.ASCII)
    generation = known.pcie_generation(float(rate[1])) if rate else None
    if text and generation is None and not text.startswith("Unknown"):
        _refuse(where, pci, f"got link_speed {text!r}, wanted such as 16.0 GT/s")
    lanes = _number(where, pci, "link_width", 0, 32) if width else 0
    return known.pcie_gbs(generation or 3, lanes or 16)


def _socket_gbs(cpu: Element) -> float:
    get = cpu.attributes.get
    family, model = (int(text) if (text := get(key, "")).isdecimal() else 0 for key in ("familyid", "modelid"))
    return known.socket_gbs(get("arch", ""), get("vendor", ""), family, model)


def _bus_id(where: str, element: Element, key: str) -> str:
    try:
        return normal_bus_id(element.attributes.get(key, ""))
    except TopologyError as error:
        _refuse(where, element, str(error))


def _number(where: str, element: Element, key: str, least: int, most: int) -> int:
    text = element.attributes.get(key, "")
    try:
        number = int(text, 0)
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        _refuse(where, element, f"got {key}={text!r} in <{element.tag}>, wanted a number from {least} to {most}")
    return number


def _refuse(where: str, element: Element, what: str) -> NoReturn:
    raise TopologyError(f"{where}, line {element.line}: {what}")
