"""One instruction on one slice: where its operands lie, and the blocks that it moves or reduces."""

from __future__ import annotations

from numba.extending import register_jitable

from multiring.kernels.primitives import call_span, clock_ns, copy_bytes, load_relaxed, load_word, store_word
from multiring.kernels.records import (
    ABORTED,
    ARRIVAL_INLINE_BYTES,
    ARRIVAL_INLINE_ROOM,
    ARRIVAL_OUT,
    ARRIVAL_PAYLOAD_BYTES,
    ARRIVAL_X,
    ATTACH,
    CALL_BASES,
    CALL_BLOCK,
    CALL_CHUNKS,
    CALL_DEVICE,
    CALL_DONE,
    CALL_EAGER,
    CALL_ENTERED_NS,
    CALL_EPOCH,
    CALL_KINDS,
    CALL_LAUNCHED,
    CALL_LONGEST_CHUNK,
    CALL_N_SLICES,
    CALL_OPERANDS,
    CALL_OUT,
    CALL_PARAMETERS,
    CALL_PEER,
    CALL_PHASE,
    CALL_PLACE_BYTES,
    CALL_PROGRAM,
    CALL_PROGRAMS,
    CALL_SEGMENT,
    CALL_SLICE,
    CALL_STREAM,
    CALL_VARIANT,
    CALL_WIRE,
    CALL_WIRE_BYTES,
    CALL_X,
    CONTEXT_CONTROL,
    CONTEXT_N_SLOTS,
    CONTEXT_PATIENCE_NS,
    CONTEXT_PEERS,
    CONTEXT_RANK,
    CONTEXT_SIZE,
    CONTEXT_SLOT_BYTES,
    CONTEXT_SLOTS,
    CONTROL_ABORT,
    DONE,
    INSTRUCTION_CHUNK,
    INSTRUCTION_DESTINATION_END,
    INSTRUCTION_KIND,
    INSTRUCTION_SOURCE_BEGIN,
    INSTRUCTION_SOURCE_END,
    INSTRUCTION_WORDS,
    KIND_REDUCE,
    KIND_REDUCE_FINAL,
    KIND_WORDS,
    LAUNCH,
    LAUNCHED_PENDING,
    LAUNCHED_THIS,
    LOWER,
    OPERAND_PLACE,
    OPERAND_RANK,
    OPERAND_SPACE,
    OPERAND_WORDS,
    PHASE_RUN,
    PROGRAM_INSTRUCTIONS,
    PROGRAM_N_PLACES,
    PROGRAM_N_TOUCHED,
    PROGRAM_OPERANDS,
    PROGRAM_TOUCHED,
    REFERENCE_SHIFT,
    SPACE_OUT,
    SPACE_SLOT,
    SPACE_X,
    WAIT,
)
from multiring.kernels.waiting import arrival_line, delay, get, put

__all__ = ["bind", "bind_own", "carry_out", "execute", "operand_address"]


BLOCKS_BETWEEN_CLOCKS = 64
FAR_SLICES = 8
FAR_SLICE_BYTES = 16 << 10
"""What goes to other nodes is cut into so many slices at least, but not into smaller ones."""


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
        slot_bytes = get(call, CALL_DEVICE)
        if slot_bytes == 0:
            slot_bytes = get(context, CONTEXT_SLOT_BYTES)
        piece = slot_bytes // (n_places * wire_bytes)
        if get(call, CALL_WIRE) != 0:
            # Also what fits a slot is cut: the network then works while a node adds.
            piece = min(piece, max(longest // FAR_SLICES, FAR_SLICE_BYTES // wire_bytes))
        if piece >= 64:
            piece &= ~63
        place_bytes = piece * wire_bytes
    put(call, CALL_SLICE, piece)
    put(call, CALL_PLACE_BYTES, place_bytes)
    n_slices = 0
    if longest > 0 or get(call, CALL_WIRE) != 0:
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
def launch(context: int, call: int, program: int, index: int, piece: int) -> int:
    """Let Python launch the kernel of one instruction on one slice: LAUNCH at first, DONE when it is called again."""
    state = get(call, CALL_LAUNCHED)
    if state & LAUNCHED_THIS != 0:
        put(call, CALL_LAUNCHED, state & ~LAUNCHED_THIS)
        return DONE
    if load_relaxed(get(context, CONTEXT_CONTROL) + CONTROL_ABORT) != 0:
        return ABORTED
    instruction = program + 8 * (get(program, PROGRAM_INSTRUCTIONS) + index * INSTRUCTION_WORDS)
    chunk = get(call, CALL_CHUNKS) + 24 * get(instruction, INSTRUCTION_CHUNK)
    if load_word(chunk + 16) - piece * get(call, CALL_SLICE) <= 0:
        return DONE
    delay(context)
    put(call, CALL_LAUNCHED, LAUNCHED_THIS | LAUNCHED_PENDING)
    return LAUNCH


@register_jitable
def carry_out(context: int, call: int, program: int, index: int, piece: int) -> int:
    """Run one instruction on one slice, here or on the device."""
    if get(call, CALL_DEVICE) != 0:
        return launch(context, call, program, index, piece)
    return execute(context, call, program, index, piece)
