"""Lowering: from a schedule to one program for each rank.

A schedule says which chunk goes where; a program says from which memory to which memory, and whom to wait for. The
program does not depend on the count. What lowering adds:

- where each value lies: input, output, or a place in a rank's slot;
- fusion: all reduces into one (rank, chunk) in a step are one instruction, and copies of its result that follow are
  further destinations of it where they can be reached;
- scratch places where a step reads and writes the same place;
- between nodes, the four instructions of a message (see :mod:`multiring.collectives.wiring`);
- waits, from the hazards between all instructions of all ranks.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from multiring.collectives.hazards import order
from multiring.collectives.program import (
    FIRST_STEP,
    IN_TURN_ARRIVED,
    IN_TURN_BEGIN,
    IN_TURN_LOCAL,
    Instruction,
    Lane,
    Lowered,
    Operand,
)
from multiring.collectives.schedules.schedule import Schedule
from multiring.collectives.wiring import wire
from multiring.kernels.records import (
    KIND_CAST_IN,
    KIND_CAST_OUT,
    KIND_COPY,
    KIND_FORWARD,
    KIND_RECEIVED,
    KIND_REDUCE,
    KIND_REDUCE_FINAL,
    KIND_SEND,
    SPACE_OUT,
    SPACE_SLOT,
    SPACE_X,
)

__all__ = ["MOST_VERSIONS", "lower"]


MOST_VERSIONS = 2
"""Places of one chunk in a rank's slot: one being read while the other is written."""

UNREACHABLE = 9
"""The order of preference of a place that a rank cannot read."""


@dataclass(slots=True)
class _Value:
    """What a (rank, chunk) holds between two writes."""

    places: list[Operand]
    contributors: int
    producer: Instruction | None


class _Life(NamedTuple):
    """What happens to a value.

    Attributes
    ----------
    read : bool
        Another rank gets it.
    near : bool
        One of the same node, which reads it itself.
    clash : bool
        In the very step that overwrites it.
    last : bool
        Nothing overwrites it.
    """

    read: bool
    near: bool
    clash: bool
    last: bool


