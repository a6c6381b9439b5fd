"""The thread-strided loop over a span for one source and one destination, whose addresses stay in registers.

The cut into head, vector units and tail is that of :mod:`multiring.kernels.cuda.fold`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from multiring.kernels.cuda.arithmetic import Arithmetic
from multiring.kernels.cuda.fold import Shape
from multiring.kernels.cuda.homes import device_function
from multiring.kernels.cuda.lanes import load_lanes, map_lanes, store_lanes

__all__ = ["first_vector", "make_convert", "make_first_vector"]


def first_vector(source: int, source_bytes: int, destination: int, destination_bytes: int) -> int:
    """Return how many elements lie before the first that both reach at a multiple of 16; -1: there is none."""
    if source_bytes < destination_bytes:
        before = (-source & 15) // source_bytes
    else:
        before = (-destination & 15) // destination_bytes
    off = (source + before * source_bytes) | (destination + before * destination_bytes)
    return before if off & 15 == 0 else -1


def make_first_vector(source_bytes: int, destination_bytes: int) -> Callable[..., int]:
    """Return :func:`first_vector` for two sizes as a device function."""
    source_shift, destination_shift = source_bytes.bit_length() - 1, destination_bytes.bit_length() - 1
    narrow_source = source_bytes < destination_bytes

    def head(source: int, destination: int) -> int:
        if narrow_source:
            before = (-source & 15) >> source_shift
        else:
            before = (-destination & 15) >> destination_shift
        off = (source + (before << source_shift)) | (destination + (before << destination_shift))
        return before if off & 15 == 0 else -1

    return device_function(head)


def _make_part(arithmetic: Arithmetic, per_unit: int, n_units: int, stride: int) -> Callable[..., None]:
    load, finish, store = arithmetic.load, arithmetic.finish, arithmetic.store
    source, wide, destination = arithmetic.source, arithmetic.wide, arithmetic.destination
    source_bytes, destination_bytes = arithmetic.source_bytes, arithmetic.destination_bytes

    def part(origin: int, target: int, at: int, parameter: Any) -> None:
        x = load_lanes(source, per_unit, n_units, origin + at * source_bytes, stride * source_bytes)
        total = map_lanes(finish, wide, (map_lanes(load, wide, (x,), ()),), (parameter,))
        out = map_lanes(store, destination, (total,), ())
        store_lanes(destination, per_unit, n_units, target + at * destination_bytes, stride * destination_bytes, out)

    return device_function(part)


def make_convert(arithmetic: Arithmetic, shape: Shape) -> Callable[..., None]:
    """Return the device function that converts or copies a span.

    ::

        convert(first, step, thread, source, destination, n, parameter)

    ``first`` and ``step`` are the block's number and how many blocks share the span; ``n`` is in
    elements of ``arithmetic.source``.
    """
    threads, unit = shape.threads, shape.unit
    unit_shift, tile_shift = unit.bit_length() - 1, (threads * shape.n_units).bit_length() - 1
    head = make_first_vector(arithmetic.source_bytes, arithmetic.destination_bytes)
    tile_part = _make_part(arithmetic, unit, shape.n_units, threads * unit)
    unit_part = _make_part(arithmetic, unit, 1, 0)
    element_part = _make_part(arithmetic, 1, 1, 0)

    def convert(first: int, step: int, thread: int, source: int, destination: int, n: int, parameter: Any) -> None:
        before = head(source, destination)
        units = 0
        if 0 <= before < n:
            units = (n - before) >> unit_shift
        tiles = units >> tile_shift
        tile = first
        while tile < tiles:
            tile_part(source, destination, before + (((tile << tile_shift) + thread) << unit_shift), parameter)
            tile += step
        if tile == tiles:  # The units that fill no tile belong to the block whose turn it is.
            index = (tiles << tile_shift) + thread
            while index < units:
                unit_part(source, destination, before + (index << unit_shift), parameter)
                index += threads
        inner = units << unit_shift
        index = first * threads + thread
        while index < n - inner:
            at = index
            if index >= before:
                at += inner
            element_part(source, destination, at, parameter)
            index += step * threads

    return device_function(convert)
