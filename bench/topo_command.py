"""``multiring topo``: what is connected to what, and the rings in it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from multiring.errors import TopologyError
from multiring.topology.discover import discover
from multiring.topology.host import Host, read_host
from multiring.topology.load import host_cluster, load
from multiring.topology.machine import Machine
from multiring.topology.model import Topology
from multiring.topology.rings import RingSet, levels, rings
from multiring.topology.routes import MachineWires, cluster
from multiring.topology.saved import machine_to_json
from multiring.topology.svg import draw
from multiring.topology.text import host_text, kinds_text, matrix_text, rings_text

__all__ = ["topo"]

_EPILOG = """\b
Examples:
  multiring topo
  multiring topo --from topo.txt --svg topo.svg
  multiring topo --from dgx-a100 --nodes 4 --json

\b
FILE is the saved output of nvidia-smi topo -m, an NCCL topology XML (NCCL_TOPO_DUMP_FILE), the output of --json, or
the name of a preset. MULTIRING_TOPOLOGY names one where --from is not given. MULTIRING_SMI_TIMEOUT_S limits nvidia-smi.
"""


@click.command("topo", epilog=_EPILOG)
@click.option("--from", "source", metavar="FILE", help="A saved topology or a preset; this machine otherwise.")
@click.option("--nodes", default=1, show_default=True, metavar="N", help="As many nodes of this kind.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--svg", "svg_file", metavar="FILE", help="Draw devices, link widths and rings.")
def topo(source: str | None, nodes: int, as_json: bool, svg_file: str | None) -> None:
    """Show what is connected to what, the ring orders that carry most, and why.

    Without a GPU: the sockets, NUMA nodes and caches of the host, and the ring through shared memory.
    """
    if nodes < 1:
        raise click.UsageError(f"--nodes: got {nodes}, wanted at least 1")
    source = source or os.environ.get("MULTIRING_TOPOLOGY") or None
    topology, why = _topology(source, nodes)
    host = None if topology.machines else read_host()
    found = rings(topology)
    if svg_file:
        if not topology.machines:
            raise TopologyError("--svg: got no GPU to draw, wanted a machine with GPUs; --from names a file or preset")
        try:
            Path(svg_file).write_text(draw(topology, found))
        except OSError as error:
            raise TopologyError(f"--svg {svg_file}: cannot be written: {error.strerror}") from None
    if as_json:
        click.echo(json.dumps(_document(topology, found, host, why), indent=1, allow_nan=False))
    else:
        click.echo("\n".join(_lines(topology, found, host, why)))


def _topology(source: str | None, nodes: int) -> tuple[Topology, str]:
    """Return the topology that was asked for, and where it comes from."""
    if source is not None:
        topology = load(source, nodes)
        return topology, topology.machines[0].source if topology.machines else source
    found = discover()
    if found.warning:
        click.echo(f"warning: {' '.join(found.warning.split())}", err=True)
    if found.machine is None:
        return host_cluster(len(read_host().cores), nodes), f"this host ({found.reason})"
    machine = found.machine
    return cluster(machine.name if nodes == 1 else f"{nodes} x {machine.name}", [machine] * nodes), machine.source


def _lines(topology: Topology, found: RingSet, host: Host | None, source: str) -> list[str]:
    lines = [f"{topology.name}, from {source}", ""]
    if host is not None:
        lines += [*host_text(host), ""]
    for machine in topology.machines[:1]:
        lines += _gpu_lines(machine)
        if len(machine.devices) <= 40:
            lines += [*matrix_text(machine).expandtabs(8).splitlines(), ""]
        lines += [*kinds_text(machine), ""]
    lines += rings_text(found, topology.devices)
    if topology.n_ranks > 1:
        lines.append(f"Box: {'x'.join(map(str, levels(topology)))}")
    for machine in topology.machines[:1]:
        lines += [f"Note: {note}" for note in machine.notes]
        lines += [f"Source: {text}" for text in machine.sources]
    return lines


def _gpu_lines(machine: Machine) -> list[str]:
    if not any(gpu.bus_id or gpu.uuid for gpu in machine.gpus):
        models = {gpu.model for gpu in machine.gpus} - {""}
        return [f"{len(machine.gpus)} x {', '.join(sorted(models))}", ""] if models else []
    return [
        *(" ".join(filter(None, (gpu.label, gpu.model, gpu.bus_id, gpu.uuid))) for gpu in machine.gpus),
        "",
    ]


def _document(topology: Topology, found: RingSet, host: Host | None, source: str) -> dict[str, Any]:
    machine = topology.machines[0] if topology.machines else None
    return {
        "name": topology.name,
        "source": source,
        "n_nodes": topology.n_nodes,
        "gpus": _gpus(machine),
        "nics": _nics(machine),
        "links": _links(machine),
        "rings": [{"order": list(ring.order), "bandwidth_gbs": round(ring.bandwidth_gbs, 6)} for ring in found.rings],
        "total_bandwidth_gbs": round(found.total_bandwidth_gbs, 6),
        "reason": found.reason,
        "bottleneck": found.bottleneck,
        "unused": list(found.unused),
        "is_best": found.is_best,
        "box": list(levels(topology)),
        "notes": list(machine.notes) if machine else [],
        "sources": list(machine.sources) if machine else [],
        "host": asdict(host) if host else None,
        "machine": machine_to_json(machine) if machine else None,
    }


def _gpus(machine: Machine | None) -> list[dict[str, Any]]:
    if machine is None:
        return []
    return [
        {
            "name": gpu.label,
            "model": gpu.model or None,
            "bus_id": gpu.bus_id or None,
            "uuid": gpu.uuid or None,
            "capability": gpu.capability,
            "numa": gpu.numa,
            "cpus": gpu.cpus or None,
            "pcie_gbs": gpu.pcie_gbs,
            "switch_links": gpu.switch_links,
        }
        for gpu in machine.gpus
    ]


def _nics(machine: Machine | None) -> list[dict[str, Any]]:
    if machine is None:
        return []
    return [{"name": nic.label, "device": nic.device or None, "bandwidth_gbs": nic.network_gbs} for nic in machine.nics]


def _links(machine: Machine | None) -> list[dict[str, Any]]:
    """Return each pair of GPUs, and each GPU and NIC, with what one transfer alone gets."""
    if machine is None:
        return []
    wires = MachineWires(machine)
    links: list[dict[str, Any]] = []
    for a, gpu in enumerate(machine.gpus):
        for b in range(a + 1, len(machine.devices)):
            path = wires.path(a, b) if b < len(machine.gpus) else wires.to_nic(a, b - len(machine.gpus))
            gbs = min(wire.bandwidth_gbs for wire in path)
            links.append(
                {"a": gpu.label, "b": machine.devices[b].label, "kind": machine.kind(a, b), "bandwidth_gbs": gbs}
            )
    return links
