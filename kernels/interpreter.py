"""The interpreter of step tables: one collective call of one rank, resumable.

It knows no algorithm: it copies, reduces and waits as the program says (see :mod:`multiring.kernels.records` for the
records and ``collectives/drivers/DESIGN.md`` for the protocol).
"""

from __future__ import annotations

from numba.extending import register_jitable

from multiring.kernels.arrival import arrive, publish, reference, settle
from multiring.kernels.execution import bind, bind_own, execute
from multiring.kernels.primitives import restore_float_control, set_float_control
from multiring.kernels.records import (
    CALL_CONTEXT,
    CALL_COUNT,
    CALL_DEADLINE_NS,
    CALL_DONE,
    CALL_EAGER,
    CALL_ENTERED_NS,
    CALL_EPOCH,
    CALL_INSTRUCTION,
    CALL_LOOP,
    CALL_N_SLICES,
    CALL_OUT,
    CALL_OUT_BYTES,
    CALL_OUT_REFERENCE,
    CALL_PHASE,
    CALL_PROGRAM,
    CALL_PROGRAMS,
    CALL_SIGNATURE,
    CALL_X,
    CALL_X_BYTES,
    CALL_X_REFERENCE,
    CONTEXT_BASE,
    CONTEXT_EPOCH,
    CONTEXT_PENDING,
    CONTEXT_PROGRESS,
    CONTEXT_RANK,
    DONE,
    INSTRUCTION_KIND,
    INSTRUCTION_POST,
    INSTRUCTION_SKEW,
    INSTRUCTION_WAIT_BEGIN,
    INSTRUCTION_WAIT_END,
    INSTRUCTION_WORDS,
    LINE_BYTES,
    N_KINDS,
    PHASE_ARRIVE,
    PHASE_BIND,
    PHASE_EXIT,
    PHASE_IDLE,
    PHASE_RUN,
    PHASE_START,
    PROGRAM_EXIT_BEGIN,
    PROGRAM_EXIT_END,
    PROGRAM_HOISTED,
    PROGRAM_INSTRUCTIONS,
    PROGRAM_MAX_SKEW,
    PROGRAM_N_INSTRUCTIONS,
    PROGRAM_STRIDE,
    PROGRAM_WAITS,
    REFERENCE_ORDINARY,
    SIGNATURE_REFUSED,
    WAIT,
    WAIT_LAG,
    WAIT_PEER,
    WAIT_POSITION,
    WAIT_WORDS,
)
from multiring.kernels.waiting import get, put, signal, wait_for
from multiring.kernels.wire import begin_wire, message, must_hand_over

__all__ = ["advance", "announce", "run"]


@register_jitable
def start(context: int, call: int) -> int:
    """Publish the call, after the first copies of an eager plan."""
    code = settle(context, call)
    if code != DONE:
        return code
    epoch = get(context, CONTEXT_EPOCH) + 1
    put(call, CALL_EPOCH, epoch)
    put(call, CALL_DONE, 0)
    put(call, CALL_LOOP, 0)
    put(call, CALL_INSTRUCTION, 0)
    begin_wire(call)
    x = REFERENCE_ORDINARY
    out = REFERENCE_ORDINARY
    if get(call, CALL_EAGER) != 0:
        program = get(call, CALL_PROGRAMS)
        put(call, CALL_PROGRAM, program)
        bind_own(context, call)
        for index in range(get(program, PROGRAM_HOISTED)):
            execute(context, call, program, index, 0)
        put(call, CALL_INSTRUCTION, get(program, PROGRAM_HOISTED))
    else:
        put(call, CALL_PROGRAM, 0)
        x = reference(context, get(call, CALL_X), get(call, CALL_X_BYTES))
        out = reference(context, get(call, CALL_OUT), get(call, CALL_OUT_BYTES))
    put(call, CALL_X_REFERENCE, x)
    put(call, CALL_OUT_REFERENCE, out)
    publish(context, get(call, CALL_COUNT), get(call, CALL_SIGNATURE), x, out)
    put(call, CALL_PHASE, PHASE_ARRIVE)
    return DONE


