"""Messages between nodes, as the interpreter sees them: requests in a ring, and words that say what has finished.

The interpreter never waits for the network: it writes requests, returns to its caller, which hands them over, and looks
at one word for each lane. See "Between nodes" in ``collectives/drivers/DESIGN.md``.
"""

from __future__ import annotations

from numba.extending import register_jitable

from multiring.kernels.execution import operand_address
from multiring.kernels.primitives import load_relaxed, load_word, store_word
from multiring.kernels.records import (
    ABORTED,
    CALL_CHUNKS,
    CALL_KINDS,
    CALL_PEER,
    CALL_SLICE,
    CALL_WIRE,
    CALL_WIRE_BYTES,
    CONTEXT_CONTROL,
    CONTROL_ABORT,
    DONE,
    INSTRUCTION_CHUNK,
    INSTRUCTION_KIND,
    INSTRUCTION_LANE,
    INSTRUCTION_SOURCE_BEGIN,
    KIND_POST,
    KIND_SEND,
    OPERAND_SPACE,
    OPERAND_WORDS,
    PROGRAM_OPERANDS,
    SPACE_SLOT,
    WAIT,
    WIRE_FINISHED,
    WIRE_MASK,
    WIRE_N_LANES,
    WIRE_QUEUED,
    WIRE_REQUEST_WORDS,
    WIRE_RING,
    WIRE_TAKEN,
)
from multiring.kernels.waiting import get, put

__all__ = ["begin_wire", "message", "must_hand_over"]


@register_jitable
def begin_wire(call: int) -> None:
    """Forget the messages of the call before."""
    wire = get(call, CALL_WIRE)
    if wire != 0:
        put(wire, WIRE_QUEUED, 0)
        put(wire, WIRE_TAKEN, 0)
        for lane in range(get(wire, WIRE_N_LANES)):
            store_word(get(wire, WIRE_FINISHED) + 8 * lane, 0)


@register_jitable
def must_hand_over(call: int, instruction: int) -> bool:
    """Whether requests should reach the network before an instruction, which may take its time."""
    wire = get(call, CALL_WIRE)
    if wire == 0 or get(wire, WIRE_QUEUED) == get(wire, WIRE_TAKEN):
        return False
    kind = get(instruction, INSTRUCTION_KIND)
    return kind not in (KIND_SEND, KIND_POST)


@register_jitable
def message(context: int, call: int, program: int, instruction: int, piece: int) -> int:
    """Run one instruction of the wire on one slice: a request, or a look whether it has finished.

    Returns
    -------
    int
        DONE; WAIT: hand the requests over, and call again when more has finished; or ABORTED.

    Notes
    -----
    The first slice of a lane is a message even if it is empty: so a call of no elements still waits for the others.
    """
    chunk = get(call, CALL_CHUNKS) + 24 * get(instruction, INSTRUCTION_CHUNK)
    length = max(min(get(call, CALL_SLICE), load_word(chunk + 16) - piece * get(call, CALL_SLICE)), 0)
    if length == 0 and piece > 0:
        return DONE
    wire = get(call, CALL_WIRE)
    lane = get(instruction, INSTRUCTION_LANE)
    kind = get(instruction, INSTRUCTION_KIND)
    if kind in (KIND_SEND, KIND_POST):
        operand = program + 8 * (
            get(program, PROGRAM_OPERANDS) + get(instruction, INSTRUCTION_SOURCE_BEGIN) * OPERAND_WORDS
        )
        itemsize = get(call, CALL_KINDS + 1)
        if get(operand, OPERAND_SPACE) == SPACE_SLOT:
            itemsize = get(call, CALL_WIRE_BYTES)
        queued = get(wire, WIRE_QUEUED)
        request = get(wire, WIRE_RING) + 8 * WIRE_REQUEST_WORDS * (queued & get(wire, WIRE_MASK))
        store_word(request, lane)
        store_word(request + 8, operand_address(context, call, operand, chunk, piece))
        store_word(request + 16, length * itemsize)
        put(wire, WIRE_QUEUED, queued + 1)
        return DONE
    if load_word(get(wire, WIRE_FINISHED) + 8 * lane) > piece:
        return DONE
    # No rank of this node is waited for.
    put(call, CALL_PEER, -1)
    return ABORTED if load_relaxed(get(context, CONTEXT_CONTROL) + CONTROL_ABORT) != 0 else WAIT
