"""Schedules from schedules: one after another, side by side, on some of the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.schedules.collective import Collective
from multiring.collectives.schedules.schedule import Schedule, Step
from multiring.errors import ScheduleError

__all__ = ["PIECE", "backwards", "from_root", "merge", "on", "reordered", "then", "tile"]

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


def tile(
    schedule: Schedule,
    ranks: NDArray[np.integer],
    chunks: NDArray[np.integer],
    n_ranks: int,
    n_chunks: int,
) -> Schedule:
    """Place a schedule on many sets of ranks at once: :func:`on` for each, and :func:`merge`, as one array operation.

    Parameters
    ----------
    schedule : Schedule
        The small one.
    ranks : ndarray of int, shape (sets, schedule.n_ranks)
        The ranks of each set, as in :func:`on`; sets do not overlap.
    chunks : ndarray of int, shape (sets, schedule.n_chunks, any)
        The chunks of each set, as in :func:`on`.
    n_ranks, n_chunks : int
        Of the larger one.

    Raises
    ------
    ScheduleError
        If the shapes do not fit, or a rank is in two sets.
    """
    fits = ranks.shape[1:] == (schedule.n_ranks,) and chunks.shape[:2] == (len(ranks), schedule.n_chunks)
    if not fits or np.unique(ranks).size != ranks.size:
        raise ScheduleError(
            f"tile: got ranks of shape {ranks.shape} and chunks of shape {chunks.shape} for {schedule.n_ranks} ranks "
            f"and {schedule.n_chunks} chunks of {schedule.algorithm}, wanted (sets, ranks) and (sets, chunks, any), "
            "and each rank in one set"
        )
    steps = []
    for step in schedule.steps:
        moved = chunks[:, step.chunk]
        src, dst = (np.broadcast_to(ranks[:, end, None], moved.shape) for end in (step.src, step.dst))
        steps.append(Step(src, dst, moved, np.broadcast_to(step.reduce[None, :, None], moved.shape).reshape(-1)))
    return Schedule(PIECE, n_ranks, n_chunks, tuple(steps), schedule.algorithm)


def backwards(schedule: Schedule, collective: Collective, algorithm: str | None = None) -> Schedule:
    """Run a schedule of copies backwards, every arrow turned round.

    A broadcast backwards is a reduce, an all_gather backwards a reduce_scatter (each copy becomes a reduce), and a
    scatter backwards a gather (copies stay).

    Parameters
    ----------
    schedule : Schedule
        Only copies, and each slot written at most once, by ranks that do not yet hold it.
    collective : Collective
        What the result promises.
    algorithm : str, optional
        Its name; the same otherwise.

    Raises
    ------
    ScheduleError
        If the schedule reduces.

    Notes
    -----
    The copies of one chunk form a tree. Backwards, each rank hears from all its children before it speaks to its
    parent, since it had the chunk before it gave it to them.
    """
    if any(step.reduce.any() for step in schedule.steps):
        raise ScheduleError(f"backwards: {schedule.algorithm} {schedule.collective.name} reduces, wanted only copies")
    steps = [Step(step.dst, step.src, step.chunk, collective.reduces) for step in reversed(schedule.steps)]
    return Schedule(collective, schedule.n_ranks, schedule.n_chunks, tuple(steps), algorithm or schedule.algorithm)


def from_root(schedule: Schedule, root: int) -> Schedule:
    """Turn a rooted schedule for root 0 into the same one for another root, by counting ranks from there.

    Parameters
    ----------
    schedule : Schedule
        A broadcast, reduce, scatter or gather for root 0.
    root : int
        The new root.
    """
    n_ranks, n_chunks = schedule.n_ranks, schedule.n_chunks
    ranks = (np.arange(n_ranks) + root) % n_ranks
    parts = schedule.collective.n_parts(n_ranks)
    chunks = np.arange(n_chunks).reshape(parts, -1, 1)
    if parts > 1:
        chunks = chunks[ranks]
    moved = on(schedule, ranks, chunks.reshape(-1, 1), n_ranks, n_chunks)
    return replace(moved, collective=Collective(schedule.collective.name, root))


def reordered(schedule: Schedule, order: Sequence[int]) -> Schedule:
    """Let rank ``order[i]`` do what rank i does, and own what it owns.

    Parameters
    ----------
    schedule : Schedule
        Of an all_reduce, reduce_scatter or all_gather.
    order : sequence of int
        Every rank once.
    """
    n_ranks, n_chunks = schedule.n_ranks, schedule.n_chunks
    parts = schedule.collective.n_parts(n_ranks)
    chunks = np.arange(n_chunks).reshape(parts, -1, 1)
    if parts > 1:
        chunks = chunks[np.asarray(order)]
    moved = on(schedule, order, chunks.reshape(-1, 1), n_ranks, n_chunks)
    return replace(moved, collective=schedule.collective)


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
