"""A matrix of nvidia-smi topo is read whole, however it was pasted, or refused with the line that failed."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiring.errors import TopologyError
from multiring.topology import preset
from multiring.topology.smi_matrix import read_matrices, topology_matrix
from multiring.topology.text import matrix_text

GOOD = """\
\tGPU0\tGPU1\tGPU2\tmlx5_0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV2\tSYS\tPIX\t0-19,40-59\t0
GPU1\tNV2\t X \tSYS\tPHB\t0-19,40-59\t0
GPU2\tSYS\tSYS\t X \tSYS\t20-39\t1
mlx5_0\tPIX\tPHB\tSYS\t X \t\t
"""
CELLS = (
    ("X", "NV2", "SYS", "PIX"),
    ("NV2", "X", "SYS", "PHB"),
    ("SYS", "SYS", "X", "SYS"),
    ("PIX", "PHB", "SYS", "X"),
)
LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def lines(change: str) -> str:
    """Return the good text after a change that people's terminals make."""
    rows = GOOD.splitlines()
    match change:
        case "escapes":
            rows[0] = rows[0].replace("\tGPU0", "\t\x1b[4mGPU0", 1) + "\x1b[0m"
        case "escapes lost":
            rows[0] = rows[0].replace("\tGPU0", "\t[4mGPU0", 1) + "[0m"
        case "header tab lost":
            rows[0] = rows[0].lstrip()
        case "glued header":
            rows[0] = rows[0].replace("\t", "")
        case "blanks":
            rows = [row.expandtabs(8) for row in rows]
        case "hand aligned":
            rows = [re.sub(r"\s+", "  ", row).strip() for row in rows]
            rows[0] = "GPU0  GPU1  GPU2  mlx5_0  CPU Affinity  NUMA Affinity"
        case "CRLF":
            return "\r\n".join(rows) + "\r\n"
        case "no final newline":
            return "\n".join(rows)
        case "commented":
            rows = ["# " + row for row in ["nvidia-smi topo -m", *rows, ""]]
        case "indented":
            rows = ["      " + row.expandtabs(8) for row in rows]
        case "blank lines":
            rows = [line for row in rows for line in (row, "", "")]
        case "prose":
            rows = ["Here is what GPU0 sees:", "$ nvidia-smi topo -m", *rows, "", "GPU affinity looks odd..."]
        case "legend after":
            rows += LEGEND.splitlines()
        case "legend before":
            rows = [*LEGEND.splitlines(), *rows]
        case "old legend":
            rows = [row.replace("SYS", "SOC") for row in rows] + ["  SOC  = Connection traversing PCIe"]
        case "NIC without row":
            rows = rows[:-1]
        case _ if change == "Markdown":
            cells = [re.split(r"\t", row) for row in rows]
            table = [[*[*row, "", ""][5:7], row[0], *(cell.strip() for cell in row[1:5])] for row in cells]
            rows = ["| " + " | ".join(row) + " |" for row in table]
            rows.insert(1, "|" + "|".join(["----"] * 7) + "|")
        case _:
            assert change == "none"
    return "\n".join(rows) + "\n"


