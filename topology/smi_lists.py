"""What nvidia-smi says of each GPU: ``-L``, ``nvlink -s`` and ``--query-gpu``. Read whole, or refused with the line."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from multiring.errors import TopologyError

__all__ = ["ListedGpu", "LostGpu", "NvlinkStatus", "normal_bus_id", "read_gpu_list", "read_nvlink_status", "read_query"]

_GPU_LINE = re.compile(r"GPU ([0-9]{1,4}): (.+?) \(UUID: ((?:GPU|MIG)-[0-9A-Za-z/-]+)\)", re.ASCII)
_MIG_LINE = re.compile(r"MIG (\S+)\s+Device\s+([0-9]{1,3}): \(UUID: (MIG-[0-9A-Za-z/-]+)\)", re.ASCII)
_LOST_LINE = re.compile(
    r"Unable to determine the device handle for (?:GPU|gpu)\s*([0-9A-Fa-f:.]*)\s*:?\s*(.*)", re.ASCII
)
_LINK_LINE = re.compile(r"Link ([0-9]{1,2}): (?:([0-9]+(?:\.[0-9]+)?) GB/s|(<inactive>))", re.ASCII)
_NO_LINKS = re.compile(
    r"NVML: Unable to retrieve NVLink information as all links are inactive|"
    r"Device does not have or support NVLink|"
    r"NVLink queries are not supported for Devices in MIG mode",
    re.IGNORECASE,
)
_CAPABILITY = re.compile(r"Link [0-9]{1,2}, [A-Za-z0-9 ]+: (?:true|false)", re.ASCII)
_BUS_ID = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.ASCII | re.IGNORECASE)
_MISSING = re.compile(
    r"\[?(N/A|Not Supported|Unknown Error|GPU is lost|Requested functionality has been deprecated)\]?"
)


@dataclass(frozen=True, slots=True)
class ListedGpu:
    """One GPU of ``nvidia-smi -L``.

    Attributes
    ----------
    index : int
        nvidia-smi's number.
    model, uuid : str
    mig : tuple of str
        UUIDs of its MIG devices, in their order.
    """

    index: int
    model: str
    uuid: str
    mig: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LostGpu:
    """A GPU that the driver knows and cannot reach: it fell off the bus, or needs a reset."""

    bus_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class NvlinkStatus:
    """The NVLinks of one GPU by ``nvidia-smi nvlink -s``: the line rate of each active one, in GB/s."""

    index: int
    rates_gbs: tuple[float, ...]
    why_none: str = ""


@dataclass(slots=True)
class _Growing:
    head: tuple[int, str, str]
    mig: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Status:
    index: int
    line: int
    text: str
    rates: list[float | None] = field(default_factory=list)
    why_none: str = ""


def normal_bus_id(text: str) -> str:
    """Return a PCI bus id in the kernel's form: ``00000000:1D:00.0`` and ``1d:00.0`` are ``0000:1d:00.0``.

    Raises
    ------
    TopologyError
        If the text is no bus id.
    """
    match = _BUS_ID.fullmatch(text.strip())
    if not match:
        raise TopologyError(f"PCI bus id: got {text.strip()!r}, wanted such as 0000:1d:00.0")
    return f"{int(match[1] or '0', 16):04x}:{match[2]}:{match[3]}.{match[4]}".lower()


def read_gpu_list(text: str, where: str = "nvidia-smi -L") -> tuple[tuple[ListedGpu, ...], tuple[LostGpu, ...]]:
    """Read ``nvidia-smi -L``.

    Returns
    -------
    tuple of ListedGpu, tuple of LostGpu
        GPUs in nvidia-smi's order; and those that the tool could not reach.

    Raises
    ------
    TopologyError
        If a line is neither, or a number comes twice.
    """
    gpus: list[_Growing] = []
    lost: list[LostGpu] = []
    for number, line in _lines(text):
        if match := _GPU_LINE.fullmatch(line):
            if int(match[1]) in (gpu.head[0] for gpu in gpus):
                _refuse(where, number, line, "wanted each GPU once")
            gpus.append(_Growing((int(match[1]), match[2], match[3])))
        elif (match := _MIG_LINE.fullmatch(line)) and gpus:
            gpus[-1].mig.append(match[3])
        elif match := _LOST_LINE.match(line):
            lost.append(LostGpu(match[1].rstrip(":."), match[2].strip()))
        elif line not in ("No devices found.", "No devices were found"):
            _refuse(where, number, line, "wanted such as GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-...)")
    return tuple(ListedGpu(*gpu.head, tuple(gpu.mig)) for gpu in gpus), tuple(lost)


def read_nvlink_status(text: str, where: str = "nvidia-smi nvlink -s") -> tuple[NvlinkStatus, ...]:
    """Read ``nvidia-smi nvlink -s``.

    Raises
    ------
    TopologyError
        If a line is of another kind, such as the counters of ``nvlink -gt`` or an elision, or a link is left out.
    """
    found: dict[int, _Status] = {}
    at: _Status | None = None
    for number, line in _lines(text):
        if match := _GPU_LINE.fullmatch(line):
            at = found.setdefault(int(match[1]), _Status(int(match[1]), number, line))
        elif at is None:
            _refuse(where, number, line, "wanted such as GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-...)")
        elif (match := _LINK_LINE.fullmatch(line)) and int(match[1]) == len(at.rates):
            at.rates.append(float(match[2]) if match[2] else None)
        elif _NO_LINKS.fullmatch(line) and not at.rates:
            at.why_none = line
        elif not _CAPABILITY.fullmatch(line):
            _refuse(where, number, line, f"wanted Link {len(at.rates)} of GPU {at.index} and its GB/s")
    for it in found.values():
        if not it.rates and not it.why_none:
            _refuse(where, it.line, it.text, "wanted its links and their GB/s below it")
    return tuple(NvlinkStatus(it.index, tuple(filter(None, it.rates)), it.why_none) for it in found.values())


def read_query(text: str, where: str = "nvidia-smi --query-gpu") -> list[dict[str, str]]:
    """Read the CSV of ``nvidia-smi --query-gpu=... --format=csv``: columns by name, in any order.

    Returns
    -------
    list of dict
        For each GPU, the text of each column; empty where the tool has none (``[N/A]``, ``[Not Supported]``). Units in
        brackets are cut from the names of columns, ``gpu_bus_id`` is ``pci.bus_id``.

    Raises
    ------
    TopologyError
        If there is no header, or a row has another number of cells.
    """
    lines = _lines(text)
    if not lines:
        raise TopologyError(f"{where}: got no line, wanted a header such as index, name, uuid, pci.bus_id")
    (number, first), *rest = lines
    names = [re.sub(r"\s*\[.*\]$", "", name) for name in _cells(first)]
    if not all(re.fullmatch(r"[A-Za-z_][\w.]*", name) for name in names) or len(set(names)) != len(names):
        _refuse(where, number, first, "wanted a header such as index, name, uuid, pci.bus_id")
    names = ["pci.bus_id" if name == "gpu_bus_id" else name for name in names]
    rows: list[dict[str, str]] = []
    for number, line in rest:
        if _LOST_LINE.match(line):
            continue
        cells = _cells(line)
        if len(cells) != len(names):
            _refuse(where, number, line, f"wanted {len(names)} cells as in its header, got {len(cells)}")
        rows.append({name: "" if _MISSING.fullmatch(cell) else cell for name, cell in zip(names, cells, strict=True)})
    return rows


def _lines(text: str) -> list[tuple[int, str]]:
    """Return the lines that are not blank, each with its number; a Markdown fence counts as blank."""
    stripped = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1))
    return [(number, line) for number, line in stripped if line and not line.startswith("```")]


def _cells(line: str) -> Sequence[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True))]
    except (csv.Error, StopIteration):
        return []


def _refuse(where: str, number: int, line: str, wanted: str) -> NoReturn:
    shown = line if len(line) <= 60 else line[:57] + "..."
    raise TopologyError(f"{where}, line {number}: got {shown!r}, {wanted}")
