"""What the processors of a host do for a schedule: copies and sums, step by step, as the executor carries it out.

A schedule says what travels; how often bytes are read and written for it depends on the memory:

symmetric memory   a rank reads its peers' arrays in place, and writes a sum to all who get a copy of it at once
ordinary arrays    peers cannot reach them: what is sent is copied into shared slots first, and read from there
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.schedules.schedule import Schedule, Step

__all__ = ["BEFORE", "Work", "work"]

MAX_KEPT = 256
BEFORE = -1
"""The step of what is done before the first one: copies of inputs."""

Column = NDArray[np.int64]
Table = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Work:
    """Acts, one in each row: a rank copies or adds the bytes of one chunk.

    Attributes
    ----------
    step : ndarray of int
        :data:`BEFORE` or the schedule's.
    rank, chunk : ndarray of int
        Who does it to which chunk.
    own_reads, peer_reads, slot_reads : ndarray of int
        How often the chunk's bytes are read: from the rank's own arrays, from those of peers, from slots. A copy reads
        once, a sum of k reads k times.
    array_writes, slot_writes : ndarray of int
        How often they are written.
    sums : ndarray of bool
        Whether it is a sum: in place, it writes what it has just read.
    arrays : ndarray of int, shape (n_chunks,)
        In how many arrays of all ranks each chunk is read or written.
    n_places : int
        Chunks that a rank keeps in its slot at once, at most: the vector is cut into slices that fit.
    n_steps : int
        Of the schedule.
    """

    step: Column
    rank: Column
    chunk: Column
    own_reads: Column
    peer_reads: Column
    slot_reads: Column
    array_writes: Column
    slot_writes: Column
    sums: Table
    arrays: Column
    n_places: int
    n_steps: int

    @property
    def reads(self) -> Column:
        """How often the chunk's bytes are read, from anywhere."""
        return self.own_reads + self.peer_reads + self.slot_reads

    @property
    def writes(self) -> Column:
        """How often they are written, to anywhere."""
        return self.array_writes + self.slot_writes


_kept: OrderedDict[tuple[int, bool, bool], tuple[Schedule, Work]] = OrderedDict()


def work(schedule: Schedule, symmetric: bool, in_place: bool) -> Work:
    """Return what each rank does; for a schedule object that is asked for again the same answer.

    Parameters
    ----------
    schedule : Schedule
        Verified.
    symmetric : bool
        Whether inputs and outputs lie in memory that all ranks reach.
    in_place : bool
        Whether input and output are one array: a rank's own part then stays where it is.
    """
    key = (id(schedule), symmetric, in_place)
    found = _kept.get(key)
    # The schedule is held, so that its id is nobody else's.
    if found is None:
        found = _kept[key] = schedule, _Finder(schedule, symmetric).find(in_place)
        if len(_kept) > MAX_KEPT:
            _kept.popitem(last=False)
    return found[1]


@dataclass(frozen=True, slots=True)
class _Writes:
    """The (rank, chunk) places that one step writes, and what happens to their values after it."""

    rank: Column
    chunk: Column
    of_transfer: Column
    """Which of them each transfer of the step writes."""
    source_rank: Column
    reduces: Table
    is_read: Table
    """A peer reads the value."""
    clashes: Table
    """A peer reads it in the very step that overwrites it."""
    is_last: Table


