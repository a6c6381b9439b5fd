"""Memory as plain Python sees it: registered buffers only, every access checked.

The Python form of the primitives goes through this module, so that a schedule run in plain Python fails at its first
access outside every buffer, or off its alignment, instead of corrupting something.
"""

from __future__ import annotations

import bisect
import ctypes
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["check", "forget", "register", "register_span", "span", "words"]

_buffers: tuple[list[int], dict[int, int]] = ([], {})
"""Starts in ascending order, and the bytes of each; replaced as a whole, since other threads look meanwhile."""
_lock = threading.RLock()
_spans: list[Callable[..., None]] = []


def register(address: int, n_bytes: int) -> None:
    """Allow accesses to a buffer."""
    global _buffers
    with _lock:
        starts, sizes = _buffers
        if address not in sizes:
            starts = list(starts)
            bisect.insort(starts, address)
        _buffers = starts, {**sizes, address: n_bytes}


def forget(address: int) -> None:
    """Disallow accesses to a buffer again."""
    global _buffers
    with _lock:
        starts, sizes = _buffers
        if address in sizes:
            _buffers = [s for s in starts if s != address], {a: n for a, n in sizes.items() if a != address}


def check(address: int, n_bytes: int, alignment: int) -> int:
    """Return ``address`` if the access is legal.

    Raises
    ------
    MemoryError
        Naming the address, and whether it is misaligned or outside every buffer.
    """
    address = int(address)
    if address % alignment:
        raise MemoryError(f"misaligned {n_bytes}-byte access at {address:#x}")
    starts, sizes = _buffers
    index = bisect.bisect_right(starts, address) - 1
    # A buffer may hold another, and one that was not forgotten may lie inside one that took its memory: look on below.
    while index >= 0 and address + n_bytes > starts[index] + sizes[starts[index]]:
        index -= 1
    if index < 0:
        raise MemoryError(f"{n_bytes} bytes at {address:#x} lie outside every buffer")
    return address


def words(address: int) -> ctypes.c_int64:
    """Return the word at an address."""
    return ctypes.c_int64.from_address(check(address, 8, 8))


def register_span(function: Callable[..., None]) -> int:
    """Return a number that stands for a span kernel in plain Python."""
    _spans.append(function)
    return len(_spans)


def span(number: int) -> Callable[..., Any]:
    """Return the span kernel of a number."""
    return _spans[int(number) - 1]
