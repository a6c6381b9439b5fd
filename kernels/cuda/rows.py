"""Tables of rows that one launch works on: many arrays of any size, cut into tiles that blocks take in turn.

A row's tiles are shifted so that all but its first begin at a vector; the host counts them, since it knows the
addresses::

    row:    . . . . 0 . . . . . . . . . . . . . . . . . . . . .
            shift-- first tile | second tile      | third
"""

from __future__ import annotations

from multiring.kernels.cuda.homes import device
from multiring.kernels.primitives import load_word

__all__ = ["find_row", "tiles_of", "unit_shift_of"]


@device
def find_row(table: int, n_rows: int, row_bytes: int, column: int, tile: int) -> int:
    """Return the address of the row that a tile belongs to.

    Parameters
    ----------
    table, n_rows, row_bytes : int
        The rows.
    column : int
        Bytes from a row's start to its first tile's number.
    tile : int
    """
    low = 0
    high = n_rows
    while high - low > 1:
        middle = (low + high) >> 1
        if load_word(table + middle * row_bytes + column) <= tile:
            low = middle
        else:
            high = middle
    return table + low * row_bytes


def unit_shift_of(before: int, unit: int) -> int:
    """Return by how many elements the tiles of a row begin before it.

    Parameters
    ----------
    before : int
        Elements before the row's first vector; -1: it has none.
    unit : int
        Elements of a vector unit.
    """
    return (unit - before) % unit if before >= 0 else 0


def tiles_of(count: int, shift: int, tile: int) -> int:
    """Return how many tiles a row has."""
    return -(-(count + shift) // tile) if count > 0 else 0
