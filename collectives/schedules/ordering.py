"""In what order, and through how many roundings, a schedule adds: what decides its bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.schedules.schedule import Schedule
from multiring.collectives.schedules.slots import group_by_slot

__all__ = ["is_rank_ordered", "n_roundings", "same_on_every_rank"]

Words = NDArray[np.uint64]


def is_rank_ordered(schedule: Schedule) -> bool:
    """Whether every result is one left fold of all ranks' chunks in ascending rank: what ``order="rank"`` needs.

    Parameters
    ----------
    schedule : Schedule
        One that :func:`~multiring.collectives.schedules.verify.verify` accepts.

    Notes
    -----
    Several reduces into one slot in one step fold in ascending source rank, with the destination's own value at its own
    rank's place. So a sum is a left fold if its first value is one that ends with rank m, or the chunk of rank m alone,
    and the others are the untouched chunks of ranks m + 1, m + 2 and so on. It can only become whole if it began at
    rank 0. Schedules that do not reduce are ordered.
    """
    if not schedule.collective.reduces or schedule.n_ranks == 1:
        return True
    n_ranks, n_chunks = schedule.n_ranks, schedule.n_chunks
    # A slot holds a left fold that ends with rank last, or (single) the chunk of that rank alone, or neither: -1.
    last = np.repeat(np.arange(n_ranks, dtype=np.int64), n_chunks)
    single = np.ones(n_ranks * n_chunks, dtype=np.bool_)
    for step in schedule.steps:
        if not len(step):
            continue
        read = step.src.astype(np.int64) * n_chunks + step.chunk
        slots = np.unique((step.dst.astype(np.int64) * n_chunks + step.chunk)[step.reduce])
        # The values that are folded: what is sent, and what the destinations of reduces hold.
        values = np.concatenate((read, slots))
        places = np.concatenate((step.src, (slots // n_chunks).astype(np.int32)))
        ranks = np.concatenate((step.dst, (slots // n_chunks).astype(np.int32)))
        groups = group_by_slot(places, ranks, np.concatenate((step.chunk, slots % n_chunks)), n_chunks)
        values = values[groups.order]
        head = np.repeat(groups.start, groups.count)
        place = np.arange(values.size) - head
        follows = single[values] & (last[values] == last[values[head]] + place)
        right = np.where(place == 0, last[values] >= 0, follows)
        fold = np.logical_and.reduceat(right, groups.start)
        first = values[groups.start]
        copied = groups.count == 1
        new_last = np.where(copied, last[first], np.where(fold, last[first] + groups.count - 1, -1))
        single[groups.slot] = copied & single[first]
        last[groups.slot] = new_last
    for rank in range(n_ranks):
        final = schedule.collective.after(rank, n_ranks, n_chunks) + rank * n_chunks
        if (single[final] | (last[final] != n_ranks - 1)).any():
            return False
    return True


def n_roundings(schedule: Schedule) -> int:
    """Return how often a result was rounded to the type that travels: the longest chain of reduces into a slot.

    0 where nothing is reduced; 1 for direct schedules, whose partial sums never travel; above 1 where they do.
    """
    if not schedule.collective.reduces:
        return 0
    n_chunks = schedule.n_chunks
    depth = np.zeros(schedule.n_ranks * n_chunks, dtype=np.int64)
    for step in schedule.steps:
        if not len(step):
            continue
        groups = group_by_slot(step.src, step.dst, step.chunk, n_chunks)
        read = depth[step.src.astype(np.int64) * n_chunks + step.chunk][groups.order]
        adds = step.reduce[groups.order][groups.start]
        deepest = np.maximum.reduceat(read, groups.start)
        depth[groups.slot] = np.where(adds, np.maximum(deepest, depth[groups.slot]) + 1, deepest)
    after = schedule.collective.after
    finals = [after(rank, schedule.n_ranks, n_chunks) + rank * n_chunks for rank in range(schedule.n_ranks)]
    return int(depth[np.concatenate(finals)].max(initial=0))


def same_on_every_rank(schedule: Schedule) -> bool:
    """Whether all ranks that get a sum get it from the same additions in the same order, and so the same bits.

    Parameters
    ----------
    schedule : Schedule
        One that :func:`~multiring.collectives.schedules.verify.verify` accepts.

    Notes
    -----
    Every value carries a 64-bit hash of the expression that made it. Two expressions that differ have equal hashes with
    a probability of about 2^-64.
    """
    if not schedule.collective.reduces:
        return True
    n_ranks, n_chunks = schedule.n_ranks, schedule.n_chunks
    value = np.repeat(_mixed(np.arange(1, n_ranks + 1, dtype=np.uint64)), n_chunks)
    for step in schedule.steps:
        if not len(step):
            continue
        copied = ~step.reduce
        read = step.src.astype(np.int64) * n_chunks + step.chunk
        written = step.dst.astype(np.int64) * n_chunks + step.chunk
        moved = value[read[copied]]
        slots = np.unique(written[step.reduce])
        if slots.size:
            # Each slot's summands, its own among them, in ascending rank; one more summand of every slot in each turn.
            summand = np.concatenate((read[step.reduce], slots))
            place = np.concatenate((step.src[step.reduce], (slots // n_chunks).astype(np.int32)))
            target = np.concatenate((written[step.reduce], slots))
            summand = summand[np.lexsort((place, target))]
            count = np.unique(target, return_counts=True)[1]
            start = np.cumsum(count) - count
            total = value[summand[start]]
            for turn in range(1, int(count.max())):
                more = np.flatnonzero(count > turn)
                total[more] = _mixed(_mixed(total[more]) + value[summand[start[more] + turn]])
            value[slots] = total
        value[written[copied]] = moved
    promised = [schedule.collective.after(rank, n_ranks, n_chunks) for rank in range(n_ranks)]
    first = np.zeros(n_chunks, dtype=np.uint64)
    for rank in reversed(range(n_ranks)):
        first[promised[rank]] = value[promised[rank] + rank * n_chunks]
    return all(bool((value[chunks + rank * n_chunks] == first[chunks]).all()) for rank, chunks in enumerate(promised))


def _mixed(words: Words) -> Words:
    """Scramble 64-bit words, as splitmix64 does."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
