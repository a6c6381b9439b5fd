"""A 2-D mesh or torus used in both orientations: half of the vector goes along rows first, half along columns."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from multiring.collectives.schedules.algorithms.box import Box, box
from multiring.collectives.schedules.collective import Collective
from multiring.collectives.schedules.compose import merge, on
from multiring.collectives.schedules.schedule import Schedule
from multiring.errors import ArgumentError

__all__ = ["parse_torus", "torus"]

# 3x3 torus            half A: rows, then columns     half B: columns, then rows
#   0 ⇄ 1 ⇄ 2 ⇄         steps 0-1: →                  steps 0-1: ↓        both at once: all links
#   ⇅   ⇅   ⇅           steps 2-3: ↓                  steps 2-3: →        are busy in every step
#   3 ⇄ 4 ⇄ 5 ⇄         steps 4-5: ↓ back             steps 4-5: → back
#   ⇅   ⇅   ⇅           steps 6-7: → back             steps 6-7: ↓ back


def torus(collective: Collective, n_ranks: int, shape: Box | None = None) -> Schedule:
    """Build an all_reduce, reduce_scatter or all_gather on a mesh or torus in both orientations at once.

    Parameters
    ----------
    collective : Collective
        all_reduce, reduce_scatter or all_gather.
    n_ranks : int
        The product of the two sizes.
    shape : Box, optional
        Ranks in a row, and rows; otherwise the two factors that are nearest to each other. Stages of
        ``bidirectional_ring`` use both directions of each link.

    Raises
    ------
    ScheduleError
        If the product of the sizes is another number.

    Notes
    -----
    all_reduce on R x C: ``2 (R + C - 2)`` steps, ``2 (p-1)/p n`` bytes sent per rank. On k x k half of them leave along
    rows and half along columns in every step, so the bytes take half the time of one orientation.
    Source: Ying et al. 2018, *Image Classification at Supercomputer Scale*; row then column: Barnett et al. 1993.
    """
    rows_first = box(collective, n_ranks, shape, algorithm="torus")
    both = len(shape.dims) == 2 if shape is not None else rows_first.n_steps and _is_composite(n_ranks)
    if not both:
        return rows_first
    columns_first = box(collective, n_ranks, shape, sweep=(1, 0), algorithm="torus")
    halves = [
        on(half, range(n_ranks), _halves(half.n_chunks, index), n_ranks, 2 * half.n_chunks)
        for index, half in enumerate((rows_first, columns_first))
    ]
    return merge(*halves, collective=collective, algorithm="torus")


def parse_torus(text: str) -> dict[str, Any]:
    """Read what follows the colon in ``"torus:4x8"`` or ``"torus:4x8:bidirectional_ring"``."""
    shape = Box.parse(text)
    if len(shape.dims) != 2:
        raise ArgumentError(f"got {text!r} after its colon, wanted two sizes such as {prod(shape.dims[:-1])}x8")
    return {"shape": shape}


def _halves(n_chunks: int, index: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.arange(n_chunks).reshape(-1, 1) * 2 + index


def _is_composite(n_ranks: int) -> bool:
    return any(n_ranks % size == 0 for size in range(2, int(n_ranks**0.5) + 1))
