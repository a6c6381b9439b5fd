"""What a process tells its peers of its heap on a GPU, in host memory that they map: the layout.

The number of segments, then for each: its bytes (0: freed), how many peers have it open, and its handle.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.drivers.device import HANDLE_BYTES
from multiring.collectives.drivers.segment import PAGE_BYTES

__all__ = [
    "BYTES",
    "DIRECTORY_BYTES",
    "DIRECTORY_WORDS",
    "HANDLE",
    "MAX_SEGMENTS",
    "OPENERS",
    "count_opener",
    "entry_of",
    "openers_of",
]

MAX_SEGMENTS = 64
BYTES, OPENERS, HANDLE = 0, 1, 2
"""Words of an entry."""
_ENTRY_WORDS = 2 + HANDLE_BYTES // 8
DIRECTORY_WORDS = 1 + MAX_SEGMENTS * _ENTRY_WORDS
DIRECTORY_BYTES = -(-8 * DIRECTORY_WORDS // PAGE_BYTES) * PAGE_BYTES


def entry_of(directory: NDArray[np.int64], index: int) -> NDArray[np.int64]:
    """Return the words of a segment."""
    return directory[1 + index * _ENTRY_WORDS : 1 + (index + 1) * _ENTRY_WORDS]


@functools.cache
def _adder() -> Any:
    from multiring.kernels import counting
    from multiring.kernels.build import native

    return native(counting.add, "int64(int64,int64)")


def count_opener(entry: NDArray[np.int64], change: int) -> None:
    """Add to how many peers have a segment open; a full fence."""
    _adder()(int(entry.ctypes.data) + 8 * OPENERS, change)


def openers_of(entry: NDArray[np.int64]) -> int:
    """Return how many peers have a segment open; a full fence before."""
    return int(_adder()(int(entry.ctypes.data) + 8 * OPENERS, 0))
