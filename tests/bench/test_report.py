"""The table, compared with what C's printf makes of nccl-tests' formats."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiring.bench import report

Build = Callable[..., Any]
LIBC = ctypes.CDLL(None)


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


def test_a_line_begins_with_nccl_tests_to_the_character(half: Build, row: Build) -> None:
    line = report.row_line(row(half(2.0), half(123456.789, n_wrong=3)), ["mpi"])
    wanted = printf("%12li  %12li  %8s  %6s  %6s", 1024, 256, "float", "sum", "-1")
    for time_us, wrong in ((2.0, 0.0), (123456.789, 3.0)):
        bandwidth = 1024 / time_us / 1e3
        texts = (float_string(time_us, 7), float_string(bandwidth, 6), float_string(bandwidth, 6))
        wanted += printf("  %7s  %6s  %6s  %6g", *texts, wrong)
    assert line.startswith(wanted)
    assert line[len(wanted) :].split() == ["direct", "-", "50.00", "3.00", "-", "0.00", "3.00"]


def test_columns_stand_under_their_names(half: Build, row: Build) -> None:
    names = report.table_header(["mpi"])[1]
    line = report.row_line(row(half(), half()), ["mpi"])
    for name in ("size", "busbw", "#wrong", "%limit", "xMPI"):
        assert line[names.index(name) + len(name) - 1] != " "


def test_what_is_missing_says_so(half: Build, row: Build) -> None:
    line = report.row_line(row(half(n_wrong=None, limit_us=None), None), ["mpi"])
    assert line.split()[5:] == [
        "2.00", "0.51", "0.51", "N/A", "N/A", "N/A", "N/A", "N/A", "direct", "-", "-", "3.00", "N/A", "N/A", "N/A",
    ]  # fmt: skip


def test_the_end_is_nccl_tests(half: Build, row: Build) -> None:
    rows = [row(half(2.0), half(4.0))]
    average = (1.024 / 2 + 1.024 / 4) / 2
    assert report.footer_lines("all_reduce", rows, 2) == [
        printf("# %-20s : %d %s", "Out of bounds values", 0, "OK"),
        printf("# %-20s : %g %s", "Avg bus bandwidth", average, ""),
        "#",
        "# Collective test concluded: all_reduce",
    ]


def test_b120_one_rank_has_no_average_but_a_note(half: Build, row: Build) -> None:
    lines = report.footer_lines("all_reduce", [row(half(n_ranks=1), half(n_ranks=1), 1)], 1)
    assert lines[1] == "# Avg bus bandwidth    : n/a (one rank: nothing crosses a bus)"
    assert "N/A" in report.row_line(row(half(n_ranks=1), None, 1))


def test_b122_wrong_elements_are_counted_and_never_ok(half: Build, row: Build) -> None:
    rows = [row(half(n_wrong=0), half(n_wrong=7))]
    assert report.footer_lines("all_reduce", rows, 2)[0] == "# Out of bounds values : 1 FAILED"
    assert report.row_line(rows[0]).split()[12] == "7"
