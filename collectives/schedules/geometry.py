"""Where each chunk of a vector lies in the arrays of a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.schedules.collective import Collective
from multiring.errors import ArgumentError

__all__ = ["Geometry", "geometry", "split_evenly"]

Lengths = NDArray[np.int64]

MAX_ELEMENTS = 1 << 59
"""Elements of the largest type, 16 bytes, whose bytes still fit a signed word."""


def split_evenly(count: int | Lengths, parts: int) -> Lengths:
    """Split counts into parts as ``numpy.array_split`` does: the first ``count % parts`` get one more.

    Parameters
    ----------
    count : int or ndarray of int64, shape (n,)
    parts : int

    Returns
    -------
    ndarray of int64, shape (parts,) or (n, parts)
    """
    whole, rest = np.divmod(np.asarray(count, dtype=np.int64)[..., None], parts)
    return whole + (np.arange(parts, dtype=np.int64) < rest)


@dataclass(frozen=True)
class Geometry:
    """The chunks of one call.

    Attributes
    ----------
    chunks : ndarray of int64, shape (n_chunks, 3)
        Offset in the input, offset in the output, length, in elements. A chunk's offset is the same in all arrays that
        hold it.
    x_elements, out_elements : ndarray of int64, shape (n_ranks,)
        Elements of each rank's input and output; -1 where a rank has none.
    """

    chunks: Lengths
    x_elements: Lengths
    out_elements: Lengths

    @property
    def longest(self) -> int:
        """Elements of the longest chunk."""
        return int(self.chunks[:, 2].max(initial=0))


def _before(lengths: Lengths, axis: int) -> Lengths:
    """Return the sum of what comes before each entry."""
    return np.cumsum(lengths, axis=axis) - lengths


def _check_counts(name: str, counts: Sequence[int], n_parts: int, count: int) -> None:
    if len(counts) != n_parts:
        raise ArgumentError(f"{name}: got {len(counts)} counts, wanted {n_parts}")
    if min(counts) < 0:
        part = next(i for i, c in enumerate(counts) if c < 0)
        raise ArgumentError(f"{name}: got {counts[part]} elements for part {part}, wanted 0 or more")
    if sum(counts) != count:
        raise ArgumentError(f"{name}: got counts of {sum(counts)} elements, wanted {count} in all")


def geometry(
    collective: Collective, n_ranks: int, n_chunks: int, count: int, counts: Sequence[int] | None = None
) -> Geometry:
    """Cut the vector of a call into chunks.

    Parameters
    ----------
    collective : Collective
    n_ranks, n_chunks : int
    count : int
        Elements of the whole vector; for all_to_all, of one rank's input.
    counts : sequence of int, optional
        Elements of each part, instead of equal parts: ``n_ranks`` of them, or ``n_ranks ** 2`` for all_to_all in
        row-major order of (source, destination).

    Raises
    ------
    ArgumentError
        If a count is negative or too large for 64-bit addresses, if all_to_all's is not a multiple of the ranks, or if
        the counts are not as many as the parts or do not add up to ``count``.

    Notes
    -----
    ::

        part        |    0    |    1    | ...     one for each rank (all_to_all: for each pair)
        chunk       | 0  | 1  | 2  | 3  | ...     n_chunks / n_parts in each part
    """
    pattern = collective.pattern
    n_parts = collective.n_parts(n_ranks)
    if count < 0:
        raise ArgumentError(f"{collective.name}: got {count} elements, wanted 0 or more")
    if count >= MAX_ELEMENTS:
        raise ArgumentError(
            f"{collective.name}: got {count} elements, wanted fewer than 2**59, so that bytes fit 64 bits"
        )
    if counts is not None:
        _check_counts(collective.name, counts, n_parts, count)
        parts = np.asarray(counts, dtype=np.int64)
    elif "row" in (pattern.before, pattern.after):
        if count % n_ranks:
            raise ArgumentError(
                f"{collective.name}: got {count} elements for {n_ranks} ranks, wanted a multiple;"
                f" use {collective.name}_v"
            )
        parts = np.full(n_parts, count // n_ranks, dtype=np.int64)
    else:
        parts = split_evenly(count, n_parts)
    lengths = split_evenly(parts, n_chunks // n_parts)
    inside = _before(lengths, 1)
    chunks = np.empty((n_chunks, 3), dtype=np.int64)
    elements: list[Lengths] = []
    for column, kind in enumerate((pattern.before, pattern.after)):
        ranks = np.zeros(n_ranks, dtype=np.int64)
        if kind == "own":
            start = np.zeros(n_parts, dtype=np.int64)
            ranks += parts
        elif kind in ("row", "column"):
            axis = 1 if kind == "row" else 0
            matrix = parts.reshape(n_ranks, n_ranks)
            start = _before(matrix, axis).reshape(-1)
            ranks += matrix.sum(axis=axis)
        else:
            start = _before(parts, 0)
            ranks += parts.sum()
            if kind in ("root", "none"):
                holds = np.arange(n_ranks) == (collective.root if kind == "root" else -1)
                ranks[~holds] = -1
        chunks[:, column] = (start[:, None] + inside).reshape(-1)
        elements.append(ranks)
    chunks[:, 2] = lengths.reshape(-1)
    return Geometry(chunks, elements[0], elements[1])
