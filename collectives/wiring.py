"""Messages between nodes: when a place is offered to the network, and when it is free again.

A message is four instructions. SEND and RECEIVED stand where the schedule's step is; the other two are put around them:

::

    src   SEND ........ SENT               SENT comes before the next write of the place that was sent
             `----.
    dst   POST ... RECEIVED, consumers     POST comes after the last access to the place before

Slot places that only their own rank uses are shared where they are not needed at the same time: a ring has as many
messages as steps, and needs two places for them.
"""

from __future__ import annotations

from collections import defaultdict

from multiring.collectives.program import FIRST_STEP, IN_TURN_BEGIN, IN_TURN_SENT, Instruction, Operand
from multiring.kernels.records import KIND_POST, KIND_RECEIVED, KIND_SEND, KIND_SENT, SPACE_SLOT

__all__ = ["wire"]

AHEAD = 1
"""How many steps before a message is read its place is offered: the network then need not hold it."""
LINGER = 1
"""How many steps after a message has begun its sender waits for the end, if nothing is written there before."""

_Memory = tuple[bool, int, int]


def wire(instructions: list[Instruction], n_places: list[int]) -> list[int]:
    """Add to each SEND its SENT, and to each RECEIVED its POST.

    Parameters
    ----------
    instructions : list of Instruction
        Of all ranks; the new ones are appended, and places for summands from other nodes are renumbered.
    n_places : list of int
        Places in each rank's slot.

    Returns
    -------
    list of int
        Places in each rank's slot now.
    """
    if all(instruction.lane is None for instruction in instructions):
        return n_places
    touched: dict[_Memory, set[int]] = defaultdict(set)
    written: dict[_Memory, set[int]] = defaultdict(set)
    for instruction in instructions:
        for operand in (*instruction.sources, *instruction.destinations):
            touched[operand.memory].add(instruction.step)
        for operand in instruction.destinations:
            written[operand.memory].add(instruction.step)
    last_step = max(instruction.step for instruction in instructions)
    for received in [i for i in instructions if i.kind == KIND_RECEIVED]:
        (place,) = received.destinations
        before = max((s for s in touched[place.memory] if s < received.step), default=FIRST_STEP - 1)
        step = max(before + 1, received.step - AHEAD, FIRST_STEP)
        written[place.memory].add(step)
        instructions.append(_beside(received, KIND_POST, step, [], [place], IN_TURN_BEGIN))
    for send in [i for i in instructions if i.kind == KIND_SEND]:
        (place,) = send.sources
        following = min((s for s in written[place.memory] if s > send.step), default=last_step + 1)
        step = min(following - 1, send.step + LINGER)
        instructions.append(_beside(send, KIND_SENT, step, [place], [], IN_TURN_SENT))
    return _share_places(instructions, n_places)


def _beside(
    instruction: Instruction, kind: int, step: int, sources: list[Operand], destinations: list[Operand], in_turn: int
) -> Instruction:
    return Instruction(
        instruction.rank, kind, step, instruction.chunk, sources, destinations, lane=instruction.lane, in_turn=in_turn
    )


def _share_places(instructions: list[Instruction], n_places: list[int]) -> list[int]:
    """Let slot places of a rank that it alone uses, and not at the same time, be one.

    ::

        step     0    1    2    3
        ring     POST reduce              place 0
                      POST reduce         place 1
                           POST reduce    place 0 again
    """
    users: dict[Operand, list[Instruction]] = defaultdict(list)
    for instruction in instructions:
        for operand in (*instruction.sources, *instruction.destinations):
            if operand.space == SPACE_SLOT:
                users[operand].append(instruction)
    new: dict[Operand, Operand] = {}
    count = [0] * len(n_places)
    private: list[tuple[int, int, Operand]] = []  # (first step in use, last step, place)
    for operand in sorted(users, key=lambda o: (o.rank, o.place)):
        if all(i.rank == operand.rank for i in users[operand]):
            steps = [i.step for i in users[operand]]
            private.append((min(steps), max(steps), operand))
        else:
            new[operand] = Operand(SPACE_SLOT, operand.rank, count[operand.rank])
            count[operand.rank] += 1
    free_after: list[list[tuple[int, int]]] = [[] for _ in n_places]  # (last step in use, place) of each rank
    for first, last, operand in sorted(private, key=lambda entry: (entry[0], entry[2].place)):
        free = free_after[operand.rank]
        if free and min(free)[0] < first:
            place = min(free)[1]
            free.remove(min(free))
        else:
            place = count[operand.rank]
            count[operand.rank] += 1
        free.append((last, place))
        new[operand] = Operand(SPACE_SLOT, operand.rank, place)
    for instruction in instructions:
        instruction.sources = [new.get(o, o) for o in instruction.sources]
        instruction.destinations = [new.get(o, o) for o in instruction.destinations]
    return count
