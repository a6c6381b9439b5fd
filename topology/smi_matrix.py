"""The matrices of ``nvidia-smi topo``: read whole, or refused with the line that failed.

::

            GPU0    GPU1    mlx5_0  CPU Affinity    NUMA Affinity       header: devices, then headings
    GPU0     X      NV2     PIX     0-19            0                   one cell for each device, then what headings say
    GPU1    NV2      X      PIX     0-19            0
    mlx5_0  PIX     PIX      X

What people paste varies: escape codes, lost tabs, glued header names, Markdown tables, ``# `` before each line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from multiring.errors import TopologyError

__all__ = ["KINDS", "P2P_STATES", "Matrix", "read_matrices", "topology_matrix"]

KINDS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""How two devices are connected over PCIe, from near to far. ``SOC`` of older drivers is SYS."""
P2P_STATES = ("OK", "CNS", "GNS", "TNS", "NS", "DR", "U")
"""What ``nvidia-smi topo -p2p`` says of a pair."""

_HEADINGS = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m|\[[04]m(?=GPU|\s|$)")
_GPU = re.compile(r"GPU(0|[1-9][0-9]{0,3})", re.ASCII)
# A NIC's name has a digit: mlx5_0, NIC10, roceP2p1s0f0, mlx5_bond_0. Words of prose have none.
_NIC = re.compile(r"(?=[A-Za-z_.-]*[0-9])[A-Za-z][\w.-]*", re.ASCII)
_GLUED = re.compile(
    r"(?:GPU|NIC)[0-9]+|mlx[0-9]_(?:bond_)?[0-9]+?(?=mlx|GPU|NIC|$)|[^\s]+?(?=GPU[0-9]|NIC[0-9]|$)", re.ASCII
)
_CELL = re.compile(r"X|NV[1-9][0-9]?|PIX|PXB|PHB|NODE|SYS|SOC|" + "|".join(P2P_STATES), re.ASCII)
_NUMBERS = re.compile(r"[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*", re.ASCII)
_LEGEND_NIC = re.compile(r"(NIC[0-9]+):\s*([\w.-]+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Matrix:
    """One matrix.

    Attributes
    ----------
    line : int
        Of its header, from 1.
    gpus, nics : tuple of str
        Labels.
    cells : tuple of tuple of str
        Over GPUs and then NICs: X, NV#, a kind of :data:`KINDS`, or a state of :data:`P2P_STATES`; symmetric. Empty
        where the text says nothing of two NICs.
    cpus, numa : tuple of str
        What the columns "CPU Affinity" and "NUMA Affinity" say of each GPU; empty where nothing.
    nic_devices : dict
        The kernel's name of each NIC that the legend names.
    is_p2p : bool
        Whether the cells are states instead of kinds.
    hides_nvlink : bool
        Whether its legend leaves NVLink out: the output of ``topo -mp``.
    old_legend : bool
        Whether it says SOC, as drivers up to 2017 do.
    """

    line: int
    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    cpus: tuple[str, ...]
    numa: tuple[str, ...]
    nic_devices: dict[str, str]
    is_p2p: bool
    hides_nvlink: bool
    old_legend: bool


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    text: str
    columns: tuple[str, ...] | None
    """The cells of a line of a Markdown table."""


@dataclass(frozen=True, slots=True)
class _Header:
    line: _Line
    devices: tuple[str, ...]
    headings: tuple[str, ...]
    positions: tuple[int, ...] | None
    """In a Markdown table: the columns of the devices."""
    label_column: int


@dataclass(frozen=True, slots=True)
class _Row:
    line: _Line
    label: str
    cells: tuple[str, ...]
    beside: tuple[str, ...]
    """One text for each heading."""


def topology_matrix(text: str, where: str) -> Matrix:
    """Read the one matrix of ``nvidia-smi topo -m`` in a text; those of ``topo -p2p`` may stand beside it.

    Parameters
    ----------
    text : str
    where : str
        What error messages call the text.

    Raises
    ------
    TopologyError
        If there is no such matrix, more than one, or one that cannot be read whole.
    """
    found = [matrix for matrix in read_matrices(text, where) if not matrix.is_p2p]
    if not found:
        raise TopologyError(f"{where}: got only matrices of nvidia-smi topo -p2p, wanted one of nvidia-smi topo -m")
    if len(found) > 1:
        raise TopologyError(
            f"{where}: got {len(found)} matrices, at lines {', '.join(str(it.line) for it in found)}, wanted one: "
            "cut the text to the machine that is meant"
        )
    return found[0]


def read_matrices(text: str, where: str) -> tuple[Matrix, ...]:
    """Read every matrix in a text.

    Raises
    ------
    TopologyError
        If there is none, or one cannot be read whole: a row or cell is missing, unknown, or disagrees with its mirror
        image. The message names the line.
    """
    lines = [_line(number, line) for number, line in enumerate(text.splitlines(), 1)]
    headers = [(at, header) for at, line in enumerate(lines) if (header := _header(line))]
    if not headers:
        for line in lines:
            if _GPU.match(line.text) and not any(_CELL.fullmatch(word) for word in line.text.split()):
                _refuse(where, line, "wanted a header of device names such as GPU0 GPU1 mlx5_0 CPU Affinity")
        raise TopologyError(f"{where}: got no matrix, wanted a header line of devices that starts with GPU0")
    ends = [at for at, _ in headers[1:]] + [len(lines)]
    legend = {match[1]: match[2] for line in lines if (match := _LEGEND_NIC.fullmatch(line.text))}
    return tuple(
        _matrix(header, lines[at + 1 : end], legend, where) for (at, header), end in zip(headers, ends, strict=True)
    )


def _refuse(where: str, line: _Line, wanted: str) -> NoReturn:
    shown = line.text if len(line.text) <= 60 else line.text[:57] + "..."
    raise TopologyError(f"{where}, line {line.number}: got {shown!r}, {wanted}")


def _line(number: int, raw: str) -> _Line:
    text = _ESCAPE.sub("", raw).strip()
    while text.startswith("#"):
        text = text[1:].strip()
    columns = None
    if text.startswith("|") and text.endswith("|") and len(text) > 1:
        columns = tuple(cell.strip() for cell in text[1:-1].split("|"))
        text = " ".join(columns).strip()
    elif "\t" in raw:
        # The places of empty cells count.
        text = _ESCAPE.sub("", raw).lstrip("# \t").rstrip("\r\n ") if text else ""
    return _Line(number, text, columns)


def _header(line: _Line) -> _Header | None:
    """Read a header; None where the line is none."""
    if "GPU" not in line.text:
        return None
    if line.columns is not None:
        at = [column for column, cell in enumerate(line.columns) if _NIC.fullmatch(cell) and cell not in _HEADINGS]
        names = tuple(line.columns[column] for column in at)
        headings = tuple(cell for cell in line.columns if cell in _HEADINGS)
        labels = [column for column, cell in enumerate(line.columns) if not cell]
        if not _are_devices(names) or len(labels) != 1 or len(at) + len(headings) + 1 != len(line.columns):
            return None
        return _Header(line, names, headings, tuple(at), labels[0])
    rest = line.text
    headings = tuple(sorted((it for it in _HEADINGS if it in rest), key=rest.index))
    for heading in headings:
        rest = rest.replace(heading, " ")
    names = tuple(name for word in rest.split() for name in _GLUED.findall(word))
    return _Header(line, names, headings, None, 0) if _are_devices(names) else None


def _are_devices(names: Sequence[str]) -> bool:
    """Return whether names are those of a header: GPUs in ascending order, then NICs."""
    gpus = [int(match[1]) for name in names if (match := _GPU.fullmatch(name))]
    return (
        bool(gpus)
        and gpus == sorted(set(gpus))
        and all(_GPU.fullmatch(name) for name in names[: len(gpus)])
        and all(_NIC.fullmatch(name) and not _CELL.fullmatch(name) for name in names[len(gpus) :])
        and len(set(names)) == len(names)
    )


def _matrix(header: _Header, lines: Sequence[_Line], legend: dict[str, str], where: str) -> Matrix:
    rows = {row.label: row for row in _rows(header, lines, where)}
    gpus = tuple(name for name in header.devices if _GPU.fullmatch(name))
    for gpu in gpus:
        if gpu not in rows:
            last = max((row.line.number for row in rows.values()), default=header.line.number)
            raise TopologyError(
                f"{where}: the matrix at line {header.line.number} ends at line {last} without a row for {gpu}, wanted "
                "a row for each GPU of its header"
            )
    nics = header.devices[len(gpus) :] + tuple(name for name in rows if name not in header.devices)
    names = gpus + nics
    cells = tuple(tuple(_cell(header, rows, a, b) for b in names) for a in names)
    words = {word for row in cells for word in row}
    for a, row in enumerate(cells):
        for b, cell in enumerate(row):
            source = rows.get(names[a]) or rows.get(names[b])
            if source and cell and (cell == "X") != (a == b):
                _refuse(where, source.line, f"wanted X where {names[a]} meets itself and only there")
            if cell != cells[b][a]:
                first, second = rows[names[a]].line, rows[names[b]].line
                _refuse(
                    where, first,
                    f"wanted equal cells of {names[a]} and {names[b]}, got {cell} here, {cells[b][a]} in line "
                    f"{second.number}",
                )  # fmt: skip
    is_p2p = bool(words & set(P2P_STATES))
    if is_p2p and words - {"X", ""} - set(P2P_STATES):
        _refuse(where, header.line, f"wanted cells of one kind below it, got {', '.join(sorted(words - {'', 'X'}))}")
    texts = [line.text for line in lines]
    has_legend = any(re.match(r"PIX\s+=", text) for text in texts)
    return Matrix(
        header.line.number,
        gpus,
        nics,
        tuple(tuple("SYS" if cell == "SOC" else cell for cell in row) for row in cells),
        tuple(_beside(header, rows[gpu], "CPU Affinity") for gpu in gpus),
        tuple(_beside(header, rows[gpu], "NUMA Affinity") for gpu in gpus),
        {nic: legend.get(nic, nic if not nic.startswith("NIC") else "") for nic in nics},
        is_p2p,
        has_legend and not any(re.match(r"NV#\s+=", text) for text in texts),
        "SOC" in words or any(re.match(r"SOC\s+=", text) for text in texts),
    )


def _rows(header: _Header, lines: Sequence[_Line], where: str) -> Iterator[_Row]:
    """Yield the rows below a header up to the first line that is neither row nor blank."""
    seen: set[str] = set()
    for line in lines:
        if not line.text or (line.columns and all(re.fullmatch(r":?-+:?", cell) for cell in line.columns)):
            continue
        row = _row(header, line, where)
        if row is None:
            return
        if row.label in seen:
            _refuse(where, line, f"wanted one row for {row.label}, this is the second")
        seen.add(row.label)
        yield row


def _row(header: _Header, line: _Line, where: str) -> _Row | None:
    size = len(header.devices)
    if line.columns is not None and header.positions is not None:
        if len(line.columns) != len(header.line.columns or ()):
            _refuse(where, line, f"wanted {len(header.line.columns or ())} columns as in its header")
        label = line.columns[header.label_column]
        cells = tuple(line.columns[at] for at in header.positions)
        places = [at for at, cell in enumerate(header.line.columns or ()) if cell in _HEADINGS]
        beside = tuple(line.columns[at] for at in places)
    else:
        words = line.text.split()
        label, cells = words[0], tuple(words[1 : size + 1])
        if not _is_row(header, label, cells):
            return None
        # What is right of the last cell, its tabs kept.
        pattern = re.escape(label) + "".join(rf"\s+{re.escape(cell)}" for cell in cells)
        match = re.match(pattern, line.text)
        beside = _split_beside(header, line, line.text[match.end() :] if match else "", where)
    if not _is_row(header, label, cells):
        return None
    if len(cells) < size:
        _refuse(where, line, f"wanted {size} cells for {label}, got {len(cells)}")
    for name, cell in zip(header.devices, cells, strict=True):
        if not _CELL.fullmatch(cell):
            _refuse(where, line, f"wanted X, NV#, {', '.join(KINDS)} for {label} and {name}, got {cell!r}")
    for text in beside:
        if text not in ("", "N/A") and not _NUMBERS.fullmatch(text):
            _refuse(where, line, f"wanted CPU or NUMA numbers right of the cells, got {text!r}")
    return _Row(line, label, cells, beside)


def _is_row(header: _Header, label: str, cells: Sequence[str]) -> bool:
    """Return whether a line is a row: of a device of the header, or of a NIC that the header leaves out."""
    if label in header.devices:
        return True
    return bool(cells) and bool(_NIC.fullmatch(label)) and all(_CELL.fullmatch(cell) for cell in cells)


def _split_beside(header: _Header, line: _Line, rest: str, where: str) -> tuple[str, ...]:
    """Assign what stands right of the cells to the headings; one text for each."""
    n_headings = len(header.headings)
    words = rest.split()
    if len(words) > n_headings:
        _refuse(where, line, f"wanted at most {n_headings} columns right of the cells, got {' '.join(words)!r}")
    if len(words) == n_headings or not words:
        return tuple(words) if words else ("",) * n_headings
    # Some are empty. Tabs tell which: each column starts after one, and the NUMA column is two tabs wide.
    fields = [field.strip() for field in re.sub(r"^ *\t", "", rest).split("\t")] if "\t" in rest else []
    found = dict.fromkeys(header.headings, "")
    if fields:
        if "CPU Affinity" in found:
            found["CPU Affinity"] = fields.pop(0)
        if "GPU NUMA ID" in found and len(fields) > 1:
            found["GPU NUMA ID"] = fields.pop()
        if "NUMA Affinity" in found:
            found["NUMA Affinity"] = next(filter(None, fields), "")
        return tuple(found.values())
    if len(words) == 1 and re.search("[-,]", words[0]) and "CPU Affinity" in found:
        found["CPU Affinity"] = words[0]
    # Blanks cannot tell whether one number is a CPU or a NUMA node: it counts as neither.
    return tuple(found.values())


def _beside(header: _Header, row: _Row, heading: str) -> str:
    text = row.beside[header.headings.index(heading)] if heading in header.headings else ""
    return "" if text == "N/A" else text


def _cell(header: _Header, rows: dict[str, _Row], a: str, b: str) -> str:
    """Return the cell of two devices, from the mirror image where a has no row or b no column."""
    for row, column in ((a, b), (b, a)):
        if row in rows and column in header.devices:
            return rows[row].cells[header.devices.index(column)]
    return "X" if a == b else ""
