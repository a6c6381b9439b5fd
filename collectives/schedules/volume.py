"""How many bytes a schedule moves: the size of every chunk, and what each rank sends."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.schedules.geometry import split_evenly
from multiring.collectives.schedules.schedule import Schedule

__all__ = ["bytes_sent", "chunk_bytes"]


def chunk_bytes(schedule: Schedule, nbytes: int) -> NDArray[np.int64]:
    """Return the bytes of every chunk.

    Parameters
    ----------
    schedule : Schedule
        Any.
    nbytes : int
        Bytes of the whole vector: of the big array for reduce_scatter, all_gather, gather and scatter, of one rank's
        array elsewhere.

    Returns
    -------
    ndarray of int64, shape (n_chunks,)
        The vector is cut into parts, and each part into chunks, as ``numpy.array_split`` cuts: the first few get one
        more.
    """
    n_parts = schedule.collective.n_parts(schedule.n_ranks)
    if n_parts > schedule.n_ranks:
        nbytes *= schedule.n_ranks  # all_to_all: a row of parts for each rank
    parts = split_evenly(nbytes, n_parts)
    return split_evenly(parts, schedule.n_chunks // n_parts).reshape(-1)


def bytes_sent(schedule: Schedule, nbytes: int) -> NDArray[np.int64]:
    """Return the bytes that each rank sends, with ``nbytes`` as in :func:`chunk_bytes`."""
    sizes = chunk_bytes(schedule, nbytes)
    sent = np.zeros(schedule.n_ranks, dtype=np.int64)
    for step in schedule.steps:
        np.add.at(sent, step.src, sizes[step.chunk])
    return sent
