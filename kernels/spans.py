"""Loops over a contiguous span: reduce many sources into many destinations, cast, copy.

Every factory returns a function with the one signature that the interpreter calls::

    span(sources, n_sources, destinations, n_destinations, count, parameters)

``sources`` and ``destinations`` are addresses of int64 tables of byte addresses, ``count`` is in elements, and
``parameters`` is the address of eight words: word 0 holds the bits of the float64 scale, word 1 the number of ranks.
Addresses may have any alignment. A destination may be exactly a source; nothing may overlap in another way.

With ``stream`` the results go past the caches: quicker where they exceed a cache and are apart from the sources,
slower elsewhere (see ``docs/numerics.md`` for the figures). Such a span ends with a fence.

The factories close over module-level functions and numbers only: that is what Numba's disk cache can recognise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.extending import register_jitable

from multiring.kernels.bits import float64_of_bits
from multiring.kernels.loops import SCRATCH_BYTES, fold_elements, scratch
from multiring.kernels.primitives import copy_bytes, fence, load_word
from multiring.kernels.scalars import add, keep, same
from multiring.kernels.streaming import stream_bytes

__all__ = ["Span", "make_cast", "make_copy", "make_reduce"]

MAX_BLOCK_ELEMENTS = 1024
"""Elements that are accumulated at a time, in half of a scratch that stays in the first-level cache."""

COPY_BLOCK_BYTES = 16384
"""Bytes that are copied to every destination before the next are read."""

HALF_SCRATCH_BYTES = SCRATCH_BYTES // 2

Span = Callable[[int, int, int, int, int, int], None]


@register_jitable
def spread(destinations: int, n_destinations: int, skip: int, block: int, n_bytes: int, stream: bool) -> None:
    """Copy a finished block to all destinations, or to all but the first, where it was computed."""
    first = 0 if stream else 1
    for k in range(first, n_destinations):
        destination = load_word(destinations + 8 * k) + skip
        if stream:
            stream_bytes(destination, block, n_bytes)
        else:
            copy_bytes(destination, block, n_bytes)


def make_reduce(
    load: Callable[..., Any],
    combine: Callable[..., Any],
    finish: Callable[..., Any],
    store: Callable[..., Any],
    element: type[Any],
    accumulate: type[Any],
    element_bytes: int,
    accumulate_bytes: int,
    parts: int,
    stream: bool,
) -> Span:
    """Return the span that folds n sources into m destinations.

    Parameters
    ----------
    load, combine, finish, store : scalar function
        From the element to the accumulate type, two values into one, after the last source, and to the element.
    element, accumulate : numpy scalar type
        In memory and in registers.
    element_bytes, accumulate_bytes : int
        Their sizes.
    parts : int
        How many of ``element`` make one of the caller's elements: 2 where a complex number is summed as two floats.
    stream : bool
        Whether the results go past the caches.
    """
    block_elements = min(MAX_BLOCK_ELEMENTS, HALF_SCRATCH_BYTES // accumulate_bytes)

    def span(sources: int, n_sources: int, destinations: int, n_destinations: int, count: int, parameters: int) -> None:
        n = count * parts
        ranks = accumulate(load_word(parameters + 8))
        if n_sources == 2 and n_destinations == 2 and not stream:
            a = (load, element, load_word(sources))
            b = (load, element, load_word(sources + 8))
            d = (store, element, load_word(destinations))
            e = (store, element, load_word(destinations + 8))
            fold_elements(combine, finish, ranks, n, (d, e), (a, b))
            return
        block = n
        if n_sources > 3 or stream:
            block = block_elements
        elif n_destinations > 1:
            block = COPY_BLOCK_BYTES // element_bytes
        room = scratch()
        held = (same, accumulate, room)
        start = 0
        while start < n:
            m = min(block, n - start)
            skip = start * element_bytes
            out = load_word(destinations) + skip
            if stream:
                out = room + HALF_SCRATCH_BYTES
            d = (store, element, out)
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
            spread(destinations, n_destinations, skip, out, m * element_bytes, stream)
            start += m
        if stream:
            fence()

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
    stream: bool,
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
    stream : bool
        Whether the results go past the caches.
    """

    def span(sources: int, n_sources: int, destinations: int, n_destinations: int, count: int, parameters: int) -> None:
        factor = accumulate(float64_of_bits(load_word(parameters)))
        block = count
        if n_destinations > 1 or stream:
            block = MAX_BLOCK_ELEMENTS
        room = scratch()
        start = 0
        while start < count:
            m = min(block, count - start)
            skip = start * destination_bytes
            out = load_word(destinations) + skip
            if stream:
                out = room
            a = (load, source, load_word(sources) + start * source_bytes)
            fold_elements(add, finish, factor, m, ((store, destination, out),), (a,))
            spread(destinations, n_destinations, skip, out, m * destination_bytes, stream)
            start += m
        if stream:
            fence()

    return span


def make_copy(itemsize: int, stream: bool) -> Span:
    """Return the span that copies one source to m destinations, ``itemsize`` bytes an element."""

    def span(sources: int, n_sources: int, destinations: int, n_destinations: int, count: int, parameters: int) -> None:
        n_bytes = count * itemsize
        source = load_word(sources)
        block = n_bytes
        if n_destinations > 1:
            block = COPY_BLOCK_BYTES
        start = 0
        while start < n_bytes:
            m = min(block, n_bytes - start)
            for k in range(n_destinations):
                destination = load_word(destinations + 8 * k)
                if destination != source:
                    if stream:
                        stream_bytes(destination + start, source + start, m)
                    else:
                        copy_bytes(destination + start, source + start, m)
            start += m
        if stream:
            fence()

    return span
