"""A topology from the name of a preset or from a file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from multiring.errors import TopologyError
from multiring.topology.constants import DEFAULT_NETWORK_GBS, compute_capability, pcie_gbs
from multiring.topology.host import SHARED_MEMORY_BANDWIDTH_GBS, SHARED_MEMORY_LATENCY_US, host_topology, read_host
from multiring.topology.machine import Gpu, Machine, Nic
from multiring.topology.model import Resource, Topology
from multiring.topology.nccl_xml import read_nccl_topology
from multiring.topology.presets import preset, preset_names
from multiring.topology.routes import cluster
from multiring.topology.saved import machine_from_json
from multiring.topology.smi_lists import read_gpu_list
from multiring.topology.smi_machine import GpuFacts, machine_of_matrix
from multiring.topology.smi_matrix import topology_matrix

__all__ = ["host_cluster", "injected", "load", "load_machine", "parse_machine"]

MAX_FILE_BYTES = 8 << 20
BOM = "\ufeff"


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
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise TopologyError(f"{path}: got more than {MAX_FILE_BYTES} bytes, wanted the description of one machine")
        text = path.read_bytes().decode("utf-8", "replace")
    except FileNotFoundError:
        raise TopologyError(
            f"topology {path}: got neither a file nor a preset, wanted a saved nvidia-smi topo -m, an NCCL topology "
            f"XML, or one of {', '.join(preset_names())}"
        ) from None
    except (OSError, ValueError) as error:
        raise TopologyError(f"topology {path}: cannot be read: {error}") from None
    return parse_machine(text, path.name)


def parse_machine(text: str, where: str) -> Machine:
    """Return the machine that a text describes: nvidia-smi's matrix, NCCL's XML, or our own JSON.

    Parameters
    ----------
    text : str
    where : str
        What error messages call the text.

    Raises
    ------
    TopologyError
        If it is none of these, or cannot be read whole.
    """
    start = text.lstrip("\ufeff \t\r\n")
    if start.startswith("<"):
        return replace(read_nccl_topology(text.lstrip(BOM) if text[:1] == BOM else text, where), name=where)
    if start.startswith("{"):
        try:
            document = json.loads(start)
        except (ValueError, RecursionError) as error:
            raise TopologyError(f"{where}: got {error}, wanted JSON") from None
        return machine_from_json(document.get("machine", document), where)
    matrix = topology_matrix(text, where)
    return machine_of_matrix(matrix, where, where, _listed(text))


def _listed(text: str) -> dict[str, GpuFacts]:
    """Return what lines of nvidia-smi -L in a text tell."""
    lines = "\n".join(line for line in text.splitlines() if re.match(r"\s*GPU [0-9]+: .*UUID", line))
    try:
        gpus, _ = read_gpu_list(lines)
    except TopologyError:
        return {}
    return {
        f"GPU{gpu.index}": GpuFacts(gpu.model, uuid=gpu.uuid, capability=compute_capability(gpu.model)) for gpu in gpus
    }


def injected(environ: Mapping[str, str], n_ranks: int, n_nodes: int = 1) -> Topology | None:
    """Return the topology that ``MULTIRING_TOPOLOGY`` names, for a job; None where it is not set.

    Parameters
    ----------
    environ : mapping
    n_ranks, n_nodes : int
        Of the job.

    Raises
    ------
    TopologyError
        If it cannot be loaded, or has another number of ranks.
    """
    name = environ.get("MULTIRING_TOPOLOGY")
    if not name:
        return None
    topology = load(f"host-{n_ranks // n_nodes}" if name == "host" else name, n_nodes)
    if topology.n_ranks != n_ranks:
        raise TopologyError(
            f"MULTIRING_TOPOLOGY={name}: got {topology.n_ranks} ranks on {n_nodes} nodes, wanted this job's {n_ranks}"
        )
    return topology


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
    cores = tuple(Gpu(f"rank {rank}", 0, SHARED_MEMORY_BANDWIDTH_GBS) for rank in range(n_ranks))
    joined = cluster(f"{n_nodes} x host", [Machine("host", cores, (nic,))] * n_nodes)

    def route(src: int, dst: int) -> tuple[Resource, ...]:
        if joined.nodes[src] != joined.nodes[dst]:
            return joined.route(src, dst)
        name = f"shared memory to {joined.devices[dst]}"
        return (Resource(name, SHARED_MEMORY_LATENCY_US, SHARED_MEMORY_BANDWIDTH_GBS),)

    return replace(joined, route=route, machines=())
