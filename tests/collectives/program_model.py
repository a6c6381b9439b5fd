"""A second reading of program tables: what each instruction touches, what orders it, and what it computes.

It shares no code with the interpreter. A wait is satisfied once the awaited word has reached its value, and words only
grow, so a step that may run stays so: if one order of execution ends, every order does. And if every two accesses to
one place, of which one writes, are ordered by waits (:func:`check` proves it by vector clocks), every order computes
the same: so one execution on symbolic values decides for all of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.plan import encode
from multiring.collectives.program import Lowered
from multiring.collectives.schedules import Schedule
from multiring.kernels import records as r

Table = NDArray[np.int64]
Place = tuple[Any, ...]
Accesses = dict[Place, dict[int, int]]


class Race(AssertionError):
    """Two accesses to one place that nothing orders."""


class Deadlock(AssertionError):
    """Ranks that wait for ever."""


class WrongValue(AssertionError):
    """A place that holds something else than it should."""


class Wait(NamedTuple):
    """A row of the wait table."""

    peer: int
    position: int
    lag: int


class Row(NamedTuple):
    """A row of the instruction table, with what it refers to."""

    kind: int
    chunk: int
    skew: int
    step: int
    posts: bool
    waits: tuple[Wait, ...]
    sources: tuple[tuple[int, int, int], ...]
    destinations: tuple[tuple[int, int, int], ...]


@dataclass
class Program:
    """One rank's program, read back from its words."""

    stride: int
    max_skew: int
    n_places: int
    hoisted: int
    rows: list[Row]
    exits: tuple[Wait, ...]


def read_program(table: Table) -> Program:
    """Read a program from its words."""
    words = table.tolist()
    waits = [
        Wait(*words[at : at + r.WAIT_WORDS])
        for at in range(words[r.PROGRAM_WAITS], words[r.PROGRAM_OPERANDS], r.WAIT_WORDS)
    ]
    operands = [
        tuple(words[at : at + r.OPERAND_WORDS]) for at in range(words[r.PROGRAM_OPERANDS], len(words), r.OPERAND_WORDS)
    ]
    rows = []
    for index in range(words[r.PROGRAM_N_INSTRUCTIONS]):
        start = words[r.PROGRAM_INSTRUCTIONS] + index * r.INSTRUCTION_WORDS
        row = words[start : start + r.INSTRUCTION_WORDS]
        source, end = row[r.INSTRUCTION_SOURCE_BEGIN], row[r.INSTRUCTION_DESTINATION_END]
        rows.append(
            Row(
                row[r.INSTRUCTION_KIND],
                row[r.INSTRUCTION_CHUNK],
                row[r.INSTRUCTION_SKEW],
                row[r.INSTRUCTION_STEP],
                bool(row[r.INSTRUCTION_POST]),
                tuple(waits[row[r.INSTRUCTION_WAIT_BEGIN] : row[r.INSTRUCTION_WAIT_END]]),
                tuple(operands[source : row[r.INSTRUCTION_SOURCE_END]]),
                tuple(operands[row[r.INSTRUCTION_SOURCE_END] : end]),
            )
        )
    return Program(
        words[r.PROGRAM_STRIDE],
        words[r.PROGRAM_MAX_SKEW],
        words[r.PROGRAM_N_PLACES],
        words[r.PROGRAM_HOISTED],
        rows,
        tuple(waits[words[r.PROGRAM_EXIT_BEGIN] : words[r.PROGRAM_EXIT_END]]),
    )


def read_programs(lowered: Lowered, n_ranks: int) -> list[Program]:
    """Encode and read back the programs of all ranks."""
    return [read_program(encode(lowered, rank, 0)) for rank in range(n_ranks)]


class Value(NamedTuple):
    """What a place holds: whose contributions, how often each, and what was done to them."""

    ranks: tuple[tuple[int, int], ...]
    finals: int = 0
    """Reductions that were marked as the last."""
    wire: bool = False
    """Whether it is in the wire type."""


@dataclass
class Event:
    """Something that a rank does at one point of its program."""

    rank: int
    waits: list[tuple[int, int]]
    """(peer, value of its progress word)."""
    row: Row | None = None
    piece: int = 0
    post: int | None = None
    arrives: bool = False
    leaves: bool = False
    index: int = -1


