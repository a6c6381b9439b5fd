"""Schedules from schedules: one after another, side by side, on some of the ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.schedules.collective import Collective
from multiring.collectives.schedules.schedule import Schedule, Step
from multiring.errors import ScheduleError

__all__ = ["PIECE", "merge", "on", "then"]

PIECE = Collective("barrier")
"""What a part of a larger schedule promises by itself: nothing before it, nothing after it."""


def then(
    *schedules: Schedule,
    collective: Collective = PIECE,
    algorithm: str | None = None,
) -> Schedule:
    """Run schedules one after another.

    Parameters
    ----------
    *schedules : Schedule
        At least one; equal numbers of ranks and of chunks.
    collective : Collective
        What the whole promises: a reduce_scatter and then an all_gather is an all_reduce, which no rule can guess.
    algorithm : str, optional
        The name of the whole; that of the first otherwise.

    Raises
    ------
    ScheduleError
        If the ranks or chunks differ.
    """
    first = _common("then", schedules)
    steps = [step for schedule in schedules for step in schedule.steps]
    return Schedule(collective, first.n_ranks, first.n_chunks, tuple(steps), algorithm or first.algorithm)


def merge(
    *schedules: Schedule,
    collective: Collective = PIECE,
    algorithm: str | None = None,
) -> Schedule:
    """Run schedules side by side: step i of the result holds step i of each; shorter ones run out.

    Parameters
    ----------
    *schedules : Schedule
        At least one; equal numbers of ranks and of chunks. They may share ranks, and must not write the same chunk on
        the same rank in the same step.
    collective : Collective
        What the whole promises.
    algorithm : str, optional
        The name of the whole; that of the first otherwise.

    Raises
    ------
    ScheduleError
        If the ranks or chunks differ, or two of them write one (rank, chunk) in one step.
    """
    first = _common("merge", schedules)
    steps = []
    for index in range(max(schedule.n_steps for schedule in schedules)):
        parts = [schedule.steps[index] for schedule in schedules if index < schedule.n_steps]
        if len(parts) > 1:
            _check_disjoint(parts, first.n_chunks, index)
        steps.append(
            Step(
                np.concatenate([part.src for part in parts]),
                np.concatenate([part.dst for part in parts]),
                np.concatenate([part.chunk for part in parts]),
                np.concatenate([part.reduce for part in parts]),
            )
        )
    return Schedule(collective, first.n_ranks, first.n_chunks, tuple(steps), algorithm or first.algorithm)


def on(
    schedule: Schedule,
    ranks: Sequence[int] | NDArray[np.integer],
    chunks: Sequence[Sequence[int] | NDArray[np.integer]] | NDArray[np.integer],
    n_ranks: int,
    n_chunks: int,
) -> Schedule:
    """Place a schedule on some ranks and chunks of a larger one.

    Parameters
    ----------
    schedule : Schedule
        The small one.
    ranks : sequence of int
        Rank i of the small one becomes ``ranks[i]``.
    chunks : sequence of sequence of int
        Chunk c of the small one becomes every chunk in ``chunks[c]``.
    n_ranks, n_chunks : int
        Of the larger one.

    Returns
    -------
    Schedule
        A :data:`PIECE` of the larger schedule.

    Raises
    ------
    ScheduleError
        If there is not one place for every rank and chunk, or one place is given twice.
    """
    names = np.asarray(ranks, dtype=np.int64)
    if names.shape != (schedule.n_ranks,) or np.unique(names).size != names.size:
        raise ScheduleError(
            f"on: got ranks {names.tolist()} for the {schedule.n_ranks} ranks of {schedule.algorithm}, "
            "wanted as many different ones"
        )
    groups = [np.asarray(group, dtype=np.int64).reshape(-1) for group in chunks]
    flat = np.concatenate(groups) if groups else np.zeros(0, dtype=np.int64)
    if len(groups) != schedule.n_chunks or np.unique(flat).size != flat.size:
        raise ScheduleError(
            f"on: got {len(groups)} groups of chunks {[group.tolist() for group in groups]} for the "
            f"{schedule.n_chunks} chunks of {schedule.algorithm}, wanted as many, without a chunk in two of them"
        )
    lengths = np.array([group.size for group in groups], dtype=np.int64)
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    steps = []
    for step in schedule.steps:
        repeats = lengths[step.chunk]
        row = np.repeat(np.arange(len(step)), repeats)
        within = np.arange(row.size) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        steps.append(
            Step(
                names[step.src[row]],
                names[step.dst[row]],
                flat[starts[step.chunk[row]] + within],
                step.reduce[row],
            )
        )
    return Schedule(PIECE, n_ranks, n_chunks, tuple(steps), schedule.algorithm)


def _common(name: str, schedules: tuple[Schedule, ...]) -> Schedule:
    if not schedules:
        raise ScheduleError(f"{name}: got no schedules, wanted at least one")
    first = schedules[0]
    for other in schedules[1:]:
        if (other.n_ranks, other.n_chunks) != (first.n_ranks, first.n_chunks):
            raise ScheduleError(
                f"{name}: got {first.algorithm} of {first.n_ranks} ranks and {first.n_chunks} chunks with "
                f"{other.algorithm} of {other.n_ranks} ranks and {other.n_chunks} chunks, wanted equal numbers: "
                "place them with on() first"
            )
    return first


def _check_disjoint(parts: list[Step], n_chunks: int, index: int) -> None:
    slots = np.concatenate([np.unique(part.dst.astype(np.int64) * n_chunks + part.chunk) for part in parts])
    values, counts = np.unique(slots, return_counts=True)
    if (counts > 1).any():
        rank, chunk = divmod(int(values[counts > 1][0]), n_chunks)
        raise ScheduleError(f"merge: two schedules write rank {rank} chunk {chunk} in step {index}, wanted at most one")
