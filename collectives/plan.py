"""A plan: a schedule lowered for one request, as flat int64 tables, one program for each variant."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.lowering import MOST_VERSIONS, lower
from multiring.collectives.program import Instruction, Lowered, Operand, Wait
from multiring.collectives.request import Request
from multiring.collectives.schedules.choose import Choice
from multiring.collectives.schedules.draw import text
from multiring.collectives.schedules.explanation import Explanation, explain
from multiring.collectives.schedules.geometry import Geometry, geometry
from multiring.errors import ScheduleError
from multiring.kernels.records import (
    INSTRUCTION_CHUNK,
    INSTRUCTION_DESTINATION_END,
    INSTRUCTION_KIND,
    INSTRUCTION_LANE,
    INSTRUCTION_POST,
    INSTRUCTION_SKEW,
    INSTRUCTION_SOURCE_BEGIN,
    INSTRUCTION_SOURCE_END,
    INSTRUCTION_STEP,
    INSTRUCTION_WAIT_BEGIN,
    INSTRUCTION_WAIT_END,
    INSTRUCTION_WORDS,
    OPERAND_WORDS,
    PROGRAM_EXIT_BEGIN,
    PROGRAM_EXIT_END,
    PROGRAM_HOISTED,
    PROGRAM_INSTRUCTIONS,
    PROGRAM_MAX_SKEW,
    PROGRAM_N_INSTRUCTIONS,
    PROGRAM_N_PLACES,
    PROGRAM_N_STEPS,
    PROGRAM_N_TOUCHED,
    PROGRAM_OPERANDS,
    PROGRAM_STRIDE,
    PROGRAM_TOUCHED,
    PROGRAM_WAITS,
    PROGRAM_WORDS,
    SPACE_SLOT,
    VARIANT_OUT,
    VARIANT_X,
    WAIT_WORDS,
)
from multiring.topology.model import Topology

__all__ = ["EAGER", "Plan", "Table", "encode"]

Table = NDArray[np.int64]

EAGER = -1
"""The variant whose slots are the arrival lines' payload areas."""


def encode(lowered: Lowered, rank: int, n_steps: int, members: Sequence[int] | None = None, n_places: int = 0) -> Table:
    """Write one rank's program as words (layout: :mod:`multiring.kernels.records`).

    Parameters
    ----------
    lowered : Lowered
    rank : int
        Whose program.
    n_steps : int
        Of the schedule, for messages.
    members : sequence of int, optional
        The ranks of its node, which words count from 0; by default all are.
    n_places : int
        Places in a slot, if more than this variant needs: what goes to other nodes is cut alike in all variants.
    """
    number = {member: index for index, member in enumerate(members or range(len(lowered.programs)))}
    lanes = {lane: index for index, lane in enumerate(lowered.lanes[rank])}
    stride = max((len(p) for p in lowered.programs), default=0)
    waits: list[int] = []
    operands: list[int] = []
    rows: list[int] = []

    def add_waits(items: Iterable[Wait]) -> tuple[int, int]:
        begin = len(waits) // WAIT_WORDS
        for wait in items:
            skew = lowered.programs[wait.rank][wait.index].skew
            waits.extend((number[wait.rank], skew * stride + wait.index + 1, wait.lag))
        return begin, len(waits) // WAIT_WORDS

    def add_operands(items: Iterable[Operand]) -> int:
        for item in items:
            operands.extend((item.space, number[item.rank], item.place))
        return len(operands) // OPERAND_WORDS

    for instruction in lowered.programs[rank]:
        row = [0] * INSTRUCTION_WORDS
        row[INSTRUCTION_KIND] = instruction.kind
        row[INSTRUCTION_CHUNK] = instruction.chunk
        row[INSTRUCTION_SKEW] = instruction.skew
        row[INSTRUCTION_WAIT_BEGIN], row[INSTRUCTION_WAIT_END] = add_waits(instruction.waits)
        row[INSTRUCTION_SOURCE_BEGIN] = len(operands) // OPERAND_WORDS
        row[INSTRUCTION_SOURCE_END] = add_operands(instruction.sources)
        row[INSTRUCTION_DESTINATION_END] = add_operands(instruction.destinations)
        row[INSTRUCTION_POST] = int(instruction.awaited)
        row[INSTRUCTION_STEP] = instruction.step
        row[INSTRUCTION_LANE] = lanes[instruction.lane] if instruction.lane is not None else -1
        rows.extend(row)
    header = [0] * PROGRAM_WORDS
    header[PROGRAM_N_INSTRUCTIONS] = len(lowered.programs[rank])
    header[PROGRAM_STRIDE] = stride
    header[PROGRAM_MAX_SKEW] = lowered.max_skew
    header[PROGRAM_N_PLACES] = max(lowered.n_places, n_places)
    header[PROGRAM_HOISTED] = lowered.n_hoisted[rank]
    header[PROGRAM_EXIT_BEGIN], header[PROGRAM_EXIT_END] = add_waits(lowered.exits[rank])
    header[PROGRAM_N_STEPS] = n_steps
    header[PROGRAM_INSTRUCTIONS] = PROGRAM_WORDS
    header[PROGRAM_WAITS] = PROGRAM_WORDS + len(rows)
    header[PROGRAM_OPERANDS] = PROGRAM_WORDS + len(rows) + len(waits)
    touched = sorted(
        {
            (operand.space, number[operand.rank])
            for instruction in lowered.programs[rank]
            for operand in (*instruction.sources, *instruction.destinations)
            if operand.space != SPACE_SLOT and operand.rank != rank
        }
    )
    header[PROGRAM_TOUCHED] = PROGRAM_WORDS + len(rows) + len(waits) + len(operands)
    header[PROGRAM_N_TOUCHED] = len(touched)
    pairs = [word for pair in touched for word in pair]
    return np.array(header + rows + waits + operands + pairs, dtype=np.int64)


