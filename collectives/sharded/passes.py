"""Tables of pieces that one native call works through, and the parameters of their kernels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.arrays import address_of
from multiring.kernels.dtypes import DType

__all__ = ["Blocks", "Key", "Pass", "add_square_row", "square_sums_of"]

Key = tuple[int, int]
"""(a stream's number, a bucket's start)."""


class Blocks:
    """Parameters of a kernel: a row of float32 for each set that a piece may have.

    Parameters
    ----------
    names : tuple of str
        The kernel's parameters.
    n_blocks : int
    """

    def __init__(self, names: tuple[str, ...], n_blocks: int) -> None:
        self.names = names
        self.values: NDArray[np.float32] = np.zeros((max(n_blocks, 1), max(len(names), 1)), np.float32)

    def address(self, block: int) -> int:
        """Return the address of a row."""
        return address_of(self.values) + block * self.values.strides[0]

    def fill(self, block: int, given: dict[str, float]) -> None:
        """Set a row; what the kernel does not have is left out."""
        self.values[block, : len(self.names)] = [given[name] for name in self.names]


class Pass:
    """One kernel over all of a rank's pieces, bucket by bucket.

    Parameters
    ----------
    kernel : multiring.kernels.rules.Rule
    gradient : DType
    weight : DType or None
        Of the wire weight, where the kernel writes one.
    """

    def __init__(self, kernel: Any, gradient: DType, weight: DType | None) -> None:
        from multiring.kernels.update import row_words, update_kernel

        self._run = update_kernel(kernel, gradient, weight)
        self._words = row_words(kernel)
        self._rows: dict[Key, list[list[int]]] = {}
        self._tables: dict[Key, NDArray[np.int64]] = {}
        self._steps = (gradient.itemsize, weight.itemsize if weight else 0)

    def add(self, key: Key, gradient: int, weight: int, count: int, parameters: int, arrays: Iterable[int]) -> None:
        """Append a piece: addresses, and its elements. One that carries on where the last ended is joined to it."""
        row = [gradient, weight, count, 0, parameters, *arrays]
        rows = self._rows.setdefault(key, [])
        if rows:
            last = rows[-1]
            n = last[2]
            follows = gradient == last[0] + n * self._steps[0] and weight == last[1] + n * self._steps[1]
            if (
                follows
                and parameters == last[4]
                and all(a == b + 4 * n for a, b in zip(row[5:], last[5:], strict=True))
            ):
                last[2] += count
                return
        rows.append(row)

    def run(self, key: Key) -> None:
        """Work through a bucket's pieces."""
        table = self._tables.get(key)
        if table is None:
            table = np.array(self._rows.get(key, []), np.int64).reshape(-1, self._words)
            self._tables[key] = table
        if len(table):
            self._run(address_of(table), len(table))


def add_square_row(rows: list[tuple[int, int, int]], address: int, count: int, place: int, itemsize: int) -> None:
    """Append a span; one that carries on where the last ended is joined to it."""
    if rows and rows[-1][2] == place and rows[-1][0] + rows[-1][1] * itemsize == address:
        rows[-1] = (rows[-1][0], rows[-1][1] + count, place)
    else:
        rows.append((address, count, place))


def square_sums_of(rows: dict[DType, list[tuple[int, int, int]]]) -> list[Any]:
    """Return the native sums of spans, one object for each element type."""
    from multiring.kernels.update import SquareSums

    return [SquareSums(listed, dtype) for dtype, listed in rows.items() if listed]
