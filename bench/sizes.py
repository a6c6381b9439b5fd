"""Sizes in bytes: how they are written, and the sizes that a sweep visits."""

from __future__ import annotations

import math
import re
from fractions import Fraction

from multiring.errors import ArgumentError

__all__ = ["LARGEST_BYTES", "MOST_SIZES", "format_bytes", "parse_bytes", "parse_factor", "sweep_sizes"]

LARGEST_BYTES = 2**63 - 1
"""The largest size that can be asked for: addresses and counts are signed 64-bit numbers."""

MOST_SIZES = 100_000
"""The most sizes that one sweep may have."""

_UNITS = {unit: 1024**power for power, unit in enumerate(("", "K", "M", "G", "T", "P", "E"))}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?:([KMGTPE])(?:I?B)?|B)?", re.ASCII | re.IGNORECASE)


def parse_bytes(text: str, what: str = "size") -> int:
    """Read a size such as ``8``, ``1K``, ``4MiB``, ``0.5G``.

    Parameters
    ----------
    text : str
        A decimal number and a unit: none or B for bytes, K, M, G, T, P, E for powers of 1024, each also as ``KB`` and
        ``KiB``, in either case. A fraction is allowed where it makes a whole number of bytes.
    what : str
        What the size is for, named in errors.

    Returns
    -------
    int
        Bytes, 0 to :data:`LARGEST_BYTES`.

    Raises
    ------
    ArgumentError
        If the text is anything else, or the number too large.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ArgumentError(f"{what}: got {text!r}, wanted bytes such as 8, 1K, 4MiB or 64M (units are powers of 1024)")
    value = Fraction(match[1]) * _UNITS[(match[2] or "").upper()]
    if value.denominator != 1:
        raise ArgumentError(f"{what}: got {text!r}, which is {float(value)} bytes, wanted a whole number of bytes")
    if value > LARGEST_BYTES:
        raise ArgumentError(f"{what}: got {text!r}, out of range: wanted at most {LARGEST_BYTES} bytes (just under 8E)")
    return int(value)


def parse_factor(text: str, what: str = "factor") -> Fraction:
    """Read a factor such as ``2`` or ``1.5``.

    Raises
    ------
    ArgumentError
        If it is not a decimal number, or is negative or out of range.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0 or value > LARGEST_BYTES:
        raise ArgumentError(f"{what}: got {text!r}, wanted a number above 1, such as 2")
    return Fraction(value)


def sweep_sizes(
    begin_bytes: int, end_bytes: int, factor: Fraction | int | None = 2, step_bytes: int | None = None
) -> tuple[int, ...]:
    """Return the sizes from begin to end, both included, by a factor or by a step.

    Parameters
    ----------
    begin_bytes, end_bytes : int
        The first and the last size in bytes; the last is visited even where no step lands on it.
    factor : number or None
        Each size is this many times the one before, if it is above 1.
    step_bytes : int or None
        Otherwise, each size is this many bytes more than the one before.

    Raises
    ------
    ArgumentError
        If the sweep would be empty, endless or longer than :data:`MOST_SIZES`.
    """
    if begin_bytes > end_bytes:
        raise ArgumentError(
            f"-b/-e: got a first size of {begin_bytes} bytes above the last, {end_bytes}; wanted -b at most -e"
        )
    if factor is not None and factor < 0:
        raise ArgumentError(f"-f: got {float(factor):g}, wanted a factor above 1")
    if step_bytes is not None and step_bytes <= 0:
        raise ArgumentError(f"-i: got a step of {step_bytes} bytes, wanted at least 1: the sweep would never end")
    multiply = factor is not None and factor > 1
    if not multiply and step_bytes is None:
        got = "none" if factor is None else f"{float(factor):g}"
        raise ArgumentError(
            f"-f: got {got}, wanted a factor above 1, or a step in bytes with -i: the sweep would never end"
        )
    if multiply and begin_bytes == 0 and end_bytes > 0:
        raise ArgumentError(
            "-b: got 0 with a factor, and 0 times anything is 0; wanted -b at least 1, or -i for a step"
        )
    sizes: list[int] = []
    size = begin_bytes
    while size < end_bytes:
        sizes.append(size)
        if len(sizes) >= MOST_SIZES:
            raise ArgumentError(f"-b/-e: got more than {MOST_SIZES} sizes, wanted fewer: raise -i or -f")
        if multiply and factor is not None:
            size = max(size + 1, int(size * factor))
        else:
            size += step_bytes or 1
    return (*sizes, end_bytes)


def format_bytes(nbytes: int) -> str:
    """Write a size for people: ``24.0 GiB``."""
    value = float(nbytes)
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(value) < 1024:
            return f"{nbytes} bytes" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} EiB"
