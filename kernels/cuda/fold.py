"""The thread-strided loop over a span: fold n sources into m destinations, 16 bytes at a time where addresses allow.

::

    address mod 16:   . . . . 0 . . . . . . . 0 . . . ... 0 . . .
                      head    | vector units           |  tail

A unit is 16 bytes of the narrower type. Where all sources and destinations reach a multiple of 16 at the same
element, the units between head and tail are loaded and stored as vectors, several of them by each thread at once; the
head, the tail and whatever has no such element are handled one element at a time. Every element is read and written
by one thread, so a destination may be exactly a source of the same size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from multiring.kernels.cuda.arithmetic import Arithmetic
from multiring.kernels.cuda.homes import device_function
from multiring.kernels.cuda.lanes import VECTOR_BYTES, load_lanes, map_lanes, store_lanes
from multiring.kernels.primitives import load_word

__all__ = ["Shape", "make_fold", "shape_of"]

REGISTER_BUDGET = 32
"""32-bit registers that one source's lanes may take, in memory or widened, before fewer units are done at once."""

MOST_UNITS = 4
"""Units of each thread at once: so many loads of a source are under way."""


class Shape:
    """How a block cuts a span.

    Parameters
    ----------
    arithmetic : Arithmetic
    threads : int
        Of a block; a power of two.

    Attributes
    ----------
    unit : int
        Elements of a unit.
    n_units : int
        Units that a thread does at once.
    tile : int
        Elements that a block does at once.
    """

    def __init__(self, arithmetic: Arithmetic, threads: int) -> None:
        if threads < 1 or threads & (threads - 1):
            raise ValueError(f"threads: got {threads}, wanted a power of two")
        self.threads = threads
        narrow = min(arithmetic.source_bytes, arithmetic.destination_bytes)
        self.unit = max(VECTOR_BYTES // narrow, 1)
        widest = max(arithmetic.source_bytes, arithmetic.destination_bytes, np.dtype(arithmetic.wide).itemsize, 4)
        # Types of less than four bytes take a register for each element all the same.
        registers = self.unit * widest // 4
        self.n_units = max(min(MOST_UNITS, REGISTER_BUDGET // registers), 1)
        self.tile = threads * self.n_units * self.unit


def shape_of(arithmetic: Arithmetic, threads: int) -> Shape:
    """Return how a block cuts a span."""
    return Shape(arithmetic, threads)


def _log2(value: int) -> int:
    return value.bit_length() - 1


def make_part(arithmetic: Arithmetic, per_unit: int, n_units: int, stride: int) -> Callable[..., None]:
    """Return the device function that does one thread's units of a tile, ``stride`` elements apart."""
    load, combine, finish, store = arithmetic.load, arithmetic.combine, arithmetic.finish, arithmetic.store
    source, wide, destination = arithmetic.source, arithmetic.wide, arithmetic.destination
    source_bytes, destination_bytes = arithmetic.source_bytes, arithmetic.destination_bytes
    source_stride, destination_stride = stride * source_bytes, stride * destination_bytes

    def part(sources: int, n_sources: int, destinations: int, n_destinations: int, at: int, parameter: Any) -> None:
        skip = at * source_bytes
        x = load_lanes(source, per_unit, n_units, load_word(sources) + skip, source_stride)
        if n_sources == 1:
            total = map_lanes(load, wide, (x,), ())
        else:
            # The next source is under way before the last one is needed; compilers do not unroll this loop.
            y = load_lanes(source, per_unit, n_units, load_word(sources + 8) + skip, source_stride)
            total = map_lanes(combine, wide, (map_lanes(load, wide, (x,), ()), map_lanes(load, wide, (y,), ())), ())
            k = 2
            while k + 1 < n_sources:
                x = load_lanes(source, per_unit, n_units, load_word(sources + 8 * k) + skip, source_stride)
                y = load_lanes(source, per_unit, n_units, load_word(sources + 8 * k + 8) + skip, source_stride)
                total = map_lanes(combine, wide, (total, map_lanes(load, wide, (x,), ())), ())
                total = map_lanes(combine, wide, (total, map_lanes(load, wide, (y,), ())), ())
                k += 2
            if k < n_sources:
                x = load_lanes(source, per_unit, n_units, load_word(sources + 8 * k) + skip, source_stride)
                total = map_lanes(combine, wide, (total, map_lanes(load, wide, (x,), ())), ())
        out = map_lanes(store, destination, (map_lanes(finish, wide, (total,), (parameter,)),), ())
        skip = at * destination_bytes
        k = 0
        while k < n_destinations:
            at = load_word(destinations + 8 * k) + skip
            store_lanes(destination, per_unit, n_units, at, destination_stride, out)
            k += 1

    return device_function(part)


def make_head(source_bytes: int, destination_bytes: int) -> Callable[..., int]:
    """Return the device function that counts the elements before the first vector; -1: there is none."""
    source_shift, destination_shift = _log2(source_bytes), _log2(destination_bytes)
    narrow_source = source_bytes < destination_bytes

    def head(sources: int, n_sources: int, destinations: int, n_destinations: int) -> int:
        if narrow_source:
            before = (-load_word(sources) & 15) >> source_shift
        else:
            before = (-load_word(destinations) & 15) >> destination_shift
        off = 0
        k = 0  # Not range(): its iterator is three instructions a trip in registers that the loop needs.
        while k < n_sources:
            off |= load_word(sources + 8 * k) + (before << source_shift)
            k += 1
        k = 0
        while k < n_destinations:
            off |= load_word(destinations + 8 * k) + (before << destination_shift)
            k += 1
        return before if off & 15 == 0 else -1

    return device_function(head)


def make_fold(arithmetic: Arithmetic, shape: Shape) -> Callable[..., None]:
    """Return the device function that folds a span.

    ::

        fold(first, step, thread, sources, n_sources, destinations, n_destinations, count, parameter)

    ``first`` and ``step`` are the block's number and how many blocks share the span, ``sources`` and ``destinations``
    addresses of int64 tables of byte addresses, which are multiples of the elements' sizes; ``count`` is in elements.
    """
    threads, unit, parts = shape.threads, shape.unit, arithmetic.parts
    unit_shift, tile_shift = _log2(unit), _log2(threads * shape.n_units)
    head = make_head(arithmetic.source_bytes, arithmetic.destination_bytes)
    tile_part = make_part(arithmetic, unit, shape.n_units, threads * unit)
    unit_part = make_part(arithmetic, unit, 1, 0)
    element_part = make_part(arithmetic, 1, 1, 0)

    def fold(
        first: int,
        step: int,
        thread: int,
        sources: int,
        n_sources: int,
        destinations: int,
        n_destinations: int,
        count: int,
        parameter: Any,
    ) -> None:
        n = count * parts
        before = head(sources, n_sources, destinations, n_destinations)
        units = 0
        if 0 <= before < n:
            units = (n - before) >> unit_shift
        tiles = units >> tile_shift
        tile = first
        while tile < tiles:
            at = before + (((tile << tile_shift) + thread) << unit_shift)
            tile_part(sources, n_sources, destinations, n_destinations, at, parameter)
            tile += step
        if tile == tiles:  # The units that fill no tile belong to the block whose turn it is.
            index = (tiles << tile_shift) + thread
            while index < units:
                at = before + (index << unit_shift)
                unit_part(sources, n_sources, destinations, n_destinations, at, parameter)
                index += threads
        inner = units << unit_shift
        index = first * threads + thread
        while index < n - inner:
            at = index
            if index >= before:
                at += inner
            element_part(sources, n_sources, destinations, n_destinations, at, parameter)
            index += step * threads

    return device_function(fold)
