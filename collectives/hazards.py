"""The order of a program's instructions, and the waits between ranks: from the hazards, and from nothing else."""

from __future__ import annotations

from collections import defaultdict

from multiring.collectives.program import (
    FIRST_STEP,
    IN_TURN_ARRIVED,
    Instruction,
    Lane,
    Lowered,
    Wait,
)
from multiring.kernels.records import SPACE_OUT, SPACE_SLOT

__all__ = ["order"]


def order(instructions: list[Instruction], n_places: list[int], *, eager: bool, n_slots: int, name: str) -> Lowered:
    """Put instructions in order and find out whom each has to wait for.

    Parameters
    ----------
    instructions : list of Instruction
        Of all ranks, in the order of emission.
    n_places : list of int
        Places in each rank's slot.
    eager : bool
        Whether copies of inputs into slots run before the arrival, which then orders them.
    n_slots : int
        Slots of each rank.
    name : str
        Of the schedule, for messages.
    """
    return _Ordering(instructions, n_places, eager, n_slots, name).finish()


class _Ordering:
    def __init__(
        self, instructions: list[Instruction], n_places: list[int], eager: bool, n_slots: int, name: str
    ) -> None:
        self.instructions = instructions
        self.n_places = n_places
        self.n_ranks = len(n_places)
        self.eager = eager
        self.n_slots = n_slots
        self.name = name

    def finish(self) -> Lowered:
        """Order the instructions of each rank and find out whom each has to wait for."""
        programs: list[list[Instruction]] = [[] for _ in range(self.n_ranks)]
        # sorted() is stable: within a step, the order of emission.
        for instruction in sorted(self.instructions, key=self._turn):
            instruction.index = len(programs[instruction.rank])
            programs[instruction.rank].append(instruction)
        self._set_skews()
        hoisted = [0] * self.n_ranks
        if self.eager:
            for rank, program in enumerate(programs):
                while hoisted[rank] < len(program) and self._is_hoisted(program[hoisted[rank]]):
                    hoisted[rank] += 1
        self._find_hazards()
        if any(self.n_places) and not self.eager:
            self._find_slot_waits(programs)
        for program in programs:
            for instruction in program:
                instruction.waits = _latest(instruction.waits)
        exits = self._find_exits()
        for waits in (*(i.waits for p in programs for i in p), *exits):
            for wait in waits:
                programs[wait.rank][wait.index].awaited = True
        lanes = [_lanes(program) for program in programs]
        # A message is a slice, so slices have a length also where no slot holds them.
        n_places = max(max(self.n_places), int(any(lanes)))
        return Lowered(programs, exits, n_places, hoisted, lanes)

    def _turn(self, instruction: Instruction) -> tuple[int, bool, int, bool]:
        hoisted = self._is_hoisted(instruction)
        return instruction.step, not hoisted, instruction.in_turn, self._late(instruction)

    def _late(self, instruction: Instruction) -> bool:
        """Whether an instruction may come after those that peers wait for."""
        return (
            instruction.step == FIRST_STEP
            and instruction.lane is None
            and instruction.destinations[0].space == SPACE_OUT
        )

    def _is_hoisted(self, instruction: Instruction) -> bool:
        return (
            self.eager
            and instruction.step == FIRST_STEP
            and instruction.lane is None
            and instruction.destinations[0].space == SPACE_SLOT
        )

    def _find_hazards(self) -> None:
        """Derive the waits within a slice.

        ::

            step:      0          1          2
            writer ----W
            reader       `------->R                     read after write
            writer                 `---------->W        write after read
        """
        writer: dict[tuple[bool, int, int], Instruction] = {}
        readers: dict[tuple[bool, int, int], list[Instruction]] = defaultdict(list)
        by_step: dict[int, list[Instruction]] = defaultdict(list)
        for instruction in self.instructions:
            by_step[instruction.step].append(instruction)
        for number in sorted(by_step):
            # Within a step a rank's own instructions run in order; those of other ranks are unordered.
            # A copy of an input to the same chunk of the output changes no value that a peer could read.
            ordered = sorted((i for i in by_step[number] if not self._late(i)), key=lambda i: i.index)
            for instruction in ordered:
                for operand in instruction.sources:
                    self._wait_on(instruction, writer.get(operand.memory))
                    readers[operand.memory].append(instruction)
            for instruction in ordered:
                for operand in instruction.destinations:
                    self._wait_on(instruction, writer.get(operand.memory))
                    for reader in readers[operand.memory]:
                        self._wait_on(instruction, reader)
            for instruction in ordered:
                for operand in instruction.destinations:
                    writer[operand.memory] = instruction
                    readers[operand.memory] = []

    def _wait_on(self, instruction: Instruction, earlier: Instruction | None) -> None:
        if earlier is None or earlier.rank == instruction.rank:
            return
        if self._is_hoisted(earlier):
            return  # The arrival has ordered it.
        if earlier.step >= instruction.step:
            raise RuntimeError(
                f"lowering {self.name}: step {instruction.step} of rank"
                f" {instruction.rank} would wait for step {earlier.step} of rank {earlier.rank}"
            )
        instruction.waits.append(Wait(earlier.rank, earlier.index))

    def _find_slot_waits(self, programs: list[list[Instruction]]) -> None:
        """Derive the waits between slices: who first writes a place waits for what touched it K slices ago."""
        touched: dict[tuple[bool, int, int], dict[int, int]] = defaultdict(dict)
        for program in programs:
            for instruction in program:
                for operand in (*instruction.sources, *instruction.destinations):
                    if operand.space == SPACE_SLOT:
                        touched[operand.memory][instruction.rank] = instruction.index
        for rank, program in enumerate(programs):
            fresh = set()
            for instruction in program:
                for operand in instruction.destinations:
                    if operand.space == SPACE_SLOT and operand.memory not in fresh:
                        fresh.add(operand.memory)
                        instruction.waits.extend(
                            Wait(peer, index, self.n_slots)
                            for peer, index in touched[operand.memory].items()
                            if peer != rank
                        )

    def _find_exits(self) -> list[list[Wait]]:
        """Derive what each rank waits for before it leaves: the peers' last access to its arrays."""
        exits: list[list[Wait]] = [[] for _ in range(self.n_ranks)]
        for instruction in self.instructions:
            for operand in (*instruction.sources, *instruction.destinations):
                if operand.space != SPACE_SLOT and operand.rank != instruction.rank:
                    exits[operand.rank].append(Wait(instruction.rank, instruction.index))
        return [_latest(waits) for waits in exits]

    def _set_skews(self) -> None:
        """Let later steps run behind by up to K - 2 slices, so that ranks wait less for each other.

        ::

            step 0    step 1, begin    step 1, arrived    step 2        most = 6, one step between nodes
            0         1                1 + 4              6             slices on their way between nodes: 4

        What waits for other nodes runs as far behind as the slots allow: so many slices are on their way at once.
        """
        wired = {i.step for i in self.instructions if i.in_turn >= IN_TURN_ARRIVED}
        phases = sorted({_phase(i) for i in self.instructions})
        most = self.n_slots - 2
        if self.eager or not phases or not (any(self.n_places) or wired):
            return
        n_gaps = len(phases) - 1
        n_far = sum(arrived for _, arrived in phases[1:])
        far = (most - (n_gaps - n_far)) // n_far if n_far and n_gaps <= most else 1
        skews = {phases[0]: 0}
        for number, phase in enumerate(phases[1:], 1):
            if n_gaps <= most:
                skews[phase] = skews[phases[number - 1]] + (far if phase[1] else 1)
            else:
                skews[phase] = number * most // n_gaps
        for instruction in self.instructions:
            instruction.skew = skews[_phase(instruction)]


def _phase(instruction: Instruction) -> tuple[int, bool]:
    """Return an instruction's step, and whether it waits there for another node."""
    return instruction.step, instruction.in_turn >= IN_TURN_ARRIVED


def _lanes(program: list[Instruction]) -> list[Lane]:
    """Return the transfers from and to other nodes that a program takes part in: the same in all variants."""
    return sorted({i.lane for i in program if i.lane is not None}, key=lambda lane: (lane.src, lane.dst, lane.number))


def _latest(waits: list[Wait]) -> list[Wait]:
    """Keep, for each rank and lag, the wait that implies the others."""
    best: dict[tuple[int, int], int] = {}
    for wait in waits:
        key = (wait.rank, wait.lag)
        best[key] = max(best.get(key, -1), wait.index)
    return [Wait(rank, index, lag) for (rank, lag), index in sorted(best.items())]
