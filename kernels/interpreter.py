"""The interpreter of step tables: one collective call of one rank, resumable.

It knows no algorithm: it copies, reduces and waits as the program says (see :mod:`multiring.kernels.records` for the
records and ``collectives/drivers/DESIGN.md`` for the protocol).
"""

from __future__ import annotations

from numba.extending import register_jitable

from multiring.kernels.primitives import (
    call_span,
    clock_ns,
    copy_bytes,
    load_relaxed,
    load_word,
    restore_float_control,
    set_float_control,
    store_relaxed,
    store_word,
)
from multiring.kernels.records import (
    ABORTED,
    ARRIVAL_COUNT,
    ARRIVAL_INLINE_BYTES,
    ARRIVAL_INLINE_ROOM,
    ARRIVAL_OUT,
    ARRIVAL_PAYLOAD_BYTES,
    ARRIVAL_SIGNATURE,
    ARRIVAL_X,
    ATTACH,
    CALL_BASES,
    CALL_BLOCK,
    CALL_CHUNKS,
    CALL_CONTEXT,
    CALL_COUNT,
    CALL_DEADLINE_NS,
    CALL_DONE,
    CALL_EAGER,
    CALL_ENTERED_NS,
    CALL_EPOCH,
    CALL_INSTRUCTION,
    CALL_KINDS,
    CALL_LONGEST_CHUNK,
    CALL_LOOP,
    CALL_N_CALLS,
    CALL_N_SLICES,
    CALL_OPERANDS,
    CALL_OUT,
    CALL_OUT_BYTES,
    CALL_OUT_REFERENCE,
    CALL_PARAMETERS,
    CALL_PEER,
    CALL_PHASE,
    CALL_PLACE_BYTES,
    CALL_PROGRAM,
    CALL_PROGRAMS,
    CALL_SEGMENT,
    CALL_SIGNATURE,
    CALL_SLICE,
    CALL_STREAM,
    CALL_VARIANT,
    CALL_WIRE_BYTES,
    CALL_X,
    CALL_X_BYTES,
    CALL_X_REFERENCE,
    CONTEXT_BASE,
    CONTEXT_CONTROL,
    CONTEXT_EPOCH,
    CONTEXT_HEAP,
    CONTEXT_N_SLOTS,
    CONTEXT_PATIENCE_NS,
    CONTEXT_PEERS,
    CONTEXT_PENDING,
    CONTEXT_PROGRESS,
    CONTEXT_RANK,
    CONTEXT_SIZE,
    CONTEXT_SLOT_BYTES,
    CONTEXT_SLOTS,
    CONTROL_ABORT,
    DONE,
    INSTRUCTION_CHUNK,
    INSTRUCTION_DESTINATION_END,
    INSTRUCTION_KIND,
    INSTRUCTION_POST,
    INSTRUCTION_SKEW,
    INSTRUCTION_SOURCE_BEGIN,
    INSTRUCTION_SOURCE_END,
    INSTRUCTION_WAIT_BEGIN,
    INSTRUCTION_WAIT_END,
    INSTRUCTION_WORDS,
    KIND_REDUCE,
    KIND_REDUCE_FINAL,
    KIND_WORDS,
    LINE_BYTES,
    LOWER,
    MISMATCH,
    OPERAND_PLACE,
    OPERAND_RANK,
    OPERAND_SPACE,
    OPERAND_WORDS,
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
    PROGRAM_N_PLACES,
    PROGRAM_N_TOUCHED,
    PROGRAM_OPERANDS,
    PROGRAM_STRIDE,
    PROGRAM_TOUCHED,
    PROGRAM_WAITS,
    REFERENCE_ABSENT,
    REFERENCE_ORDINARY,
    REFERENCE_SHIFT,
    SIGNATURE_REFUSED,
    SPACE_OUT,
    SPACE_SLOT,
    SPACE_X,
    VARIANT_OUT,
    VARIANT_X,
    WAIT,
    WAIT_LAG,
    WAIT_PEER,
    WAIT_POSITION,
    WAIT_WORDS,
)
from multiring.kernels.waiting import arrival_line, delay, get, put, signal, wait_for

