"""What the ranks of GPUs tell each other on the host, besides the control segment."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.drivers.control import words_at
from multiring.kernels.records import LINE_BYTES

__all__ = ["Board"]

_LINE_WORDS = LINE_BYTES // 8
_PAGE_BYTES = 4096


class Board:
    """A line for each rank, written by it alone, and a table of what it has mapped.

    Parameters
    ----------
    address : int
        Of :meth:`n_bytes` bytes that all ranks share, zero at first.
    size : int

    Attributes
    ----------
    launched : ndarray of int64
        By rank: how many fused calls it has launched.
    done : ndarray of int64
        By rank: how many calls on the device it has finished, so that it needs no peer's memory for them.
    left : ndarray of int64
        By rank: 1 once it has closed the communicator.
    mapped : ndarray of int64, shape (size, size)
        How many of rank j's segments rank i has open for its kernels.
    """

    def __init__(self, address: int, size: int) -> None:
        lines = words_at(address, size * _LINE_WORDS).reshape(size, _LINE_WORDS)
        self.done: NDArray[np.int64] = lines[:, 0]
        self.left: NDArray[np.int64] = lines[:, 1]
        self.launched: NDArray[np.int64] = lines[:, 2]
        self.mapped: NDArray[np.int64] = words_at(address + size * LINE_BYTES, size * size).reshape(size, size)

    @staticmethod
    def n_bytes(size: int) -> int:
        """Return the bytes of a board: whole pages."""
        return -(-(size * LINE_BYTES + 8 * size * size) // _PAGE_BYTES) * _PAGE_BYTES
