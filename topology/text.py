"""A topology as text: the matrix, the link kinds, the rings and why."""

from __future__ import annotations

from collections.abc import Sequence

from multiring.topology.host import Host
from multiring.topology.machine import Machine
from multiring.topology.rings import RingSet
from multiring.topology.routes import MachineWires

__all__ = ["host_text", "kinds_text", "matrix_text", "rings_text"]

MAX_SHOWN_RINGS = 16
MAX_SHOWN_RANKS = 40
_MEANS = {
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "a host bridge",
    "NODE": "host bridges of a NUMA node",
    "SYS": "the link between sockets",
}


def matrix_text(machine: Machine) -> str:
    """Return the matrix of a machine in the format of ``nvidia-smi topo -m``: tabs, and a legend of the NICs."""
    names = [device.label for device in machine.devices]
    n_gpus = len(machine.gpus)
    lines = ["\t" + "\t".join([*names, "CPU Affinity", "NUMA Affinity"])]
    for a, name in enumerate(names):
        cells = [" X " if a == b else machine.kind(a, b) for b in range(len(names))]
        beside = [machine.gpus[a].cpus, _number(machine.gpus[a].numa)] if a < n_gpus else ["", ""]
        lines.append("\t".join([name, *cells, *beside]))
    if machine.nics:
        lines += ["", "NIC Legend:", "", *(f"  {nic.label}: {nic.device or nic.label}" for nic in machine.nics)]
    return "\n".join(lines) + "\n"


def kinds_text(machine: Machine) -> list[str]:
    """Return a line for each kind of connection between GPUs: what it is, and what it carries alone."""
    wires = MachineWires(machine)
    found: dict[str, tuple[float, int]] = {}
    size = len(machine.gpus)
    for a in range(size):
        for b in range(a + 1, size):
            kind = machine.kind(a, b)
            path = wires.path(a, b)
            gbs = min((wire.bandwidth_gbs for wire in path), default=0.0)
            least, count = found.get(kind, (gbs, 0))
            found[kind] = (min(least, gbs), count + 1)
    lines: list[str] = []
    for kind, (gbs, count) in sorted(found.items(), key=lambda item: -item[1][0]):
        if kind.startswith(machine.link_kind):
            through = " through an NVSwitch" if any(gpu.switch_links for gpu in machine.gpus) else ""
            number = kind.removeprefix(machine.link_kind)
            meaning = f"{number} {'NVLink' if machine.link_kind == 'NV' else machine.link_kind + ' link'}"
            meaning += ("s" if number != "1" else "") + through
        else:
            meaning = "through " + _MEANS.get(kind, "others' links" if not gbs else "the links of others")
        lines.append(f"{kind:<6} {gbs:7.1f} GB/s  {count:4d} {'pairs' if count > 1 else 'pair '}  {meaning}")
    return lines


def rings_text(found: RingSet, devices: Sequence[str]) -> list[str]:
    """Return lines for the rings of a topology, and why they are these."""
    del devices
    lines = [f"Rings: {found.total_bandwidth_gbs:.1f} GB/s together"]
    for ring in found.rings[:MAX_SHOWN_RINGS]:
        shown = " ".join(map(str, ring.order[:MAX_SHOWN_RANKS])) + (" ..." if len(ring.order) > MAX_SHOWN_RANKS else "")
        lines.append(f"  {ring.bandwidth_gbs:7.1f} GB/s  {shown}")
    if len(found.rings) > MAX_SHOWN_RINGS:
        lines.append(f"  ... and {len(found.rings) - MAX_SHOWN_RINGS} more")
    lines += [f"Why: {found.reason}", f"Limit: {found.bottleneck}"]
    if found.unused:
        lines.append(f"Unused: {'; '.join(found.unused[:8])}" + ("; ..." if len(found.unused) > 8 else ""))
    return lines


def host_text(host: Host) -> list[str]:
    """Return lines for a host: sockets, NUMA nodes, cores, caches."""
    lines = [
        f"Sockets: {len(host.sockets)} ({'; '.join(map(cpu_list, host.sockets))})",
        f"NUMA nodes: {len(host.numa)} ({'; '.join(map(cpu_list, host.numa))})",
        f"Usable: {len(host.cores)} cores, CPUs {cpu_list(host.usable)}",
    ]
    caches: dict[tuple[int, str, int], int] = {}
    for cache in host.caches:
        key = (cache.level, cache.kind, cache.size_bytes)
        caches[key] = caches.get(key, 0) + 1
    lines += [
        f"Cache L{level} {kind.lower()}: {count} x {size_bytes / 1024:g} KiB"
        for (level, kind, size_bytes), count in sorted(caches.items())
    ]
    return lines


def cpu_list(cpus: Sequence[int]) -> str:
    """Return CPU numbers in the kernel's list format, such as 0-3,8."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _number(number: int | None) -> str:
    return "N/A" if number is None else str(number)
