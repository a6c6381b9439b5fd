"""The reports: the table against C's printf with nccl-tests' formats, the JSON and CSV with their keys."""

from __future__ import annotations

import csv
import ctypes
import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiring.bench import report
from multiring.bench.cases import make_case
from multiring.bench.documents import csv_columns, document, dump, write_csv
from multiring.bench.rows import Half, PeerFigures, Row
from multiring.kernels.dtypes import DTYPES
from multiring.kernels.operations import OPERATIONS

LIBC = ctypes.CDLL(None)


def half(time_us: float = 2.0, n_wrong: int | None = 0, n_ranks: int = 2, limit_us: float | None = 1.0) -> Half:
    case = make_case("all_reduce", n_ranks, 1024, DTYPES["float32"], OPERATIONS["sum"], "sum")
    alg, bus = case.alg_bw_gbs(time_us), case.bus_bw_gbs(time_us)
    peer = PeerFigures(3 * time_us, 0.1, 0.1, 3.0, n_wrong, "Allreduce on float32")
    return Half(time_us, alg, bus, n_wrong, None, limit_us, 1024, {"mpi": peer})


def row(out_of_place: Half | None = None, in_place: Half | None = None, n_ranks: int = 2) -> Row:
    case = make_case("all_reduce", n_ranks, 1024, DTYPES["float32"], OPERATIONS["sum"], "sum")
    return Row(case, "direct", out_of_place, in_place, 20)


def printf(form: str, *values: object) -> str:
    """Format as C does, with the formats as they stand in nccl-tests' source."""
    arguments: list[object] = []
    for value in values:
        if isinstance(value, str):
            arguments.append(value.encode())
        elif isinstance(value, float):
            arguments.append(ctypes.c_double(value))
        else:
            assert isinstance(value, int)
            arguments.append(ctypes.c_long(value))
    buffer = ctypes.create_string_buffer(4096)
    LIBC.snprintf(buffer, 4096, form.encode(), *arguments)
    return buffer.value.decode()


def float_string(value: float, width: int) -> str:
    """Shrink the precision by the rule of nccl-tests, in our own words: digits before the point decide."""
    digits = 0
    while value >= 10**digits:
        digits += 1
    if digits < width - 2:
        form = f"%{width}.2f"
    elif digits < width - 1:
        form = f"%{width}.1f"
    elif digits < width + 1:
        form = f"%{width}.0f"
    else:
        form = f"%{width}.1e" if width >= 7 else f"%{width}.0e"
    return printf(form, value)


@given(st.floats(0, 1e12), st.sampled_from([6, 7]))
def test_figures_shrink_as_nccl_tests_do(value: float, width: int) -> None:
    assert report.format_figure(value, width) == float_string(value, width)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "   0.00"), (12.345, "  12.35"), (99999.99, "99999.99"), (12345.6, "12345.6"), (1234567.0, "1234567")],
)
def test_figures(value: float, text: str) -> None:
    assert report.format_figure(value, 7) == float_string(value, 7)
    assert len(text) >= 7


def test_the_heading_begins_with_nccl_tests_to_the_character() -> None:
    groups, names, units = report.table_header(["mpi"])
    left = "# %10s  %12s  %8s  %6s  %6s"
    half_names = "  %7s  %6s  %6s  %6s"
    first = printf(left + "           out-of-place                       in-place          ", "", "", "", "", "")
    assert groups.startswith(first)
    labels = ("time", "algbw", "busbw", "#wrong")
    second = printf(left + half_names * 2, "size", "count", "type", "redop", "root", *labels, *labels)
    assert names.startswith(second)
    assert names[len(second) :].split() == ["alg", *["pred(us)", "%limit", "xMPI"] * 2]
    marks = ("(us)", "(GB/s)", "(GB/s)", "")
    assert units == printf(left + half_names * 2, "(B)", "(elements)", "", "", "", *marks, *marks)


def test_a_line_begins_with_nccl_tests_to_the_character() -> None:
    line = report.row_line(row(half(2.0), half(123456.789, n_wrong=3)), ["mpi"])
    wanted = printf("%12li  %12li  %8s  %6s  %6s", 1024, 256, "float", "sum", "-1")
    for time_us, wrong in ((2.0, 0.0), (123456.789, 3.0)):
        bandwidth = 1024 / time_us / 1e3
        texts = (float_string(time_us, 7), float_string(bandwidth, 6), float_string(bandwidth, 6))
        wanted += printf("  %7s  %6s  %6s  %6g", *texts, wrong)
    assert line.startswith(wanted)
    assert line[len(wanted) :].split() == ["direct", "-", "50.00", "3.00", "-", "0.00", "3.00"]


def test_columns_stand_under_their_names() -> None:
    names = report.table_header(["mpi"])[1]
    line = report.row_line(row(half(), half()), ["mpi"])
    for name in ("size", "busbw", "#wrong", "%limit", "xMPI"):
        assert line[names.index(name) + len(name) - 1] != " "


