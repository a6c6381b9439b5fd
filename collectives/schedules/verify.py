"""Does a schedule keep the promise of its collective? Exactly-once delivery, by contributor sets.

Every (rank, chunk) slot holds a set of ranks: those whose original chunk is in its value. A copy replaces the set, a
reduce unites two sets that must be disjoint, and at the end the slots that the collective names must hold all ranks.
Where nothing is reduced a chunk has one origin, and the set is "has it" or "has it not".

The sets are rows of bits, and chunks do not interact, so large schedules are checked a block of chunks at a time.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.schedules.schedule import Schedule
from multiring.collectives.schedules.slots import group_by_slot
from multiring.errors import ScheduleError

__all__ = ["verify"]

Words = NDArray[np.uint64]

MAX_STATE_BYTES = 1 << 28
"""Bits of all ranks for one block of chunks: 4096 ranks then take eight blocks, 1024 take one."""


def verify(schedule: Schedule) -> None:
    """Check that a schedule does what its collective promises.

    All reads of a step see the state before it. Several reduces into one (rank, chunk) in one step are right, a copy
    together with anything else is not.

    Parameters
    ----------
    schedule : Schedule
        Built here or by a user.

    Raises
    ------
    ScheduleError
        If a transfer reads, or reduces into, a chunk that its rank does not hold; if a copy and something else write
        one slot in one step; if a rank is added twice; if at the end a rank lacks a chunk, or the chunk lacks ranks.
        The text names the step, the rank and the chunk.

    Notes
    -----
    Costs O(transfers log transfers) per step; 256 ranks x 256 chunks x 510 steps take well under a second.
    """
    n_words = (schedule.n_ranks + 63) // 64 if schedule.collective.reduces else 1
    width = max(1, MAX_STATE_BYTES // (schedule.n_ranks * n_words * 8))
    for low in range(0, schedule.n_chunks, width):
        _Block(schedule, low, min(schedule.n_chunks, low + width), n_words).check()


class _Block:
    """The chunks ``low`` to ``high`` of a schedule, and the contributor sets of their slots."""

    def __init__(self, schedule: Schedule, low: int, high: int, n_words: int) -> None:
        self.schedule = schedule
        self.low, self.high, self.width, self.n_words = low, high, high - low, n_words
        self.whole = low == 0 and high == schedule.n_chunks
        self.sets: Words = np.zeros((schedule.n_ranks * self.width, n_words), dtype=np.uint64)
        for rank in range(schedule.n_ranks):
            word, bit = divmod(rank if schedule.collective.reduces else 0, 64)
            self.sets[self._slots(rank, "before"), word] = np.uint64(1 << bit)

    def check(self) -> None:
        for index in range(self.schedule.n_steps):
            self._step(index)
        self._end()

    def _slots(self, rank: int, when: str) -> NDArray[np.int64]:
        schedule = self.schedule
        chunks: NDArray[np.int64] = getattr(schedule.collective, when)(rank, schedule.n_ranks, schedule.n_chunks)
        low, high = np.searchsorted(chunks, (self.low, self.high))
        return chunks[low:high] - self.low + rank * self.width

    def _step(self, index: int) -> None:
        step = self.schedule.steps[index]
        src, dst, chunk, reduce = step.src, step.dst, step.chunk - self.low, step.reduce
        if not self.whole:
            rows = np.flatnonzero((chunk >= 0) & (chunk < self.width))
            src, dst, chunk, reduce = src[rows], dst[rows], chunk[rows], reduce[rows]
        if not src.size:
            return
        read = self.sets[src.astype(np.int64) * self.width + chunk]
        if not (held := read.any(axis=1)).all():
            row = int(np.flatnonzero(~held)[0])
            self._fail(index, int(src[row]), int(chunk[row]), f"is sent to rank {dst[row]}, but is not there")
        groups = group_by_slot(src, dst, chunk, self.width)
        read, reduce = read[groups.order], reduce[groups.order]
        adds = reduce[groups.start]
        mixed = (groups.count > 1) & ~np.logical_and.reduceat(reduce, groups.start)
        if mixed.any():
            rank, at = divmod(int(groups.slot[mixed][0]), self.width)
            self._fail(index, rank, at, "is written by a copy and by another transfer at once, wanted the copy alone")
        own: Words = self.sets[groups.slot]
        own[~adds] = 0
        if not (held := own.any(axis=1) | ~adds).all():
            rank, at = divmod(int(groups.slot[~held][0]), self.width)
            self._fail(index, rank, at, "is added to, but is not there")
        union = np.bitwise_or.reduceat(read, groups.start, axis=0) | own
        summands = np.add.reduceat(_count(read), groups.start) + _count(own)
        if (doubled := _count(union) != summands).any():
            group = int(np.flatnonzero(doubled)[0])
            start = int(groups.start[group])
            parts = np.vstack((own[group : group + 1], read[start : start + int(groups.count[group])]))
            rank, at = divmod(int(groups.slot[group]), self.width)
            self._fail(index, rank, at, f"gets {_twice(parts, self.schedule.collective.reduces)} added twice")
        self.sets[groups.slot] = union

    def _end(self) -> None:
        n_ranks = self.schedule.n_ranks
        wanted = n_ranks if self.schedule.collective.reduces else 1
        for rank in range(n_ranks):
            slots = self._slots(rank, "after")
            wrong = np.flatnonzero(_count(self.sets[slots]) != wanted)
            if wrong.size:
                slot = int(slots[wrong[0]])
                lacks = sorted(set(range(n_ranks)) - set(_members(self.sets[slot])))
                what = f"lacks rank(s) {lacks}" if wanted > 1 else "is not there"
                self._fail(None, rank, slot % self.width, what)

    def _fail(self, index: int | None, rank: int, chunk: int, what: str) -> NoReturn:
        schedule = self.schedule
        where = f"after the last of {schedule.n_steps} steps" if index is None else f"step {index}"
        raise ScheduleError(
            f"{schedule.algorithm} {schedule.collective.name} of {schedule.n_ranks} ranks, {where}: "
            f"rank {rank} chunk {chunk + self.low} {what}"
        )


def _count(sets: Words) -> NDArray[np.int64]:
    counts: NDArray[np.int64] = np.bitwise_count(sets).sum(axis=1, dtype=np.int64)
    return counts


def _members(row: Words) -> list[int]:
    return [64 * word + bit for word, value in enumerate(row.tolist()) for bit in range(64) if value >> bit & 1]


def _twice(parts: Words, reduces: bool) -> str:
    if not reduces:
        return "its only origin"
    seen: set[int] = set()
    again: set[int] = set()
    for row in parts:
        members = set(_members(row))
        again |= seen & members
        seen |= members
    return f"rank(s) {sorted(again)}"