@dataclass
class Machine:
    """All ranks of one call.

    Parameters
    ----------
    in_place : bool
        Whether a rank's input and output are the same memory.
    """

    schedule: Schedule
    programs: list[Program]
    n_slices: int
    n_slots: int
    x_visible: bool = False
    out_visible: bool = False
    through_slots: bool = False
    eager: bool = False
    in_place: bool = False
    clocks: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    """The clock of each (rank, index of event in its program order)."""
    posts: list[list[tuple[int, int]]] = field(default_factory=list)
    """For each rank, (value, index of event) of its posts, ascending."""

    def events(self, rank: int) -> list[Event]:
        """List what a rank does, in its order."""
        program = self.programs[rank]
        events = [Event(rank, [], program.rows[index], 0) for index in range(program.hoisted)]
        events.append(Event(rank, [], arrives=True))
        for loop in range(self.n_slices + program.max_skew):
            for number, row in enumerate(program.rows):
                piece = loop - row.skew
                if not 0 <= piece < self.n_slices or (number < program.hoisted and loop == 0):
                    continue
                waits = [(w.peer, (piece - w.lag) * program.stride + w.position) for w in row.waits if piece >= w.lag]
                post = loop * program.stride + number + 1 if row.posts else None
                events.append(Event(rank, waits, row, piece, post))
        exits = [(w.peer, (self.n_slices - 1) * program.stride + w.position) for w in program.exits]
        events.append(Event(rank, exits if self.n_slices else [], leaves=True))
        for index, event in enumerate(events):
            event.index = index
        return events

    def place(self, operand: tuple[int, int, int], piece: int) -> Place:
        """Name the memory of an operand in a slice."""
        space, rank, place = operand
        if space == r.SPACE_SLOT:
            return ("slot", rank, place, 0 if self.eager else piece % self.n_slots)
        return ("array" if self.in_place else "x" if space == r.SPACE_X else "out", rank, place, piece)

    def run(self) -> Iterator[Event]:
        """Yield the events of all ranks in one possible order, with their clocks known."""
        n_ranks = len(self.programs)
        events = [self.events(rank) for rank in range(n_ranks)]
        at = [0] * n_ranks
        now = [[0] * n_ranks for _ in range(n_ranks)]
        self.posts = [[] for _ in range(n_ranks)]
        arrived: dict[int, list[int]] = {}
        while any(at[rank] < len(events[rank]) for rank in range(n_ranks)):
            moved = False
            for rank in range(n_ranks):
                while at[rank] < len(events[rank]):
                    event = events[rank][at[rank]]
                    befores = [self._clock_after(peer, value) for peer, value in event.waits]
                    if event.arrives:
                        moved = moved or rank not in arrived
                        arrived[rank] = list(now[rank])
                        befores = [arrived.get(peer) for peer in range(n_ranks)]
                    if None in befores:
                        break
                    for clock in befores:
                        _join(now[rank], clock or [])
                    now[rank][rank] = event.index + 1
                    self.clocks[rank, event.index] = list(now[rank])
                    if event.post is not None:
                        self.posts[rank].append((event.post, event.index))
                    at[rank] += 1
                    moved = True
                    yield event
            if not moved:
                stuck = {rank: events[rank][at[rank]] for rank in range(n_ranks) if at[rank] < len(events[rank])}
                raise Deadlock(f"{self.schedule.algorithm}: {stuck}")

    def _clock_after(self, peer: int, value: int) -> list[int] | None:
        post = self.first_post(peer, value)
        return None if post is None else self.clocks[peer, post]

    def first_post(self, peer: int, value: int) -> int | None:
        """Return the event whose post first satisfies a wait, or None while there is none."""
        return next((index for post, index in self.posts[peer] if post >= value), None)

    def is_before(self, peer: int, index: int, rank: int, later: int) -> bool:
        """Whether an event of ``peer`` is ordered before one of ``rank``."""
        return self.clocks[rank, later][peer] > index


def _join(clock: list[int], other: list[int]) -> None:
    for rank, time in enumerate(other):
        clock[rank] = max(clock[rank], time)


