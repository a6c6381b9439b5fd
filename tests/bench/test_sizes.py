"""Sizes and sweeps, with the cases of public bug reports by number."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiring.bench.sizes import LARGEST_BYTES, format_bytes, parse_bytes, parse_factor, sweep_sizes
from multiring.errors import ArgumentError


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("8", 8), ("0", 0), ("1K", 1024), ("1k", 1024), ("1KB", 1024), ("1KiB", 1024), ("0.5M", 524288),
        (" 8M", 8 << 20),
        ("4kb", 4096), ("1.5m", 1572864), ("4MiB", 4 << 20), ("64M", 64 << 20), ("2G", 2 << 30), ("1E", 1 << 60),
        ("7B", 7), ("9223372036854775807", LARGEST_BYTES),
    ],
)  # fmt: skip
def test_b116_one_parser_reads_every_size(text: str, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize(
    "text",
    ["12junk", "-1", "1e6", "", "M", "1.M", ".5M", "1_000", "0x10", "1 K", "1KK", "1KiBs", "inf", "nan", "١K", "+8"],
)
def test_b116_junk_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"-e: got .*, wanted bytes such as 8, 1K, 4MiB or 64M"):
        parse_bytes(text, "-e")


def test_b116_a_step_has_its_unit() -> None:
    assert sweep_sizes(0, parse_bytes("4M"), None, parse_bytes("2M")) == (0, 2 << 20, 4 << 20)


def test_b116_part_of_a_byte_is_refused() -> None:
    with pytest.raises(ArgumentError, match="wanted a whole number of bytes"):
        parse_bytes("0.3K")


@pytest.mark.parametrize("text", ["17179869185g", "8E", "10E", "9223372036854775808"])
def test_b117_huge_sizes_are_out_of_range(text: str) -> None:
    with pytest.raises(ArgumentError, match="out of range"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("begin", "factor", "step", "message"),
    [
        (8, Fraction(1), 0, "-i: got a step of 0 bytes"),
        (8, Fraction(1), None, "-f: got 1, wanted a factor above 1"),
        (8, Fraction(0), None, "-f: got 0, wanted a factor above 1"),
        (8, Fraction(-2), None, "-f: got -2"),
        (8, Fraction(-2), 8, "-f: got -2"),
        (8, None, None, "-f: got none"),
        (8, Fraction(2), 0, "-i: got a step of 0 bytes"),
        (8, Fraction(2), -8, "-i: got a step of -8 bytes"),
        (0, Fraction(2), None, "0 times anything is 0"),
        (65, Fraction(2), None, "-b/-e: got a first size of 65 bytes above the last, 64"),
    ],
)
def test_b118_endless_and_empty_sweeps_are_refused(
    begin: int, factor: Fraction | None, step: int | None, message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        sweep_sizes(begin, 64, factor, step)


@pytest.mark.parametrize("text", ["-2", "two", "nan", "inf", "1e30", ""])
def test_b118_a_factor_is_a_number(text: str) -> None:
    with pytest.raises(ArgumentError, match="-f: got"):
        parse_factor(text, "-f")


def test_a_step_is_used_where_the_factor_is_not_above_1() -> None:
    assert sweep_sizes(0, 10, Fraction(1), 4) == (0, 4, 8, 10)
    assert sweep_sizes(4, 32, Fraction(2), 1) == (4, 8, 16, 32)


def test_too_many_sizes_are_refused() -> None:
    with pytest.raises(ArgumentError, match="more than 100000 sizes"):
        sweep_sizes(0, 1 << 30, None, 1)


@given(
    begin=st.integers(1, LARGEST_BYTES),
    more=st.integers(0, LARGEST_BYTES),
    factor=st.fractions(min_value=Fraction(11, 10), max_value=1000),
)
def test_a_sweep_rises_and_includes_both_ends(begin: int, more: int, factor: Fraction) -> None:
    end = min(begin + more, LARGEST_BYTES)
    sizes = sweep_sizes(begin, end, factor)
    assert sizes[0] == begin
    assert sizes[-1] == end
    assert all(low < high for low, high in pairwise(sizes))
    assert all(high - low == 1 or high <= low * factor for low, high in pairwise(sizes))


@given(number=st.integers(0, 1 << 20), power=st.integers(0, 4), ending=st.sampled_from(["", "B", "iB"]))
def test_what_is_written_is_read_back(number: int, power: int, ending: str) -> None:
    unit = ("", "K", "M", "G", "T")[power]
    text = f"{number}{unit}{ending if unit else ''}"
    assert parse_bytes(text) == parse_bytes(text.lower()) == number * 2 ** (10 * power)


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        nbytes = parse_bytes(text)
    except ArgumentError as error:
        nbytes = 0 if "\n" not in str(error) else -1
    assert 0 <= nbytes <= LARGEST_BYTES


def test_sizes_for_people() -> None:
    assert [format_bytes(n) for n in (0, 1023, 1024, 3 << 30)] == ["0 bytes", "1023 bytes", "1.0 KiB", "3.0 GiB"]