__all__ = ["advance", "announce", "run"]

BLOCKS_BETWEEN_CLOCKS = 64


# --- arrival --------------------------------------------------------------------------------------------------------


@register_jitable
def reference(context: int, address: int, n_bytes: int) -> int:
    """Return (segment, offset) of an array in this process's heap as one word, or a REFERENCE constant."""
    if n_bytes < 0:
        return REFERENCE_ABSENT
    heap = get(context, CONTEXT_HEAP)
    for segment in range(load_word(heap)):
        start = load_word(heap + 8 + 16 * segment)
        if start <= address and address + n_bytes <= start + load_word(heap + 16 + 16 * segment):
            return (segment << REFERENCE_SHIFT) | (address - start)
    return REFERENCE_ORDINARY


@register_jitable
def settle(context: int, call: int) -> int:
    """Finish a refused call: if all ranks refused it, nothing happened."""
    if get(context, CONTEXT_PENDING) == 0:
        return DONE
    epoch = get(context, CONTEXT_EPOCH)
    put(call, CALL_EPOCH, epoch)
    verdict = DONE
    # All lines, also after one that differs: the error tells what each rank called.
    for rank in range(get(context, CONTEXT_SIZE)):
        line = arrival_line(context, epoch, rank)
        code = wait_for(context, call, line, epoch, rank)
        if code != DONE:
            return code
        if load_relaxed(line + 8 * ARRIVAL_SIGNATURE) != SIGNATURE_REFUSED:
            verdict = MISMATCH
    if verdict == DONE:
        put(context, CONTEXT_PENDING, 0)
    return verdict


@register_jitable
def publish(context: int, count: int, signature: int, x: int, out: int) -> int:
    """Write this rank's line of its next call; return the call's epoch."""
    epoch = get(context, CONTEXT_EPOCH) + 1
    put(context, CONTEXT_EPOCH, epoch)
    line = arrival_line(context, epoch, get(context, CONTEXT_RANK))
    store_relaxed(line + 8 * ARRIVAL_COUNT, count)
    store_relaxed(line + 8 * ARRIVAL_SIGNATURE, signature)
    store_relaxed(line + 8 * ARRIVAL_X, x)
    store_relaxed(line + 8 * ARRIVAL_OUT, out)
    signal(context, line, epoch)
    return epoch


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
def arrive(context: int, call: int) -> int:
    """Wait for all ranks' lines and compare them: all ranks reach the same verdict."""
    epoch = get(call, CALL_EPOCH)
    size = get(context, CONTEXT_SIZE)
    me = get(context, CONTEXT_RANK)
    count = get(call, CALL_COUNT)
    signature = get(call, CALL_SIGNATURE)
    verdict = DONE
    variant = VARIANT_X | VARIANT_OUT
    for index in range(size):
        rank = me + index
        if rank >= size:
            rank -= size
        line = arrival_line(context, epoch, rank)
        code = wait_for(context, call, line, epoch, rank)
        if code != DONE:
            return code
        if load_relaxed(line + 8 * ARRIVAL_COUNT) != count or load_relaxed(line + 8 * ARRIVAL_SIGNATURE) != signature:
            verdict = MISMATCH
        if load_relaxed(line + 8 * ARRIVAL_X) == REFERENCE_ORDINARY:
            variant &= ~VARIANT_X
        if load_relaxed(line + 8 * ARRIVAL_OUT) == REFERENCE_ORDINARY:
            variant &= ~VARIANT_OUT
    put(call, CALL_VARIANT, variant)
    put(call, CALL_PHASE, PHASE_BIND)
    return verdict


# --- binding --------------------------------------------------------------------------------------------------------


