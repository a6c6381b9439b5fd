"""Which transfers of a step write the same (rank, chunk)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Groups", "group_by_slot"]


@dataclass(frozen=True, slots=True)
class Groups:
    """The transfers of a step, sorted by the slot that they write.

    Attributes
    ----------
    slot : ndarray of int64, one for each group
        ``dst * n_chunks + chunk``, ascending.
    order : ndarray of int64, one for each transfer
        Rows of the step; those of one slot lie together, in ascending source rank.
    start, count : ndarray of int64, one for each group
        Where its rows begin in ``order``, and how many they are.
    """

    slot: NDArray[np.int64]
    order: NDArray[np.int64]
    start: NDArray[np.int64]
    count: NDArray[np.int64]


def group_by_slot(
    src: NDArray[np.int32], dst: NDArray[np.int32], chunk: NDArray[np.int32] | NDArray[np.int64], n_chunks: int
) -> Groups:
    """Sort at least one transfer by slot, then by source rank."""
    slots = dst.astype(np.int64) * n_chunks + chunk
    order = np.lexsort((src, slots))
    ordered = slots[order]
    start = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    count = np.diff(np.concatenate((start, [ordered.size])))
    return Groups(ordered[start], order, start, count)