def check(machine: Machine) -> None:
    """Prove that a call computes the right values in every order of execution.

    Raises
    ------
    Race, Deadlock, WrongValue
    """
    schedule = machine.schedule
    n_ranks, n_chunks = schedule.n_ranks, schedule.n_chunks
    reduces = schedule.collective.reduces
    memory: dict[Place, Value] = {}
    # For each place and rank: the clock of its last read and of its last write.
    reads: Accesses = defaultdict(dict)
    writes: Accesses = defaultdict(dict)
    for rank in range(n_ranks):
        for chunk in schedule.collective.before(rank, n_ranks, n_chunks).tolist():
            for piece in range(machine.n_slices):
                memory[machine.place((r.SPACE_X, rank, chunk), piece)] = Value(((rank, 1),))
    inputs = dict(memory)
    arrays: list[set[Place]] = [set() for _ in range(n_ranks)]
    for rank in range(n_ranks):
        for space, held in ((r.SPACE_X, schedule.collective.before), (r.SPACE_OUT, schedule.collective.after)):
            for chunk in held(rank, n_ranks, n_chunks).tolist():
                arrays[rank].update(machine.place((space, rank, chunk), piece) for piece in range(machine.n_slices))

    def note(event: Event, place: Place, table: Accesses, others: list[Accesses]) -> None:
        for other in others:
            for peer, index in other[place].items():
                if peer != event.rank and not machine.is_before(peer, index, event.rank, event.index):
                    raise Race(f"{schedule.algorithm}: {place} by rank {peer} event {index} and {event}")
        table[place][event.rank] = event.index

    for event in machine.run():
        if event.leaves:
            # The caller owns its arrays again, and may write them.
            for place in sorted(arrays[event.rank]):
                note(event, place, writes, [reads, writes])
        if event.row is None:
            continue
        row, piece, rank = event.row, event.piece, event.rank
        sources = [machine.place(operand, piece) for operand in row.sources]
        destinations = [machine.place(operand, piece) for operand in row.destinations]
        for operand in (*row.sources, *row.destinations):
            _check_reachable(machine, event, operand)
        if row.kind == r.KIND_COPY:
            # The interpreter skips a copy of a place to itself.
            destinations = [d for d in destinations if d != sources[0]]
        if not destinations:
            continue
        for place in sources:
            note(event, place, reads, [writes])
            if place not in memory:
                raise WrongValue(f"{schedule.algorithm}: {place} is read by {event}, and holds nothing")
        result = _compute(machine, row, [memory[place] for place in sources], rank)
        for place in destinations:
            note(event, place, writes, [reads, writes])
            memory[place] = result
    for rank in range(n_ranks):
        for chunk in schedule.collective.after(rank, n_ranks, n_chunks).tolist():
            for piece in range(machine.n_slices):
                place = machine.place((r.SPACE_OUT, rank, chunk), piece)
                got = memory.get(place)
                if reduces:
                    wanted = Value(tuple((q, 1) for q in range(n_ranks)), int(n_ranks > 1))
                else:
                    wanted = Value(((_origin(schedule, chunk), 1),))
                if got != wanted:
                    raise WrongValue(f"{schedule.algorithm}: {place} holds {got}, wanted {wanted}")
    if not machine.in_place:
        for place, value in inputs.items():
            if memory[place] != value:
                raise WrongValue(f"{schedule.algorithm}: the input {place} was changed to {memory[place]}")


def _check_reachable(machine: Machine, event: Event, operand: tuple[int, int, int]) -> None:
    space, rank, _ = operand
    if space == r.SPACE_SLOT or rank == event.rank:
        return
    if not (machine.x_visible if space == r.SPACE_X else machine.out_visible):
        raise WrongValue(f"{machine.schedule.algorithm}: {event} reaches for an array that it cannot see: {operand}")


def _compute(machine: Machine, row: Row, values: list[Value], rank: int) -> Value:
    kind = row.kind
    slots = [o[0] == r.SPACE_SLOT for o in row.sources], [o[0] == r.SPACE_SLOT for o in row.destinations]
    if kind in (r.KIND_REDUCE, r.KIND_REDUCE_FINAL):
        total: Counter[int] = Counter()
        for value in values:
            total.update(dict(value.ranks))
        final = len(total) == len(machine.programs)
        if final != (kind == r.KIND_REDUCE_FINAL) or len({value.wire for value in values}) != 1:
            raise WrongValue(f"{machine.schedule.algorithm}: rank {rank} {row} reduces {values}")
        return Value(tuple(sorted(total.items())), sum(v.finals for v in values) + int(final), values[0].wire)
    wanted = {
        r.KIND_COPY: (False, None, None),
        r.KIND_CAST_IN: (False, False, True),
        r.KIND_CAST_OUT: (True, True, False),
        r.KIND_FORWARD: (True, True, True),
    }[kind]
    value = values[0]
    fits = (
        len(values) == 1
        and value.wire == wanted[0]
        and (kind == r.KIND_COPY) == (not machine.through_slots)
        and wanted[1] in (None, slots[0][0])
        and all(wanted[2] in (None, slot) for slot in slots[1])
    )
    if not fits:
        raise WrongValue(f"{machine.schedule.algorithm}: rank {rank} {row} moves {values}")
    return value._replace(wire=kind in (r.KIND_CAST_IN, r.KIND_FORWARD))


def _origin(schedule: Schedule, chunk: int) -> int:
    """Return the rank that a chunk comes from where nothing is reduced."""
    n_ranks = schedule.n_ranks
    for rank in range(n_ranks):
        if chunk in schedule.collective.before(rank, n_ranks, schedule.n_chunks):
            return rank
    raise AssertionError(chunk)