class _Finder:
    def __init__(self, schedule: Schedule, symmetric: bool) -> None:
        self.schedule = schedule
        self.symmetric = symmetric
        n_ranks, n_chunks, collective = schedule.n_ranks, schedule.n_chunks, schedule.collective
        self.shape = (n_ranks, n_chunks)
        self.before, self.after = np.zeros(self.shape, np.bool_), np.zeros(self.shape, np.bool_)
        for rank in range(n_ranks):
            self.before[rank, collective.before(rank, n_ranks, n_chunks)] = True
            self.after[rank, collective.after(rank, n_ranks, n_chunks)] = True
        # The row that made what a (rank, chunk) holds, and the version of its place in the slot; -1 for none.
        self.maker, self.version = np.full(self.shape, -1, np.int64), np.full(self.shape, -1, np.int64)
        self.in_array = self.before.copy()
        self.rows: list[list[Column]] = []
        self.n_rows = 0

    def find(self, in_place: bool) -> Work:
        steps = self._backwards()
        staged = np.nonzero(self.before & self.is_read & ((not self.symmetric) | self.clashes))
        self._add(BEFORE, staged, (1, 0, 0), 0, True, False)
        self.in_array[staged] = True
        read_at, written_at = np.full(self.shape, -2, np.int64), np.full(self.shape, -2, np.int64)
        # Sums whose results peers copy, and rows that somebody reads later.
        along: list[Column] = []
        used: list[Column] = []
        summing = np.full(self.shape, -1, np.int64)
        for number, (step, writes) in enumerate(zip(self.schedule.steps, steps, strict=True)):
            read_at[step.src, step.chunk] = number
            place = writes.rank, writes.chunk
            # What no peer reads may lie in the output although peers cannot reach it.
            seen = self.symmetric | ~writes.is_read
            in_output = self.after[place] & (writes.is_last | (seen & ~writes.clashes))
            in_slot = (writes.is_read & ((not self.symmetric) | writes.clashes)) | ~in_output
            origin = np.where(writes.reduces, -1, summing[writes.source_rank, writes.chunk])
            made_at = self._step_of(origin)
            written_along = (origin >= 0) & self.symmetric & in_output & ~in_slot
            written_along &= (read_at[place] <= made_at) & (written_at[place] < made_at)
            along.append(origin[written_along])
            own = ~written_along
            used.append(self.maker[step.src, step.chunk][own[writes.of_transfer]])
            used.append(self.maker[place][writes.reduces])
            reads = self._reads(step, writes)
            kept = tuple(column[own] for column in place)
            made = np.full(writes.rank.size, -1, np.int64)
            # A value that is read while it is overwritten keeps its place: the new one gets another.
            busy = (self.version[kept] == 0) & (read_at[kept] == number)
            made[own] = self._add(number, kept, reads[:, own], in_output[own], in_slot[own], writes.reduces[own], busy)
            self.maker[place] = made
            summing[place] = np.where(writes.reduces, made, -1)
            written_at[place] = number
        if not in_place:
            self._add(BEFORE, np.nonzero(self.before & self.after & (written_at < 0)), (1, 0, 0), 1, False, False)
        read = self.before & (self.was_read | (self.after & (written_at < 0)) | self._summed())
        arrays = (read | self.after) if in_place else read + self.after.astype(np.int64)
        return self._done(np.concatenate([*along, _NONE]), np.concatenate([*used, _NONE]), arrays.sum(axis=0))

    def _summed(self) -> Table:
        """Return where a rank adds to what it holds."""
        summed = np.zeros(self.shape, np.bool_)
        for step in self.schedule.steps:
            summed[step.dst[step.reduce], step.chunk[step.reduce]] = True
        return summed

    def _backwards(self) -> list[_Writes]:
        """Return what each step writes, and leave what happens to the inputs."""
        self.is_read, self.clashes = np.zeros(self.shape, np.bool_), np.zeros(self.shape, np.bool_)
        overwritten = np.zeros(self.shape, np.bool_)
        found = []
        for step in reversed(self.schedule.steps):
            writes = self._written(step, overwritten)
            found.append(writes)
            place = writes.rank, writes.chunk
            self.is_read[place] = False
            overwritten[place] = True
            now = np.zeros(self.shape, np.bool_)
            now[step.src, step.chunk] = True
            self.is_read |= now
            self.clashes[place] = now[place]
        self.was_read = self.is_read.copy()
        return found[::-1]

    def _written(self, step: Step, overwritten: Table) -> _Writes:
        key, inverse = np.unique(step.dst.astype(np.int64) * self.shape[1] + step.chunk, return_inverse=True)
        rank, chunk = np.divmod(key, self.shape[1])
        place = rank, chunk
        reduces, source_rank = np.zeros(key.size, np.bool_), np.zeros(key.size, np.int64)
        reduces[inverse], source_rank[inverse] = step.reduce, step.src
        happens = self.is_read[place], self.clashes[place], ~overwritten[place]
        return _Writes(rank, chunk, inverse, source_rank, reduces, *happens)

    def _reads(self, step: Step, writes: _Writes) -> NDArray[np.int64]:
        """Return how often each place is read for: from own arrays, from peers' arrays, from slots."""
        place, size = (writes.rank, writes.chunk), writes.rank.size
        # A peer reads the slot where there is one, the owner its array.
        from_slot = self.version[step.src, step.chunk] >= 0
        slots = np.bincount(writes.of_transfer[from_slot], minlength=size)
        peers = np.bincount(writes.of_transfer[~from_slot], minlength=size)
        own = writes.reduces & self.in_array[place]
        return np.stack([own.astype(np.int64), peers, slots + (writes.reduces & ~own)])

    def _step_of(self, rows: Column) -> Column:
        steps = np.concatenate([row[0] for row in self.rows])
        return np.where(rows >= 0, steps[rows] if steps.size else -1, self.schedule.n_steps)

    def _add(
        self,
        step: int,
        place: tuple[Column, ...],
        reads: NDArray[np.int64] | tuple[int, int, int],
        in_output: Table | int,
        in_slot: Table | bool,
        sums: Table | bool,
        busy: Table | bool = False,
    ) -> Column:
        """Add acts; return their rows."""
        rank, chunk = place
        size = rank.size
        version = np.where(in_slot, np.asarray(busy, np.int64), -1)
        columns = [
            np.array(np.broadcast_to(np.asarray(value, np.int64), size))
            for value in (step, rank, chunk, *reads, in_output, sums, version)
        ]
        rows: Column = self.n_rows + np.arange(size)
        self.rows.append(columns)
        self.n_rows += size
        self.maker[rank, chunk] = rows
        self.version[rank, chunk] = columns[-1]
        self.in_array[rank, chunk] = in_output
        return rows

    def _done(self, along: Column, used: Column, arrays: Column) -> Work:
        step, rank, chunk, own, peers, slots, writes, sums, version = (
            np.concatenate(column) for column in zip(*self.rows, strict=True)
        )
        is_used = np.zeros(self.n_rows, np.bool_)
        is_used[used[used >= 0]] = True
        in_slot = (version >= 0) & is_used
        np.add.at(writes, along, 1)
        places = np.unique((rank * self.shape[1] + chunk)[in_slot] * 2 + version[in_slot]) // (2 * self.shape[1])
        most = int(np.bincount(places, minlength=1).max())
        kept = writes + in_slot > 0
        columns = (step, rank, chunk, own, peers, slots, writes, in_slot.astype(np.int64))
        numbers = (column[kept] for column in columns)
        step, rank, chunk, own, peers, slots, writes, slot_writes = numbers
        n_steps = self.schedule.n_steps
        is_sum = sums[kept].astype(np.bool_)
        return Work(step, rank, chunk, own, peers, slots, writes, slot_writes, is_sum, arrays, most, n_steps)


_NONE: Column = np.zeros(0, np.int64)
