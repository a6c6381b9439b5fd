"""A host as Linux describes it: sockets, NUMA nodes, caches, and the cores that the process may use."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from multiring.errors import TopologyError
from multiring.topology.measured import MOST_RANKS, Measured
from multiring.topology.model import Resource, Topology

__all__ = ["Cache", "Host", "host_topology", "parse_cpu_list", "read_host"]

SHARED_MEMORY_LATENCY_US = 0.2
"""One cache line from core to core; between 0.05 and 0.5 on current servers. A start, until the machine is measured."""
SHARED_MEMORY_BANDWIDTH_GBS = 12.0
"""One core copying what another one wrote. A start, until the machine is measured."""


@dataclass(frozen=True, slots=True)
class Cache:
    """One cache: which CPUs share it."""

    level: int
    kind: str
    """``"Data"``, ``"Instruction"`` or ``"Unified"``."""
    size_bytes: int
    cpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Host:
    """What a host is made of. All CPU numbers are the kernel's, ascending; only CPUs that are online count.

    Attributes
    ----------
    usable : tuple of int
        CPUs that this process may run on.
    cores : tuple of tuple of int
        The usable CPUs of each core that has any: hardware threads of one core share its units.
    sockets, numa : tuple of tuple of int
        The CPUs of each socket and of each NUMA node that has CPUs.
    caches : tuple of Cache
        By level, then by first CPU.
    """

    usable: tuple[int, ...]
    cores: tuple[tuple[int, ...], ...]
    sockets: tuple[tuple[int, ...], ...]
    numa: tuple[tuple[int, ...], ...]
    caches: tuple[Cache, ...]


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Read the kernel's list format, ``"0-3,8,10-11"``; an empty text is an empty list.

    Raises
    ------
    TopologyError
        If the text is anything else.
    """
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else True)) or (dash and int(last) < int(first)):
            raise TopologyError(f"CPU list: got {text.strip()!r}, wanted numbers and ranges such as 0-3,8")
        cpus.update(range(int(first), int(last if dash else first) + 1))
    return tuple(sorted(cpus))


def read_host(sys: Path | str = "/sys", affinity: Iterable[int] | None = None) -> Host:
    """Read what this host is made of.

    Parameters
    ----------
    sys : path
        Where sysfs is mounted. What it lacks, as it may in a container, is taken as simplest: every CPU a core, one
        socket, one NUMA node, no known cache.
    affinity : iterable of int, optional
        The CPUs that the process may use; those the kernel allows it otherwise.

    Raises
    ------
    TopologyError
        If a file is there and cannot be understood, or no usable CPU is online.
    """
    devices = Path(sys) / "devices" / "system"
    allowed = set(os.sched_getaffinity(0) if affinity is None else affinity)
    online = _cpus(devices / "cpu" / "online") or tuple(sorted(allowed))
    usable = tuple(cpu for cpu in online if cpu in allowed)
    if not usable:
        raise TopologyError(f"host: none of the allowed CPUs {sorted(allowed)} is online ({list(online)})")
    cores: dict[tuple[int, ...], None] = {}
    sockets: dict[str, list[int]] = {}
    caches: dict[Cache, None] = {}
    for cpu in online:
        folder = devices / "cpu" / f"cpu{cpu}"
        siblings = _cpus(folder / "topology" / "thread_siblings_list") or (cpu,)
        if core := tuple(thread for thread in siblings if thread in usable):
            cores[core] = None
        sockets.setdefault(_text(folder / "topology" / "physical_package_id") or "0", []).append(cpu)
        for index in sorted((folder / "cache").glob("index[0-9]*")):
            if cache := _cache(index, cpu):
                caches[cache] = None
    nodes = sorted((devices / "node").glob("node[0-9]*"), key=lambda path: int(path.name.removeprefix("node")))
    numa = [tuple(cpu for cpu in _cpus(node / "cpulist") if cpu in online) for node in nodes]
    return Host(
        usable,
        tuple(cores),
        tuple(tuple(cpus) for cpus in sockets.values()),
        tuple(cpus for cpus in numa if cpus) or (online,),
        tuple(sorted(caches, key=lambda cache: (cache.level, cache.cpus, cache.kind))),
    )


def host_topology(
    n_ranks: int,
    latency_us: float = SHARED_MEMORY_LATENCY_US,
    bandwidth_gbs: float = SHARED_MEMORY_BANDWIDTH_GBS,
    measured: Measured | None = None,
) -> Topology:
    """Return ranks on one host that read each other through shared memory.

    Parameters
    ----------
    n_ranks : int
        At least 1.
    latency_us, bandwidth_gbs : float
        Of one rank reading another's memory. Each rank reads with its own core: a reader's transfers share its
        bandwidth, those of different readers do not.
    measured : Measured, optional
        What was measured on such a host, instead of both.

    Returns
    -------
    Topology
        Its devices are ``"rank 0"`` and so on.
    """
    if n_ranks < 1:
        raise TopologyError(f"host: got {n_ranks} ranks, wanted at least 1")
    rates = measured.for_ranks(n_ranks) if measured is not None and n_ranks > 1 else None
    if rates is not None:
        latency_us, bandwidth_gbs = rates.latency_us, rates.bandwidth_gbs
        rates = rates if n_ranks <= MOST_RANKS else None
    readers = tuple(Resource(f"shared memory to rank {rank}", latency_us, bandwidth_gbs) for rank in range(n_ranks))
    # Named by what is known: where a rank runs is the launcher's affair, there may be fewer cores than ranks, and the
    # host may be another than this one.
    devices = tuple(f"rank {rank}" for rank in range(n_ranks))
    return Topology("host", devices, (0,) * n_ranks, lambda _src, dst: (readers[dst],), rates=rates)


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _cpus(path: Path) -> tuple[int, ...]:
    return parse_cpu_list(_text(path) or "")


def _cache(folder: Path, cpu: int) -> Cache | None:
    level, kind, size = (_text(folder / name) for name in ("level", "type", "size"))
    if not level or not kind or not size:
        return None
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(size[-1], 1)
    number = size.rstrip("KMG")
    if not level.isdecimal() or not number.isdecimal():
        raise TopologyError(f"{folder}: got cache level {level!r} of size {size!r}, wanted such as 2 and 1024K")
    return Cache(int(level), kind, int(number) * unit, _cpus(folder / "shared_cpu_list") or (cpu,))