@register_jitable
def bind_own(context: int, call: int) -> None:
    """Enter this rank's arrays, and cut the chunks into slices."""
    size = get(context, CONTEXT_SIZE)
    me = get(context, CONTEXT_RANK)
    bases = get(call, CALL_BASES)
    store_word(bases + 8 * me, get(call, CALL_X))
    store_word(bases + 8 * (size + me), get(call, CALL_OUT))
    program = get(call, CALL_PROGRAM)
    longest = get(call, CALL_LONGEST_CHUNK)
    n_places = get(program, PROGRAM_N_PLACES)
    wire_bytes = get(call, CALL_WIRE_BYTES)
    piece = longest
    place_bytes = (longest * wire_bytes + 7) & ~7
    if get(call, CALL_EAGER) == 0 and n_places > 0:
        piece = get(context, CONTEXT_SLOT_BYTES) // (n_places * wire_bytes)
        if piece >= 64:
            piece &= ~63
        place_bytes = piece * wire_bytes
    put(call, CALL_SLICE, piece)
    put(call, CALL_PLACE_BYTES, place_bytes)
    n_slices = 0
    if longest > 0:
        n_slices = 1 if longest <= piece else (longest + piece - 1) // piece
    put(call, CALL_N_SLICES, n_slices)


@register_jitable
def bind_peer(context: int, call: int, rank: int, reference_field: int, slot: int) -> int:
    """Enter the address of a peer's symmetric array in this process."""
    line = arrival_line(context, get(call, CALL_EPOCH), rank)
    where = load_relaxed(line + 8 * reference_field)
    if where < 0:
        return DONE
    segment = where >> REFERENCE_SHIFT
    table = load_word(get(context, CONTEXT_PEERS) + 8 * rank)
    base = load_word(table + 8 * segment)
    if base == 0:
        put(call, CALL_PEER, rank)
        put(call, CALL_SEGMENT, segment)
        return ATTACH
    offset = where & ((1 << REFERENCE_SHIFT) - 1)
    store_word(get(call, CALL_BASES) + 8 * slot, base + offset)
    return DONE


@register_jitable
def bind(context: int, call: int) -> int:
    """Pick the variant's program and find the arrays that it touches."""
    if get(call, CALL_EAGER) == 0:
        variant = get(call, CALL_VARIANT)
        program = load_word(call + 8 * (CALL_PROGRAMS + variant))
        if program == 0:
            return LOWER
        put(call, CALL_PROGRAM, program)
        size = get(context, CONTEXT_SIZE)
        # Only what this rank's program touches: other peers may have done their part, left, and ended.
        touched = program + 8 * get(program, PROGRAM_TOUCHED)
        for _ in range(get(program, PROGRAM_N_TOUCHED)):
            rank = load_word(touched + 8)
            if load_word(touched) == SPACE_X:
                code = bind_peer(context, call, rank, ARRIVAL_X, rank)
            else:
                code = bind_peer(context, call, rank, ARRIVAL_OUT, size + rank)
            if code != DONE:
                return code
            touched += 16
        bind_own(context, call)
    put(call, CALL_PHASE, PHASE_RUN)
    return DONE


# --- running --------------------------------------------------------------------------------------------------------


@register_jitable
def operand_address(context: int, call: int, operand: int, chunk: int, piece: int) -> int:
    """Return the address of a slice of a chunk in one rank's input, output or slot.

    ::

        slots of rank r:  | slot 0          | slot 1          | ... slot K-1 |
        a slot:           | place 0 | place 1 | ...                          |    slice t lies in slot t mod K
    """
    space = get(operand, OPERAND_SPACE)
    rank = get(operand, OPERAND_RANK)
    if space == SPACE_SLOT:
        place_bytes = get(call, CALL_PLACE_BYTES)
        offset = get(operand, OPERAND_PLACE) * place_bytes
        if get(call, CALL_EAGER) != 0:
            line = arrival_line(context, get(call, CALL_EPOCH), rank)
            n_places = get(get(call, CALL_PROGRAM), PROGRAM_N_PLACES)
            if n_places * place_bytes <= ARRIVAL_INLINE_ROOM:
                return line + ARRIVAL_INLINE_BYTES + offset
            return line + ARRIVAL_PAYLOAD_BYTES + offset
        n_slots = get(context, CONTEXT_N_SLOTS)
        slot = rank * n_slots + piece % n_slots
        return get(context, CONTEXT_SLOTS) + slot * get(context, CONTEXT_SLOT_BYTES) + offset
    bases = get(call, CALL_BASES)
    if space == SPACE_OUT:
        rank += get(context, CONTEXT_SIZE)
    element = load_word(chunk + 8 * space) + piece * get(call, CALL_SLICE)
    return load_word(bases + 8 * rank) + element * get(call, CALL_KINDS + 1)