CHANGES = [
    "none", "escapes", "escapes lost", "header tab lost", "glued header", "blanks", "hand aligned", "CRLF",
    "no final newline", "commented", "indented", "blank lines", "prose", "legend after", "legend before", "old legend",
    "NIC without row", "Markdown",
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_matrix_is_read_however_it_was_pasted(change: str) -> None:
    matrix = topology_matrix(lines(change), "text")
    assert matrix.gpus == ("GPU0", "GPU1", "GPU2")
    assert matrix.nics == ("mlx5_0",)
    assert matrix.cells == CELLS
    assert matrix.cpus == ("0-19,40-59", "0-19,40-59", "20-39")
    assert matrix.numa == ("0", "0", "1")
    assert matrix.old_legend is (change == "old legend")


@pytest.mark.parametrize("name", ["s822lc", "dgx1-v100", "dgx-a100", "dgx2", "pcie-8"])
def test_what_a_preset_prints_is_read_back(name: str) -> None:
    machine = preset(name)
    assert machine
    matrix = topology_matrix(matrix_text(machine), name)
    size = len(machine.devices)
    assert matrix.cells == tuple(tuple(machine.kind(a, b) for b in range(size)) for a in range(size))
    assert matrix.nic_devices == {nic.label: nic.device for nic in machine.nics}


@pytest.mark.parametrize(
    ("row", "cpus", "numa"),
    [
        ("GPU0\t X \t\t0\t\tN/A", "", "0"),
        ("GPU0\t X \t1\t1\t\tN/A", "1", "1"),
        ("GPU0\t X \t\t\t\tN/A", "", ""),
        ("GPU0\t X \t0-31,64-95\t0\t\tN/A", "0-31,64-95", "0"),
        ("GPU0\t X \t0-31\tN/A\t\tN/A", "0-31", ""),
        ("GPU0\t X \t0-31\t0-1\t\t1", "0-31", "0-1"),
        ("GPU0   X   0-31  0,2-17  N/A", "0-31", "0,2-17"),
        ("GPU0   X   0-0,8-8,16-16", "0-0,8-8,16-16", ""),
    ],
)
def test_affinity_may_be_empty(row: str, cpus: str, numa: str) -> None:
    matrix = topology_matrix(f"\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n{row}\n", "text")
    assert (matrix.cpus, matrix.numa) == ((cpus,), (numa,))


def test_an_older_double_tab_before_numa() -> None:
    matrix = topology_matrix("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-31\t\t1\n", "text")
    assert (matrix.cpus, matrix.numa) == (("0-31",), ("1",))


def test_states_of_p2p_are_read_and_are_no_topology() -> None:
    text = " \tGPU0\tGPU1\n GPU0\tX\tCNS\n GPU1\tCNS\tX\n"
    (matrix,) = read_matrices(text, "text")
    assert matrix.is_p2p
    assert matrix.cells == (("X", "CNS"), ("CNS", "X"))
    with pytest.raises(
        TopologyError, match=r"text: got only matrices of nvidia-smi topo -p2p, wanted one of .*topo -m"
    ):
        topology_matrix(text, "text")


def test_mp_hides_nvlink() -> None:
    text = lines("none").replace("NV2", "PIX") + LEGEND.replace("NV#", "ZZ")
    assert topology_matrix(text, "text").hides_nvlink
    assert not topology_matrix(lines("legend after"), "text").hides_nvlink


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "GPU1\tNV2\t X \tSYS\tPHB\t0-19,40-59\t0\n",
            "",
            r"ends at line 4 without a row for GPU1, wanted a row for each",
        ),
        ("NV2\t X \tSYS\tPHB\t0-19,40-59\t0", "NV2\t X ", r"line 3: got .*, wanted 4 cells for GPU1, got 2"),
        ("GPU1\tNV2", "GPU1\tNV3", r"line 2: .* wanted equal cells of GPU0 and GPU1, got NV2 here, NV3 in line 3"),
        ("GPU1\tNV2", "GPU1\tNVX", r"line 3: .* wanted X, NV#, .* for GPU1 and GPU0, got 'NVX'"),
        ("GPU1\tNV2\t X ", "GPU1\tNV2\tSYS", r"line 3: .* wanted X where GPU1 meets itself and only there"),
        ("GPU1\tNV2", "GPU1\t X ", r"line 2: .* wanted equal cells|wanted X where"),
        ("20-39\t1", "20-39\tone", r"line 4: .* wanted CPU or NUMA numbers right of the cells, got 'one'"),
        ("20-39\t1", "20-39\t1\t2\t3", r"line 4: .* wanted at most 2 columns right of the cells"),
        ("GPU2\tSYS\tSYS", "GPU1\tSYS\tSYS", r"line 4: .* wanted one row for GPU1, this is the second"),
        (
            "\tGPU0\tGPU1\tGPU2\tmlx5_0\tCPU",
            "\tGPU0\tGPU1\tGPU2\tmlx5_0\tZCPU",
            r"line 1: .* wanted a header of device",
        ),
    ],
)
def test_what_is_not_whole_is_refused_with_its_line(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(TopologyError, match=message):
        topology_matrix(GOOD.replace(old, new, 1), "text")


def test_two_matrices_are_refused() -> None:
    with pytest.raises(TopologyError, match=r"text: got 2 matrices, at lines 1, 6, wanted one: cut the text"):
        topology_matrix(GOOD + GOOD, "text")


def test_other_texts_are_refused() -> None:
    for text in ("", "hello\n", "GPU 0: NVIDIA H100 (UUID: GPU-1)\n", "\0\0\0"):
        with pytest.raises(
            TopologyError, match="text: got no matrix, wanted a header line of devices that starts with"
        ):
            topology_matrix(text, "text")


def test_every_truncation_is_refused_or_holds_all_gpus() -> None:
    last_row = GOOD.index("GPU2\tSYS")
    whole = GOOD.index("SYS", GOOD.index(" X \tSYS", last_row)) + 3
    for end in range(whole):
        with pytest.raises(TopologyError):
            topology_matrix(GOOD[:end], "text")
    for end in range(whole, len(GOOD)):
        try:
            matrix = topology_matrix(GOOD[:end], "text")
        except TopologyError:
            continue
        assert [row[:3] for row in matrix.cells[:3]] == [row[:3] for row in CELLS[:3]]


def check_whole(text: str) -> None:
    """Read a text: what comes is symmetric and complete, or a TopologyError."""
    try:
        found = read_matrices(text, "text")
    except TopologyError:
        return
    for matrix in found:
        size = len(matrix.gpus) + len(matrix.nics)
        assert size == len(matrix.cells) == len(set(matrix.gpus + matrix.nics))
        for a, row in enumerate(matrix.cells):
            assert len(row) == size
            for b, cell in enumerate(row):
                assert cell == matrix.cells[b][a]
                assert (cell == "X") == (a == b)
                assert cell or min(a, b) >= len(matrix.gpus)


@given(st.text(alphabet=st.sampled_from("GPU01 X\tNV2SYIH|#\n\r-,mlx5_NC[4\x1bé"), max_size=200))
def test_no_text_crashes_the_reader(text: str) -> None:
    check_whole(text)


@given(st.data())
def test_no_change_to_a_good_text_is_half_read(data: st.DataObject) -> None:
    text = lines(data.draw(st.sampled_from(CHANGES)))
    for _ in range(data.draw(st.integers(1, 4))):
        at, end = sorted((data.draw(st.integers(0, len(text))), data.draw(st.integers(0, len(text)))))
        part = data.draw(st.sampled_from(["", "\t", " ", "\n", "X", "NV1", "GPU1", "|", "0", text[at:end]]))
        text = text[:at] + part + text[min(end, at + data.draw(st.integers(0, 40))) :]
    check_whole(text)