class _Lowering:
    def __init__(
        self, schedule: Schedule, nodes: Sequence[int], *, x_visible: bool, out_visible: bool, through_slots: bool
    ) -> None:
        self.schedule = schedule
        self.nodes = nodes
        self.collective = schedule.collective
        self.x_visible = x_visible and not through_slots
        self.out_visible = out_visible and not through_slots
        self.through_slots = through_slots
        self.n_ranks = schedule.n_ranks
        self.everyone = (1 << self.n_ranks) - 1
        self.instructions: list[Instruction] = []
        self.of_chunk: dict[int, list[Instruction]] = defaultdict(list)
        self.n_lanes: dict[tuple[int, int], int] = defaultdict(int)
        self.in_turn = IN_TURN_LOCAL
        self.n_places = [0] * self.n_ranks
        self.place_of: dict[tuple[int, int, int], int] = {}
        self.outputs = [
            frozenset(self.collective.after(r, self.n_ranks, schedule.n_chunks).tolist()) for r in range(self.n_ranks)
        ]
        self._scan()

    # --- what the schedule will do ----------------------------------------------------------------------------------

    def _scan(self) -> None:
        """Note in which steps each (rank, chunk) is read by a peer, by one of its node, and written."""
        self.reads: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.near_reads: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.writes: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number, step in enumerate(self.schedule.steps):
            for src, dst, chunk in zip(step.src.tolist(), step.dst.tolist(), step.chunk.tolist(), strict=True):
                tables = [(self.reads, (src, chunk)), (self.writes, (dst, chunk))]
                if not self._is_far(src, dst):
                    tables.append((self.near_reads, (src, chunk)))
                for table, key in tables:
                    if not table[key] or table[key][-1] != number:
                        table[key].append(number)

    def _is_far(self, src: int, dst: int) -> bool:
        return self.nodes[src] != self.nodes[dst]

    def _life(self, rank: int, chunk: int, step: int) -> _Life:
        """Return what happens to the value that ``step`` writes."""
        writes, reads, near = self.writes[rank, chunk], self.reads[rank, chunk], self.near_reads[rank, chunk]
        at = bisect.bisect_right(writes, step)
        following = writes[at] if at < len(writes) else self.schedule.n_steps
        first, end = bisect.bisect_right(reads, step), bisect.bisect_right(reads, following)
        is_near = bisect.bisect_right(near, step) < bisect.bisect_right(near, following)
        return _Life(first < end, is_near, first < end and reads[end - 1] == following, at == len(writes))

    # --- where values lie -------------------------------------------------------------------------------------------

    def _slot(self, rank: int, chunk: int, avoid: Operand | None = None) -> Operand:
        """Return the place of a chunk in a rank's slot; a second one where the first is still being read."""
        version = 0
        while (operand := self._place(rank, chunk, version)) == avoid:
            version += 1
        return operand

    def _place(self, rank: int, chunk: int, version: int) -> Operand:
        key = (rank, chunk, version)
        if key not in self.place_of:
            self.place_of[key] = self.n_places[rank]
            self.n_places[rank] += 1
        return Operand(SPACE_SLOT, rank, self.place_of[key])

    def _readable(self, value: _Value, reader: int) -> Operand:
        """Return the place of a value that ``reader`` reads it from."""

        def rank_of(operand: Operand) -> int:
            own = operand.rank == reader
            if operand.space == SPACE_SLOT:
                return 1 if own else 0
            if self.through_slots:
                return UNREACHABLE
            visible = self.x_visible if operand.space == SPACE_X else self.out_visible
            if own:
                return 0
            return 2 if visible else UNREACHABLE

        best = min(value.places, key=rank_of)
        if rank_of(best) == UNREACHABLE:
            raise RuntimeError(
                f"lowering {self.schedule.algorithm} {self.collective.name}: rank {reader} cannot read {best}"
            )
        return best

    def _homes(self, rank: int, chunk: int, step: int, old: _Value | None) -> tuple[list[Operand], bool]:
        """Return where the value that ``step`` writes must lie, and whether it must reach the output from a slot."""
        life = self._life(rank, chunk, step)
        in_output = chunk in self.outputs[rank]
        out = Operand(SPACE_OUT, rank, chunk)
        homes: list[Operand] = []
        seen = self.out_visible or not life.near
        use_output = in_output and not self.through_slots and (life.last or (seen and not life.clash))
        if use_output:
            homes.append(out)
        # A peer reads a symmetric output directly, unless the step that overwrites it also reads it.
        if (life.read and (not seen or life.clash or not use_output)) or not homes:
            busy = [p for p in old.places if p.space == SPACE_SLOT] if old and step in self.reads[rank, chunk] else []
            homes.insert(0, self._slot(rank, chunk, busy[0] if busy else None))
        return homes, life.last and in_output and self.through_slots

    # --- building ---------------------------------------------------------------------------------------------------

    def _emit(
        self, rank: int, kind: int, step: int, chunk: int, sources: list[Operand], destinations: list[Operand]
    ) -> Instruction:
        instruction = Instruction(rank, kind, step, chunk, sources, destinations, in_turn=self.in_turn)
        self.instructions.append(instruction)
        self.of_chunk[chunk].append(instruction)
        return instruction

    def build(self) -> None:
        """Emit the instructions of all ranks, step by step."""
        values = self._inputs()
        for number in range(self.schedule.n_steps):
            self._step(number, values)
        self._outputs(values)
        self._drop_unread()

    def _inputs(self) -> dict[tuple[int, int], _Value]:
        """Enter the inputs, with a copy into the slot where peers could not read them in place."""
        values: dict[tuple[int, int], _Value] = {}
        for rank in range(self.n_ranks):
            for chunk in self.collective.before(rank, self.n_ranks, self.schedule.n_chunks).tolist():
                x = Operand(SPACE_X, rank, chunk)
                value = _Value([x], 1 << rank, None)
                life = self._life(rank, chunk, FIRST_STEP)
                used = life.read or bool(self.writes[rank, chunk]) or chunk in self.outputs[rank]
                if (self.through_slots and used) or life.clash or (life.near and not self.x_visible):
                    slot = self._slot(rank, chunk)
                    kind = KIND_CAST_IN if self.through_slots else KIND_COPY
                    value.producer = self._emit(rank, kind, FIRST_STEP, chunk, [x], [slot])
                    value.places.append(slot)
                values[rank, chunk] = value
        return values

    def _step(self, number: int, values: dict[tuple[int, int], _Value]) -> None:
        """Turn the transfers of one step into instructions; all of them read the state before it."""
        groups: dict[tuple[int, int], list[tuple[int, bool]]] = defaultdict(list)
        step = self.schedule.steps[number]
        for src, dst, chunk, reduce in zip(
            step.src.tolist(), step.dst.tolist(), step.chunk.tolist(), step.reduce.tolist(), strict=True
        ):
            groups[dst, chunk].append((src, reduce))
        written: dict[tuple[int, int], _Value] = {}
        # Nearest source first, so that ranks do not all read from rank 0 at once.
        for (dst, chunk), arrows in sorted(
            groups.items(), key=lambda g: (g[0][0], (g[1][0][0] - g[0][0]) % self.n_ranks)
        ):
            far = any(self._is_far(src, dst) for src, _ in arrows)
            self.in_turn = IN_TURN_ARRIVED if far else IN_TURN_LOCAL
            if arrows[0][1]:
                written[dst, chunk] = self._reduce(number, dst, chunk, [src for src, _ in arrows], values)
            elif far:
                written[dst, chunk] = self._receive(number, dst, chunk, arrows[0][0], values)
            else:
                written[dst, chunk] = self._copy(number, dst, chunk, arrows[0][0], values)
        self.in_turn = IN_TURN_LOCAL
        values.update(written)

    # --- between nodes ----------------------------------------------------------------------------------------------

    def _move(self, number: int, src: int, dst: int, chunk: int, value: _Value, landing: Operand) -> None:
        """Send a value to another node; the rest of the message's instructions are added when all places are known."""
        lane = Lane(src, dst, self.n_lanes[src, dst])
        self.n_lanes[src, dst] += 1
        source = self._readable(value, src)
        slots = [place for place in value.places if place.space == SPACE_SLOT and place.rank == src]
        if slots and number in self.writes[src, chunk]:
            source = slots[0]  # The step overwrites the array, perhaps before all was sent.
        send = self._emit(src, KIND_SEND, number, chunk, [source], [])
        send.lane, send.in_turn = lane, IN_TURN_BEGIN
        self._emit(dst, KIND_RECEIVED, number, chunk, [], [landing]).lane = lane

    def _landing(self, rank: int) -> Operand:
        """Return a place of its own for a summand from another node; which slot place that is, is settled later."""
        self.n_places[rank] += 1
        return Operand(SPACE_SLOT, rank, self.n_places[rank] - 1)

    def _receive(self, number: int, dst: int, chunk: int, src: int, values: dict[tuple[int, int], _Value]) -> _Value:
        """Copy a value from another node."""
        homes, cast_out = self._homes(dst, chunk, number, values.get((dst, chunk)))
        value = values[src, chunk]
        self._move(number, src, dst, chunk, value, homes[0])
        out = Operand(SPACE_OUT, dst, chunk)
        if cast_out:
            self._emit(dst, KIND_CAST_OUT, number, chunk, [homes[0]], [out])
            homes = [*homes, out]
        elif homes[1:]:
            self._emit(dst, KIND_COPY, number, chunk, [homes[0]], homes[1:])
        return _Value(homes, value.contributors, None)

    # --- inside a node ----------------------------------------------------------------------------------------------

    def _reduce(
        self, number: int, dst: int, chunk: int, peers: list[int], values: dict[tuple[int, int], _Value]
    ) -> _Value:
        old = values[dst, chunk]
        ranks = sorted([*peers, dst])
        contributors = 0
        for rank in ranks:
            contributors |= values[rank, chunk].contributors
        homes, cast_out = self._homes(dst, chunk, number, old)
        kind = KIND_REDUCE_FINAL if contributors == self.everyone else KIND_REDUCE
        sources = []
        for rank in ranks:
            if self._is_far(rank, dst):
                landing = self._landing(dst)
                self._move(number, rank, dst, chunk, values[rank, chunk], landing)
                sources.append(landing)
            else:
                sources.append(self._readable(values[rank, chunk], dst))
        instruction = self._emit(dst, kind, number, chunk, sources, homes)
        if cast_out:
            out = Operand(SPACE_OUT, dst, chunk)
            self._emit(dst, KIND_CAST_OUT, number, chunk, [homes[0]], [out])
            homes = [*homes, out]
        return _Value(homes, contributors, instruction)

    def _copy(self, number: int, dst: int, chunk: int, src: int, values: dict[tuple[int, int], _Value]) -> _Value:
        old = values.get((dst, chunk))
        value = values[src, chunk]
        homes, cast_out = self._homes(dst, chunk, number, old)
        producer = value.producer
        if (
            producer is not None
            and producer.rank == src
            and producer.kind in (KIND_REDUCE, KIND_REDUCE_FINAL)
            and self.out_visible
            and homes == [Operand(SPACE_OUT, dst, chunk)]
            and not any(s >= producer.step and s != number for s in self.writes[dst, chunk] if s < number)
            and not self._read_since(dst, chunk, producer, number)
        ):
            producer.destinations.append(homes[0])
            return _Value(homes, value.contributors, producer)
        source = self._readable(value, dst)
        if self.through_slots:
            instruction = None
            if homes[0].space == SPACE_SLOT and (self._life(dst, chunk, number).read or not cast_out):
                instruction = self._emit(dst, KIND_FORWARD, number, chunk, [source], [homes[0]])
                source = homes[0]
            else:
                homes = []
            if cast_out:
                out = Operand(SPACE_OUT, dst, chunk)
                self._emit(dst, KIND_CAST_OUT, number, chunk, [source], [out])
                homes = [*homes, out]
            return _Value(homes, value.contributors, instruction)
        instruction = self._emit(dst, KIND_COPY, number, chunk, [source], homes)
        return _Value(homes, value.contributors, instruction)

    def _read_since(self, rank: int, chunk: int, producer: Instruction, number: int) -> bool:
        """Whether somebody but ``producer`` reads a (rank, chunk) from the producer's step to step ``number``."""
        for s in self.reads[rank, chunk]:
            if producer.step < s <= number:
                return True
        mine = {(SPACE_X, rank, chunk), (SPACE_OUT, rank, chunk)}
        return any(
            other is not producer
            and other.step >= producer.step
            and any((o.space, o.rank, o.place) in mine for o in other.sources)
            for other in self.of_chunk[chunk]
        )

    def _outputs(self, values: dict[tuple[int, int], _Value]) -> None:
        """Copy what no step wrote from input to output."""
        for rank in range(self.n_ranks):
            for chunk in sorted(self.outputs[rank]):
                if self.writes[rank, chunk]:
                    continue
                value = values[rank, chunk]
                out = Operand(SPACE_OUT, rank, chunk)
                if self.through_slots:
                    self._emit(rank, KIND_CAST_OUT, FIRST_STEP, chunk, [value.places[-1]], [out])
                else:
                    self._emit(rank, KIND_COPY, FIRST_STEP, chunk, [value.places[0]], [out])

    def _drop_unread(self) -> None:
        """Forget what nobody reads: backwards from the outputs, destinations, instructions and places."""
        live = {Operand(SPACE_OUT, rank, chunk) for rank in range(self.n_ranks) for chunk in self.outputs[rank]}
        kept: list[Instruction] = []
        # Within a step nobody reads a place that another rank writes, and a rank's own instructions keep their order.
        for instruction in sorted(self.instructions, key=lambda i: i.step)[::-1]:
            if instruction.lane is None:
                instruction.destinations = [o for o in instruction.destinations if o in live]
            # Both ends of a message must agree that there is one.
            if instruction.destinations or instruction.lane is not None:
                live.difference_update(instruction.destinations)
                live.update(instruction.sources)
                kept.append(instruction)
        self.instructions = kept[::-1]
        used = {o for i in self.instructions for o in (*i.sources, *i.destinations) if o.space == SPACE_SLOT}
        number: dict[Operand, Operand] = {}
        self.n_places = [0] * self.n_ranks
        for old in sorted(used, key=lambda o: o.place):
            number[old] = Operand(SPACE_SLOT, old.rank, self.n_places[old.rank])
            self.n_places[old.rank] += 1
        for instruction in self.instructions:
            instruction.sources = [number.get(o, o) for o in instruction.sources]
            instruction.destinations = [number.get(o, o) for o in instruction.destinations]