@register_jitable
def run_program(context: int, call: int) -> int:
    """Run the instructions of all slices, from where the call record stands."""
    program = get(call, CALL_PROGRAM)
    n_instructions = get(program, PROGRAM_N_INSTRUCTIONS)
    stride = get(program, PROGRAM_STRIDE)
    base = get(context, CONTEXT_BASE)
    progress = get(context, CONTEXT_PROGRESS)
    mine = progress + LINE_BYTES * get(context, CONTEXT_RANK)
    n_slices = get(call, CALL_N_SLICES)
    n_loops = n_slices + get(program, PROGRAM_MAX_SKEW)
    loop = get(call, CALL_LOOP)
    index = get(call, CALL_INSTRUCTION)
    while loop < n_loops:
        while index < n_instructions:
            instruction = program + 8 * (get(program, PROGRAM_INSTRUCTIONS) + index * INSTRUCTION_WORDS)
            piece = loop - get(instruction, INSTRUCTION_SKEW)
            if 0 <= piece < n_slices:
                put(call, CALL_LOOP, loop)
                put(call, CALL_INSTRUCTION, index)
                if must_hand_over(call, instruction):
                    return WAIT
                wait = program + 8 * (
                    get(program, PROGRAM_WAITS) + get(instruction, INSTRUCTION_WAIT_BEGIN) * WAIT_WORDS
                )
                n_waits = get(instruction, INSTRUCTION_WAIT_END) - get(instruction, INSTRUCTION_WAIT_BEGIN)
                for _ in range(n_waits):
                    awaited = piece - get(wait, WAIT_LAG)
                    if awaited >= 0:
                        peer = get(wait, WAIT_PEER)
                        target = base + awaited * stride + get(wait, WAIT_POSITION)
                        code = wait_for(context, call, progress + LINE_BYTES * peer, target, peer)
                        if code != DONE:
                            return code
                    wait += 8 * WAIT_WORDS
                if get(instruction, INSTRUCTION_KIND) < N_KINDS:
                    code = execute(context, call, program, index, piece)
                else:
                    code = message(context, call, program, instruction, piece)
                if code != DONE:
                    return code
                if get(instruction, INSTRUCTION_POST) != 0:
                    signal(context, mine, base + loop * stride + index + 1)
            index += 1
        index = 0
        loop += 1
    put(call, CALL_PHASE, PHASE_EXIT)
    return DONE


@register_jitable
def leave(context: int, call: int) -> int:
    """Wait until no peer touches this rank's arrays any more, and close the books of the call."""
    program = get(call, CALL_PROGRAM)
    stride = get(program, PROGRAM_STRIDE)
    base = get(context, CONTEXT_BASE)
    n_slices = get(call, CALL_N_SLICES)
    first = get(program, PROGRAM_EXIT_BEGIN)
    wait = program + 8 * (get(program, PROGRAM_WAITS) + first * WAIT_WORDS)
    if n_slices > 0:
        for _ in range(get(program, PROGRAM_EXIT_END) - first):
            peer = get(wait, WAIT_PEER)
            target = base + (n_slices - 1) * stride + get(wait, WAIT_POSITION)
            code = wait_for(context, call, get(context, CONTEXT_PROGRESS) + LINE_BYTES * peer, target, peer)
            if code != DONE:
                return code
            wait += 8 * WAIT_WORDS
    put(context, CONTEXT_BASE, base + (n_slices + get(program, PROGRAM_MAX_SKEW)) * stride)
    put(call, CALL_PHASE, PHASE_IDLE)
    return DONE


@register_jitable
def go_on(context: int, call: int) -> int:
    """Run the phases of a call from where it stands."""
    code = DONE
    if get(call, CALL_PHASE) == PHASE_START:
        code = start(context, call)
    if code == DONE and get(call, CALL_PHASE) == PHASE_ARRIVE:
        code = arrive(context, call)
    if code == DONE and get(call, CALL_PHASE) == PHASE_BIND:
        code = bind(context, call)
    if code == DONE and get(call, CALL_PHASE) == PHASE_RUN:
        code = run_program(context, call)
    if code == DONE and get(call, CALL_PHASE) == PHASE_EXIT:
        code = leave(context, call)
    return code


@register_jitable
def advance(call: int) -> int:
    """Go on with a call.

    Parameters
    ----------
    call : int
        Address of a call record.

    Returns
    -------
    int
        DONE; WAIT (call again: nothing is lost); ABORTED, MISMATCH; ATTACH (map segment CALL_SEGMENT of rank CALL_PEER,
        then call again); LOWER (enter the program of CALL_VARIANT, then call again).
    """
    context = get(call, CALL_CONTEXT)
    put(call, CALL_ENTERED_NS, 0)
    control = set_float_control()
    code = go_on(context, call)
    restore_float_control(control)
    return code


@register_jitable
def run(call: int, x: int, out: int) -> int:
    """Begin a call on two arrays; see :func:`advance`."""
    put(call, CALL_X, x)
    put(call, CALL_OUT, out)
    put(call, CALL_PHASE, PHASE_START)
    put(call, CALL_DEADLINE_NS, 0)
    return advance(call)


@register_jitable
def announce(call: int, signature: int) -> int:
    """Publish a refusal or a closing as this rank's next call, and do not wait for the others."""
    context = get(call, CALL_CONTEXT)
    put(call, CALL_ENTERED_NS, 0)
    code = settle(context, call)
    if code == DONE:
        publish(context, 0, signature, REFERENCE_ORDINARY, REFERENCE_ORDINARY)
        if signature == SIGNATURE_REFUSED:
            put(context, CONTEXT_PENDING, 1)
    return code