@register_jitable
def execute(context: int, call: int, program: int, index: int, piece: int) -> int:
    """Run one instruction on one slice."""
    instruction = program + 8 * (get(program, PROGRAM_INSTRUCTIONS) + index * INSTRUCTION_WORDS)
    chunk = get(call, CALL_CHUNKS) + 24 * get(instruction, INSTRUCTION_CHUNK)
    length = min(get(call, CALL_SLICE), load_word(chunk + 16) - piece * get(call, CALL_SLICE))
    if length <= 0:
        return DONE
    kind_number = get(instruction, INSTRUCTION_KIND)
    kind = call + 8 * (CALL_KINDS + KIND_WORDS * kind_number)
    span = load_word(kind)
    source_bytes = load_word(kind + 8)
    destination_bytes = load_word(kind + 16)
    first = get(instruction, INSTRUCTION_SOURCE_BEGIN)
    n_sources = get(instruction, INSTRUCTION_SOURCE_END) - first
    n_operands = get(instruction, INSTRUCTION_DESTINATION_END) - first
    addresses = get(call, CALL_OPERANDS)
    operand = program + 8 * (get(program, PROGRAM_OPERANDS) + first * OPERAND_WORDS)
    done = get(call, CALL_DONE)
    for k in range(n_operands):
        step_bytes = source_bytes if k < n_sources else destination_bytes
        address = operand_address(context, call, operand + 8 * OPERAND_WORDS * k, chunk, piece)
        store_word(addresses + 8 * k, address + done * step_bytes)
    destinations = addresses + 8 * n_sources
    n_destinations = n_operands - n_sources
    if get(call, CALL_STREAM) != 0 and get(operand + 8 * OPERAND_WORDS * n_sources, OPERAND_SPACE) == SPACE_OUT:
        # A slot is read again at once and stays in the cache; so does an output that was the input.
        in_place = get(call, CALL_X) == get(call, CALL_OUT)
        reduces = kind_number in (KIND_REDUCE, KIND_REDUCE_FINAL)
        if load_word(kind + 24) != 0 and not (in_place and reduces):
            span = load_word(kind + 24)
    abort = get(context, CONTEXT_CONTROL) + CONTROL_ABORT
    blocks = 0
    while True:
        if load_relaxed(abort) != 0:
            return ABORTED
        delay(context)
        count = min(get(call, CALL_BLOCK), length - done)
        if span == 0:
            source = load_word(addresses)
            for k in range(n_destinations):
                destination = load_word(destinations + 8 * k)
                if destination != source:
                    copy_bytes(destination, source, count * source_bytes)
        else:
            call_span(span, addresses, n_sources, destinations, n_destinations, count, get(call, CALL_PARAMETERS))
        done += count
        if done >= length:
            put(call, CALL_DONE, 0)
            return DONE
        for k in range(n_operands):
            step_bytes = source_bytes if k < n_sources else destination_bytes
            store_word(addresses + 8 * k, load_word(addresses + 8 * k) + count * step_bytes)
        blocks += 1
        if blocks % BLOCKS_BETWEEN_CLOCKS == 0 and out_of_patience(context, call):
            put(call, CALL_DONE, done)
            return WAIT


@register_jitable
def out_of_patience(context: int, call: int) -> bool:
    """Whether this native call has run for long enough to let Python look at its signals."""
    patience = get(context, CONTEXT_PATIENCE_NS)
    if patience == 0:
        return False
    now = clock_ns()
    if get(call, CALL_ENTERED_NS) == 0:
        put(call, CALL_ENTERED_NS, now)
    return now - get(call, CALL_ENTERED_NS) > patience


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
                code = execute(context, call, program, index, piece)
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
    put(call, CALL_N_CALLS, get(call, CALL_N_CALLS) + 1)
    put(call, CALL_PHASE, PHASE_IDLE)
    return DONE


# --- entries --------------------------------------------------------------------------------------------------------


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