class Plan:
    """A schedule for one request, and its programs.

    Parameters
    ----------
    request : Request
    choice : Choice
        The schedule, and why it was chosen.
    rank : int
        Whose programs.
    n_slots : int
        Slots of each rank.
    nodes : sequence of int, optional
        The node of each rank; by default all are on one.

    Notes
    -----
    Nothing here depends on the count but through the choice: one plan serves all counts of its size class.
    """

    def __init__(
        self, request: Request, choice: Choice, rank: int, n_slots: int, nodes: Sequence[int] | None = None
    ) -> None:
        self.request = request
        self.choice = choice
        self.schedule = choice.schedule
        self.rank = rank
        self.n_slots = n_slots
        self.nodes = tuple(nodes or (0,) * choice.schedule.n_ranks)
        self.members = [r for r, node in enumerate(self.nodes) if node == self.nodes[rank]]
        operation = request.operation
        scaled = operation is not None and operation.name == "premul_sum"
        self.through_slots = request.wire_type != request.dtype or scaled
        self._lowered: dict[int, Lowered] = {}
        self._programs: dict[int, Table] = {}

    @property
    def spans_nodes(self) -> bool:
        """Whether the ranks are on several nodes."""
        return len(self.members) < len(self.nodes)

    def seen_from(self, rank: int) -> Plan:
        """Return the plan of another rank; the two share what does not depend on the rank."""
        plan = Plan(self.request, self.choice, rank, self.n_slots, self.nodes)
        plan._lowered = self._lowered
        return plan

    def lowered(self, variant: int) -> Lowered:
        """Return the programs of all ranks.

        Parameters
        ----------
        variant : int
            ``VARIANT_X | VARIANT_OUT``, or EAGER.
        """
        if variant not in self._lowered:
            eager = variant == EAGER
            self._lowered[variant] = lower(
                self.schedule,
                nodes=self.nodes,
                x_visible=not eager and bool(variant & VARIANT_X),
                out_visible=not eager and bool(variant & VARIANT_OUT),
                through_slots=self.through_slots,
                eager=eager,
                n_slots=self.n_slots,
            )
        return self._lowered[variant]

    def program(self, variant: int) -> Table:
        """Return this rank's program, as words."""
        if variant not in self._programs:
            lowered = self.lowered(variant)
            n_places = 0
            if lowered.is_wired and variant != EAGER:
                # Other nodes may run other variants, and nothing in symmetric memory needs most places.
                n_places = self.lowered(0).n_places
                if lowered.n_places > n_places:
                    raise RuntimeError(
                        f"lowering {self.schedule.algorithm} {self.schedule.collective.name}: variant {variant} needs"
                        f" {lowered.n_places} places, variant 0 only {n_places}"
                    )
            self._programs[variant] = encode(lowered, self.rank, self.schedule.n_steps, self.members, n_places)
        return self._programs[variant]

    def instruction(self, variant: int, rank: int, index: int) -> Instruction | None:
        """Return an instruction of any rank, for messages."""
        program = self.lowered(variant).programs[rank]
        return program[index] if 0 <= index < len(program) else None

    def geometry(self, count: int, counts: tuple[int, ...] | None) -> Geometry:
        """Return where the chunks lie in arrays of ``count`` elements."""
        schedule = self.schedule
        return geometry(schedule.collective, schedule.n_ranks, schedule.n_chunks, count, counts)

    def fits_eager(self, longest: int, room_bytes: int) -> bool:
        """Whether a slot for chunks of ``longest`` elements fits an arrival line's payload area."""
        place_bytes = (longest * self.request.wire_type.itemsize + 7) & ~7
        if place_bytes > room_bytes and self.schedule.n_steps and not self.through_slots:
            return False  # Even one place would not fit: no need to lower for it.
        return self.lowered(EAGER).n_places * place_bytes <= room_bytes

    def check_slots(self, slot_bytes: int) -> None:
        """Refuse a schedule with so many chunks that a slot does not hold one element of each.

        Raises
        ------
        ScheduleError
        """
        itemsize, schedule = self.request.wire_type.itemsize, self.schedule
        if MOST_VERSIONS * schedule.n_chunks * itemsize <= slot_bytes:
            return
        # No variant needs more places than the one where nothing is in symmetric memory, and eager has the same.
        n_places = self.lowered(EAGER).n_places
        if n_places * itemsize > slot_bytes:
            raise ScheduleError(
                f"{schedule.algorithm} {schedule.collective.name}: {n_places} chunks of at least {itemsize} bytes are"
                f" under way at once on one rank, a slot has {slot_bytes} bytes; use fewer chunks"
            )

    def hash(self, counts: tuple[int, ...] | None) -> int:
        """Return 24 bits that differ when two ranks would not run the same plan."""
        operation = self.request.operation
        state = zlib.crc32(f"{self.choice.algorithm} {self.schedule.n_chunks}".encode())
        for step in self.schedule.steps:
            state = zlib.crc32(len(step).to_bytes(8, "little"), state)
            for column in (step.src, step.dst, step.chunk, step.reduce):
                state = zlib.crc32(column.tobytes(), state)
        if counts is not None:
            state = zlib.crc32(np.asarray(counts, dtype=np.int64).tobytes(), state)
        if operation is not None:
            state = zlib.crc32(np.float64(operation.scale).tobytes(), state)
            if operation.function is not None:
                state = zlib.crc32(_code_of(operation.function), state)
        return state & 0xFFFFFF

    def explain(self, count: int, topology: Topology | None = None) -> Explanation:
        """Return the plan as people and programs read it, for ``count`` elements on a machine.

        The plan itself depends on neither: without a topology there are no prices.
        """
        dtype, wire = self.request.dtype, self.request.wire_type
        nbytes = count * dtype.itemsize
        return explain(self.choice, nbytes, topology, dtype.name, wire.name, count * wire.itemsize)

    def to_json(self, count: int, topology: Topology | None = None) -> dict[str, Any]:
        """Return :meth:`explain`'s answer as plain data."""
        return self.explain(count, topology).to_json()

    def trace(self, count: int, topology: Topology) -> str:
        """Return the predicted times of ``count`` elements on a machine in the Trace Event Format."""
        return self.explain(count, topology).trace()

    def __str__(self) -> str:
        schedule = self.schedule
        lines = [f"{self.request.dtype.name}, because {self.choice.reason}", text(schedule)]
        lines += [f"not {other.algorithm}: {other.reason}" for other in self.choice.alternatives]
        return "\n".join(lines)


def _code_of(function: Any) -> bytes:
    plain = getattr(function, "py_func", function)
    code = getattr(plain, "__code__", None)
    return code.co_code + repr(code.co_consts).encode() if code is not None else repr(plain).encode()
