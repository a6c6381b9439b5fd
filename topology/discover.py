"""The machine that this process runs on, as nvidia-smi tells it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from multiring.errors import TopologyError
from multiring.topology import constants as known
from multiring.topology.devices import keep_gpus, visible_gpus
from multiring.topology.machine import Gpu, Machine
from multiring.topology.run_smi import SmiRunner, find_smi, timeout_of
from multiring.topology.smi_lists import (
    ListedGpu,
    LostGpu,
    normal_bus_id,
    read_gpu_list,
    read_nvlink_status,
    read_query,
)
from multiring.topology.smi_machine import GpuFacts, machine_of_matrix
from multiring.topology.smi_matrix import read_matrices, topology_matrix

__all__ = ["Discovery", "discover"]

_QUERY = ("index", "name", "uuid", "pci.bus_id", "pcie.link.gen.max", "pcie.link.width.max", "compute_cap")
_P2P = {"r": "reads", "w": "writes", "n": "NVLink", "a": "atomics"}


@dataclass(frozen=True, slots=True)
class Discovery:
    """What was found.

    Attributes
    ----------
    machine : Machine or None
        The GPUs that this process may use; None where there are none.
    reason : str
        Why there is none, or how it was found.
    warning : str
        What failed and what was done instead; empty where nothing did.
    """

    machine: Machine | None
    reason: str
    warning: str = ""


def discover(environ: Mapping[str, str] | None = None, sys: Path | str = "/sys") -> Discovery:
    """Ask nvidia-smi for this machine's GPUs and how they are connected.

    Parameters
    ----------
    environ : mapping, optional
        ``PATH``, ``CUDA_VISIBLE_DEVICES``, ``CUDA_DEVICE_ORDER``, ``MULTIRING_SMI_TIMEOUT_S``; otherwise
        ``os.environ``.
    sys : path
        Where sysfs is mounted: the speeds of network ports.

    Returns
    -------
    Discovery
        Without nvidia-smi, or with one that knows no GPU: no machine, and no warning. Where it fails, is late or cannot
        be understood: no machine, and a warning that says so. Where only its matrix is: the GPUs as if joined by
        nothing but the host, and a warning. Never a part of a matrix.

    Raises
    ------
    TopologyError
        If the environment asks for what cannot be: see :func:`~multiring.topology.devices.visible_gpus`.
    """
    environ = os.environ if environ is None else environ
    path = find_smi(environ)
    if path is None:
        return Discovery(None, "nvidia-smi is not on PATH: no NVIDIA driver, or none for this container")
    runner = SmiRunner(path, environ, time.monotonic() + timeout_of(environ))
    try:
        text = runner.run("-L")
        gpus, lost = read_gpu_list(text)
    except TopologyError as error:
        if "No devices" in str(error):
            return Discovery(None, "nvidia-smi knows no GPU")
        return Discovery(None, "nvidia-smi failed", f"{error}; going on without GPUs")
    if not gpus and lost:
        return Discovery(None, "no GPU can be reached", f"{_lost(lost)}; going on without GPUs")
    if not gpus:
        return Discovery(None, "nvidia-smi knows no GPU")
    seen = visible_gpus(gpus, environ)
    if not seen:
        return Discovery(None, f"CUDA_VISIBLE_DEVICES={environ.get('CUDA_VISIBLE_DEVICES')} hides all {len(gpus)} GPUs")
    facts = _facts(runner, gpus)
    warnings = [_lost(lost)] if lost else []
    try:
        text = runner.run("topo", "-m")
        matrix = topology_matrix(text, "nvidia-smi topo -m")
        refused, p2p_notes = _p2p(runner, matrix.gpus)
        machine = machine_of_matrix(
            matrix, "this machine", "nvidia-smi topo -m", facts, _port_speeds(Path(sys)), refused
        )
        machine = replace(machine, notes=(*machine.notes, *p2p_notes))
    except TopologyError as error:
        warnings.append(f"{error}; going on as if nothing but the host joined the GPUs")
        machine = _flat(gpus, facts)
    kept = [at for at in _rows(machine, [gpus[position] for position in seen]) if at is not None]
    if len(kept) < len(seen):
        missing = [
            f"GPU{gpus[at].index}" for at in seen if f"GPU{gpus[at].index}" not in {g.label for g in machine.gpus}
        ]
        warnings.append(f"nvidia-smi topo -m: {', '.join(missing)} is not in its matrix; left out")
    if not kept:
        return Discovery(None, "no visible GPU is in the matrix of nvidia-smi topo -m", "; ".join(warnings))
    machine = keep_gpus(machine, kept)
    hidden = len(gpus) - len(kept)
    notes = [f"{hidden} of {len(gpus)} GPUs are hidden from this process"] if hidden else []
    notes += [
        f"GPU{gpu.index} runs as {len(gpu.mig)} MIG devices: CUDA shows one, without NVLink" for gpu in gpus if gpu.mig
    ]
    machine = replace(machine, notes=(*machine.notes, *notes))
    return Discovery(machine, machine.source, "; ".join(warnings))


def _rows(machine: Machine, gpus: list[ListedGpu]) -> list[int | None]:
    rows = {gpu.label: at for at, gpu in enumerate(machine.gpus)}
    return [rows.get(f"GPU{gpu.index}") for gpu in gpus]


def _lost(lost: tuple[LostGpu, ...]) -> str:
    names = ", ".join(filter(None, (gpu.bus_id for gpu in lost))) or f"{len(lost)} of them"
    return f"GPUs that the driver cannot reach are left out: {names}"


def _facts(runner: SmiRunner, gpus: tuple[ListedGpu, ...]) -> dict[str, GpuFacts]:
    """Return what -L, --query-gpu and nvlink -s tell; the latter two may fail, and say less on old drivers."""
    facts = {
        f"GPU{gpu.index}": GpuFacts(gpu.model, uuid=gpu.uuid, capability=known.compute_capability(gpu.model))
        for gpu in gpus
    }
    for columns in (_QUERY, _QUERY[:-1]):
        try:
            rows = read_query(runner.run(f"--query-gpu={','.join(columns)}", "--format=csv"))
        except TopologyError:
            continue
        for row in rows:
            label = f"GPU{row.get('index', '')}"
            if label in facts:
                facts[label] = _fact(facts[label], row)
        break
    if any(fact.capability is None for fact in facts.values()):
        try:
            for status in read_nvlink_status(runner.run("nvlink", "-s")):
                label = f"GPU{status.index}"
                if label in facts and status.rates_gbs:
                    facts[label] = replace(facts[label], link_rate_gbs=min(status.rates_gbs))
        except TopologyError:
            pass
    return facts


def _fact(fact: GpuFacts, row: Mapping[str, str]) -> GpuFacts:
    try:
        bus_id = normal_bus_id(row.get("pci.bus_id", ""))
    except TopologyError:
        bus_id = ""
    generation, width = row.get("pcie.link.gen.max", ""), row.get("pcie.link.width.max", "")
    is_known = generation.isdecimal() and width.isdecimal() and 1 <= int(generation) <= 7 and 1 <= int(width) <= 32
    version = re.fullmatch(r"([0-9]{1,2})\.([0-9])", row.get("compute_cap", ""), re.ASCII)
    return replace(
        fact,
        bus_id=bus_id,
        capability=int(version[1]) * 10 + int(version[2]) if version else fact.capability,
        pcie_gbs=known.pcie_gbs(int(generation), int(width)) if is_known else None,
    )


def _p2p(runner: SmiRunner, labels: tuple[str, ...]) -> tuple[set[tuple[int, int]], list[str]]:
    """Return the pairs that cannot read or write each other's memory, and notes; none where the tool does not say."""
    refused: set[tuple[int, int]] = set()
    notes: list[str] = []
    for letter, what in _P2P.items() if len(labels) > 1 else ():
        try:
            (matrix,) = read_matrices(runner.run("topo", "-p2p", letter), f"nvidia-smi topo -p2p {letter}")
        except (TopologyError, ValueError):
            continue
        if not matrix.is_p2p or matrix.gpus != labels:
            continue
        pairs = {(a, b) for b in range(len(labels)) for a in range(b) if matrix.cells[a][b] not in ("OK", "U")}
        if letter in "rw":
            refused |= pairs
        if pairs and letter != "n":
            named = ", ".join(f"{labels[a]}-{labels[b]}" for a, b in sorted(pairs))
            notes.append(f"no direct {what} between {named} (nvidia-smi topo -p2p {letter})")
    return refused, notes


def _flat(gpus: tuple[ListedGpu, ...], facts: dict[str, GpuFacts]) -> Machine:
    found: list[Gpu] = []
    for gpu in gpus:
        fact = facts[f"GPU{gpu.index}"]
        pcie_gbs = fact.pcie_gbs or known.pcie_of(fact.capability)
        found.append(Gpu(f"GPU{gpu.index}", 0, pcie_gbs, fact.model, fact.bus_id, fact.uuid, fact.capability))
    return Machine("this machine", tuple(found), source="nvidia-smi -L")


def _port_speeds(sys: Path) -> dict[str, float]:
    """Return what the ports of each InfiniBand or RoCE device carry, in GB/s."""
    speeds: dict[str, float] = {}
    for rate in sorted((sys / "class" / "infiniband").glob("*/ports/*/rate")):
        try:
            match = re.match(r"([0-9]{1,5}(?:\.[0-9])?) Gb/sec", rate.read_text(errors="replace"), re.ASCII)
        except OSError:
            continue
        if match and float(match[1]) > 0:
            device = rate.parents[2].name
            speeds[device] = max(speeds.get(device, 0.0), float(match[1]) / 8)
    return speeds