def lower(
    schedule: Schedule,
    *,
    nodes: Sequence[int] | None = None,
    x_visible: bool = False,
    out_visible: bool = False,
    through_slots: bool = False,
    eager: bool = False,
    n_slots: int = 4,
) -> Lowered:
    """Lower a schedule to one program for each rank.

    Parameters
    ----------
    schedule : Schedule
        Verified.
    nodes : sequence of int, optional
        The node of each rank; by default all are on one. Ranks of different nodes reach each other by messages only.
    x_visible, out_visible : bool
        Whether all ranks' inputs, and outputs, lie in memory that every rank of their node reads and writes.
    through_slots : bool
        Whether every value passes through a slot in the wire type: inputs are cast on the way in, results
        on the way out.
    eager : bool
        Whether the slots are the payload areas of the arrival lines, and copies of inputs run before the arrival.
    n_slots : int
        Slots of each rank, at least 3.
    """
    lowering = _Lowering(
        schedule,
        nodes or (0,) * schedule.n_ranks,
        x_visible=x_visible,
        out_visible=out_visible,
        through_slots=through_slots,
    )
    lowering.build()
    n_places = wire(lowering.instructions, lowering.n_places)
    return order(
        lowering.instructions,
        n_places,
        eager=eager,
        n_slots=n_slots,
        name=f"{schedule.algorithm} {schedule.collective.name}",
    )
