"""Chunk packing: many arrays into one contiguous buffer and back, in one native call.

A table row is one array: its byte address, and its count in elements. In the buffer the arrays lie one after the
other without gaps, in elements of the packed type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numba import types

from multiring.errors import ArgumentError
from multiring.kernels.build import native, span_address
from multiring.kernels.dtypes import DType
from multiring.kernels.loops import scratch
from multiring.kernels.primitives import call_span, load_word, store_word

__all__ = ["Packing", "pack_spans", "unpack_spans"]

ROW_BYTES = 16


def pack_spans(table: int, n_rows: int, buffer: int, packed_bytes: int, span: int, parameters: int) -> int:
    """Copy or cast every array of a table to its place in the buffer.

    Parameters
    ----------
    table : int
        Address of ``n_rows`` rows of (byte address, count).
    buffer : int
        Address of the first packed element.
    packed_bytes : int
        Bytes of a packed element.
    span, parameters : int
        The copy or cast kernel, and its parameter block.

    Returns
    -------
    int
        Address of the byte after the last packed one.
    """
    place = scratch()
    at = buffer
    for row in range(n_rows):
        source = table + row * ROW_BYTES
        count = load_word(source + 8)
        store_word(place, at)
        if count > 0:
            call_span(span, source, 1, place, 1, count, parameters)
        at += count * packed_bytes
    return at


def unpack_spans(table: int, n_rows: int, buffer: int, packed_bytes: int, span: int, parameters: int) -> int:
    """Copy or cast every array of a table from its place in the buffer; see :func:`pack_spans`."""
    place = scratch()
    at = buffer
    for row in range(n_rows):
        destination = table + row * ROW_BYTES
        count = load_word(destination + 8)
        store_word(place, at)
        if count > 0:
            call_span(span, place, 1, destination, 1, count, parameters)
        at += count * packed_bytes
    return at


@cache
def _compiled(function: Callable[..., int]) -> Callable[..., int]:
    return native(function, types.int64(*[types.int64] * 6))


class Packing:
    """How arrays of given sizes lie in one buffer.

    Parameters
    ----------
    counts : sequence of int
        Elements of each array; zero is legal.
    dtype : DType
        Of the arrays.
    packed : DType or None
        Of the buffer; None: the same. A cast rounds to nearest even, once.
    stream : bool
        Whether what is written goes past the caches: for more than a cache holds.

    Attributes
    ----------
    offsets : numpy.ndarray, int64, (n + 1,)
        Where each array starts in the buffer, in elements; the last entry is the buffer's count.
    """

    def __init__(self, counts: Sequence[int], dtype: DType, packed: DType | None = None, stream: bool = False) -> None:
        packed = packed or dtype
        if any(count < 0 for count in counts):
            raise ArgumentError(f"counts: got {min(counts)}, wanted elements per array, 0 or more")
        self.dtype, self.packed = dtype, packed
        self.offsets = np.concatenate([[0], np.cumsum(np.asarray(counts, np.int64))]).astype(np.int64)
        self._table = np.zeros((len(counts), 2), np.int64)
        self._table[:, 1] = counts
        self._parameters = np.zeros(8, np.int64)
        self._in = span_address("cast", source=dtype, destination=packed, stream=stream)
        self._out = span_address("cast", source=packed, destination=dtype, stream=stream)

    @property
    def n_bytes(self) -> int:
        """Bytes of the buffer."""
        return int(self.offsets[-1]) * self.packed.itemsize

    def pack(self, addresses: Sequence[int], buffer: int) -> None:
        """Gather the arrays at byte addresses into the buffer at a byte address."""
        self._run(pack_spans, addresses, buffer, self._in)

    def unpack(self, buffer: int, addresses: Sequence[int]) -> None:
        """Scatter the buffer at a byte address to the arrays at byte addresses."""
        self._run(unpack_spans, addresses, buffer, self._out)

    def _run(self, function: Any, addresses: Sequence[int], buffer: int, span: int) -> None:
        if len(addresses) != len(self._table):
            raise ArgumentError(
                f"addresses: got {len(addresses)}, wanted {len(self._table)}, one per array of the packing"
            )
        self._table[:, 0] = addresses
        n_rows, at = len(self._table), self._table.ctypes.data
        _compiled(function)(at, n_rows, buffer, self.packed.itemsize, span, self._parameters.ctypes.data)
