"""Loops over a contiguous span: reduce many sources into many destinations, cast, copy.

Every factory returns a function with the one signature that the interpreter calls::

    span(sources, n_sources, destinations, n_destinations, count, parameters)

``sources`` and ``destinations`` are addresses of int64 tables of byte addresses, ``count`` is in elements, and
``parameters`` is the address of eight words: word 0 holds the bits of the float64 scale, word 1 the number of ranks.
Addresses may have any alignment. A destination may be exactly a source; nothing may overlap in another way.

The factories close over module-level functions and numbers only: that is what Numba's disk cache can recognise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from multiring.kernels.bits import float64_of_bits
from multiring.kernels.loops import fold_elements, scratch
from multiring.kernels.primitives import copy_bytes, load_word
from multiring.kernels.scalars import add, keep, same

__all__ = ["BLOCK_ELEMENTS", "make_cast", "make_copy", "make_reduce"]

BLOCK_ELEMENTS = 1024
"""Elements that are accumulated at a time, in a scratch that stays in the first-level cache."""

COPY_BLOCK_BYTES = 16384
"""Bytes that are copied to every destination before the next are read."""

Span = Callable[[int, int, int, int, int, int], None]


def make_reduce(
    load: Callable[..., Any],
    combine: Callable[..., Any],
    finish: Callable[..., Any],
    store: Callable[..., Any],
    element: type[Any],
    accumulate: type[Any],
    itemsize: int,
    parts: int,
) -> Span:
    """Return the span that folds n sources into m destinations.

    Parameters
    ----------
    load, combine, finish, store : scalar function
        From the element to the accumulate type, two values into one, after the last source, and to the element.
    element, accumulate : numpy scalar type
        In memory and in registers.
    itemsize : int
        Bytes of ``element``.
    parts : int
        How many of ``element`` make one of the caller's elements: 2 where a complex number is summed as two floats.
    """

    def span(sources: int, n_sources: int, destinations: int, n_destinations: int, count: int, parameters: int) -> None:
        n = count * parts
        ranks = accumulate(load_word(parameters + 8))
        if n_sources == 2 and n_destinations == 2:
            a = (load, element, load_word(sources))
            b = (load, element, load_word(sources + 8))
            d = (store, element, load_word(destinations))
            e = (store, element, load_word(destinations + 8))
            fold_elements(combine, finish, ranks, n, (d, e), (a, b))
            return
        block = n
        if n_sources > 3:
            block = BLOCK_ELEMENTS
        elif n_destinations > 1:
            block = COPY_BLOCK_BYTES // itemsize
        first = load_word(destinations)
        room = scratch()
        held = (same, accumulate, room)
        start = 0
        while start < n:
            m = min(block, n - start)
            skip = start * itemsize
            d = (store, element, first + skip)
            a = (load, element, load_word(sources) + skip)
            if n_sources == 1:
                fold_elements(combine, finish, ranks, m, (d,), (a,))
            else:
                b = (load, element, load_word(sources + 8) + skip)
                if n_sources == 2:
                    fold_elements(combine, finish, ranks, m, (d,), (a, b))
                else:
                    c = (load, element, load_word(sources + 16) + skip)
                    if n_sources == 3:
                        fold_elements(combine, finish, ranks, m, (d,), (a, b, c))
                    else:
                        fold_elements(combine, keep, ranks, m, (held,), (a, b, c))
                        for k in range(3, n_sources - 1):
                            b = (load, element, load_word(sources + 8 * k) + skip)
                            fold_elements(combine, keep, ranks, m, (held,), (held, b))
                        b = (load, element, load_word(sources + 8 * (n_sources - 1)) + skip)
                        fold_elements(combine, finish, ranks, m, (d,), (held, b))
            for k in range(1, n_destinations):
                copy_bytes(load_word(destinations + 8 * k) + skip, first + skip, m * itemsize)
            start += m

    return span


def make_cast(
    load: Callable[..., Any],
    finish: Callable[..., Any],
    store: Callable[..., Any],
    source: type[Any],
    destination: type[Any],
    accumulate: type[Any],
    source_bytes: int,
    destination_bytes: int,
) -> Span:
    """Return the span that converts one source into m destinations.

    Parameters
    ----------
    load, finish, store : scalar function
        From the source to the accumulate type, what happens there, and to the destination.
    source, destination, accumulate : numpy scalar type
        In memory on either side, and in registers.
    source_bytes, destination_bytes : int
        Sizes of the two.
    """

    def span(sources: int, n_sources: int, destinations: int, n_destinations: int, count: int, parameters: int) -> None:
        factor = accumulate(float64_of_bits(np.uint64(load_word(parameters))))
        first = load_word(destinations)
        block = BLOCK_ELEMENTS if n_destinations > 1 else count
        start = 0
        while start < count:
            m = min(block, count - start)
            at = first + start * destination_bytes
            d = (store, destination, at)
            a = (load, source, load_word(sources) + start * source_bytes)
            fold_elements(add, finish, factor, m, (d,), (a,))
            for k in range(1, n_destinations):
                copy_bytes(load_word(destinations + 8 * k) + start * destination_bytes, at, m * destination_bytes)
            start += m

    return span


def make_copy(itemsize: int) -> Span:
    """Return the span that copies one source to m destinations, ``itemsize`` bytes an element."""

    def span(sources: int, n_sources: int, destinations: int, n_destinations: int, count: int, parameters: int) -> None:
        n_bytes = count * itemsize
        source = load_word(sources)
        block = COPY_BLOCK_BYTES if n_destinations > 1 else n_bytes
        start = 0
        while start < n_bytes:
            m = min(block, n_bytes - start)
            for k in range(n_destinations):
                destination = load_word(destinations + 8 * k)
                if destination != source:
                    copy_bytes(destination + start, source + start, m)
            start += m

    return span
