"""A topology from the name of a preset or from a file."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from multiring.errors import TopologyError
from multiring.topology.constants import DEFAULT_NETWORK_GBS, pcie_gbs
from multiring.topology.host import SHARED_MEMORY_BANDWIDTH_GBS, SHARED_MEMORY_LATENCY_US, host_topology, read_host
from multiring.topology.machine import Gpu, Machine, Nic
from multiring.topology.model import Resource, Topology
from multiring.topology.presets import preset, preset_names
from multiring.topology.routes import cluster

__all__ = ["host_cluster", "load", "load_machine"]


def load(name_or_path: str | os.PathLike[str], n_nodes: int = 1) -> Topology:
    """Return the topology of a preset, or of a file, on a number of equal nodes.

    Parameters
    ----------
    name_or_path : str or path
        A preset such as ``"dgx-a100"``, ``"torus-4x8"`` or ``"host"``, or the path of a saved text. ``"host"`` has one
        rank for each core that the process may use, ``"host-8"`` has 8.
    n_nodes : int
        Nodes of this kind, joined by their NICs.

    Returns
    -------
    Topology
        Ranks by node, then by GPU.

    Raises
    ------
    TopologyError
        If the name is neither, the file cannot be read whole, or several nodes are wanted of a machine without NICs.
    """
    if n_nodes < 1:
        raise TopologyError(f"topology {name_or_path}: got {n_nodes} nodes, wanted at least 1")
    text = os.fspath(name_or_path)
    if host := re.fullmatch(r"host(?:-(\d{1,5}))?", text):
        return host_cluster(int(host[1]) if host[1] else len(read_host().cores), n_nodes)
    machine = load_machine(text)
    name = machine.name if n_nodes == 1 else f"{n_nodes} x {machine.name}"
    return cluster(name, [machine] * n_nodes)


def load_machine(name_or_path: str) -> Machine:
    """Return the machine of a preset or a file.

    Raises
    ------
    TopologyError
        If the name is neither, or the file cannot be read whole.
    """
    if machine := preset(name_or_path):
        return machine
    path = Path(name_or_path)
    raise TopologyError(
        f"topology {path}: got neither a file nor a preset, wanted a saved nvidia-smi topo -m, an NCCL topology XML, or "
        f"one of {', '.join(preset_names())}"
    )


def host_cluster(n_ranks: int, n_nodes: int) -> Topology:
    """Return hosts whose ranks meet in shared memory, joined by one NIC each.

    Parameters
    ----------
    n_ranks : int
        On each node.
    n_nodes : int
    """
    one = host_topology(n_ranks)
    if n_nodes == 1:
        return one
    nic = Nic("NIC0", 0, pcie_gbs(3), DEFAULT_NETWORK_GBS)
    cores = tuple(Gpu(f"core {rank}", 0, SHARED_MEMORY_BANDWIDTH_GBS) for rank in range(n_ranks))
    joined = cluster(f"{n_nodes} x host", [Machine("host", cores, (nic,))] * n_nodes)

    def route(src: int, dst: int) -> tuple[Resource, ...]:
        if joined.nodes[src] != joined.nodes[dst]:
            return joined.route(src, dst)
        name = f"shared memory to {joined.devices[dst]}"
        return (Resource(name, SHARED_MEMORY_LATENCY_US, SHARED_MEMORY_BANDWIDTH_GBS),)

    return replace(joined, route=route, machines=())