def test_what_is_missing_says_so() -> None:
    line = report.row_line(row(half(n_wrong=None, limit_us=None), None), ["mpi"])
    assert line.split()[5:] == [
        "2.00", "0.51", "0.51", "N/A", "N/A", "N/A", "N/A", "N/A", "direct", "-", "-", "3.00", "N/A", "N/A", "N/A",
    ]  # fmt: skip


def test_the_end_is_nccl_tests() -> None:
    rows = [row(half(2.0), half(4.0))]
    average = (1.024 / 2 + 1.024 / 4) / 2
    assert report.footer_lines("all_reduce", rows, 2) == [
        printf("# %-20s : %d %s", "Out of bounds values", 0, "OK"),
        printf("# %-20s : %g %s", "Avg bus bandwidth", average, ""),
        "#",
        "# Collective test concluded: all_reduce",
    ]


def test_b120_one_rank_has_no_average_but_a_note() -> None:
    lines = report.footer_lines("all_reduce", [row(half(n_ranks=1), half(n_ranks=1), 1)], 1)
    assert lines[1] == "# Avg bus bandwidth    : n/a (one rank: nothing crosses a bus)"
    assert "N/A" in report.row_line(row(half(n_ranks=1), None, 1))


def test_b122_wrong_elements_are_counted_and_never_ok() -> None:
    rows = [row(half(n_wrong=0), half(n_wrong=7))]
    assert report.footer_lines("all_reduce", rows, 2)[0] == "# Out of bounds values : 1 FAILED"
    assert report.row_line(rows[0]).split()[12] == "7"


def refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def written(rows: list[Any]) -> Any:
    stdout = io.StringIO()
    dump(document(rows, {"host": "here"}, ["all_reduce"], "then", "now"), "-", stdout)
    return json.loads(stdout.getvalue(), parse_constant=refuse)


def test_every_key_of_the_contract_is_there() -> None:
    report = written([row(half(), half(4.0))])
    assert {"config", "results", "average_bus_bandwidth", "errors"} <= set(report)
    (line,) = report["results"]
    assert {"size", "count", "type", "redop", "root", "algorithm", "out_of_place", "in_place"} <= set(line)
    assert (line["size"], line["count"], line["type"], line["redop"], line["root"]) == (1024, 256, "float", "sum", -1)
    for name, time_us in (("out_of_place", 2.0), ("in_place", 4.0)):
        figures = line[name]
        assert figures["time"] == time_us
        assert figures["alg_bw"] == pytest.approx(1.024 / time_us)
        assert figures["bus_bw"] == pytest.approx(1.024 / time_us)
        assert figures["nwrong"] == 0
        assert figures["predicted_us"] is None
        assert (figures["limit_us"], figures["limit_bytes"]) == (1.0, 1024)
        assert figures["peers"]["mpi"]["time"] == 3 * time_us
        assert figures["peers"]["mpi"]["ratio"] == 3.0
        assert {"alg_bw", "bus_bw", "how"} <= set(figures["peers"]["mpi"])
    assert report["average_bus_bandwidth"] == pytest.approx((1.024 / 2 + 1.024 / 4) / 2)
    assert report["errors"] == 0


def test_b121_figures_that_are_not_finite_are_null() -> None:
    bad = replace(half(0.0), alg_bw_gbs=math.inf, bus_bw_gbs=math.nan)
    report = written([row(bad, None)])
    figures = report["results"][0]["out_of_place"]
    assert (figures["alg_bw"], figures["bus_bw"]) == (None, None)
    assert report["average_bus_bandwidth"] is None
    assert report["results"][0]["in_place"] is None


def test_b121_values_are_numbers_not_text() -> None:
    line = written([row(half(), None)])["results"][0]
    assert all(type(line[key]) is int for key in ("size", "count", "root"))
    assert all(type(line["out_of_place"][key]) is float for key in ("time", "alg_bw", "bus_bw", "limit_us"))


def test_b122_errors_are_counted() -> None:
    report = written([row(half(n_wrong=1), half(n_wrong=0))])
    assert report["errors"] == 1
    assert report["out_of_bounds"] == {"count": 1, "okay": False}


def test_no_lines_is_a_document_too() -> None:
    assert written([])["average_bus_bandwidth"] is None


def test_csv_has_one_line_for_each_size_and_half(tmp_path: Path) -> None:
    path = tmp_path / "result.csv"
    write_csv([row(half(), half(4.0)), row(half(8.0), None)], str(path), ["mpi"])
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(line["half"], line["time_us"]) for line in lines] == [
        ("out_of_place", "2.0"), ("in_place", "4.0"), ("out_of_place", "8.0"),
    ]  # fmt: skip
    assert list(lines[0]) == csv_columns(["mpi"])
    assert lines[0]["predicted_us"] == ""
    assert lines[0]["mpi_ratio"] == "3.0"
    assert lines[0]["mpi_how"] == "Allreduce on float32"
