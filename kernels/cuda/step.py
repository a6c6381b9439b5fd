"""The executor's kernels: one collective in one launch, or one instruction in one launch.

*Fused*: a rank's blocks are channels. Each announces the call to its peers' blocks of the same number, compares what
they announce, and runs its part of the program: wait, copy or reduce, post. Channels do not wait for each other, so a
launch needs no more than that every block gets a processor in the end; launch it with no more blocks than are
resident, or cooperatively, and one at a time on a GPU. The epoch and the position are kept in device memory, so a
captured graph can be replayed.

*Stepped*: the host waits and posts, and a launch is one instruction on one slice, with all blocks on it. For GPUs
that several ranks share, whose kernels may not run at the same time.
"""

from __future__ import annotations

from collections.abc import Callable

from multiring.kernels.cuda.homes import device
from multiring.kernels.cuda.parts import StepSpec, instruction_address, make_part
from multiring.kernels.cuda.ptx import (
    all_threads,
    barrier,
    block_index,
    n_blocks,
    release_fence,
    thread_index,
)
from multiring.kernels.cuda.records import (
    ARRIVAL_BYTES,
    ARRIVAL_COUNT,
    ARRIVAL_OUT,
    ARRIVAL_SEQUENCE,
    ARRIVAL_SIGNATURE,
    ARRIVAL_X,
    CALL_BASES,
    CALL_CONTEXT,
    CALL_COUNT,
    CALL_OPERAND_WORDS,
    CALL_OPERANDS,
    CALL_OUT,
    CALL_OUT_REFERENCE,
    CALL_SIGNATURE,
    CALL_VARIANTS,
    CALL_X,
    CALL_X_REFERENCE,
    DEVICE_BLOCK_SHIFT,
    DEVICE_BLOCKS,
    DEVICE_INBOX,
    DEVICE_INBOXES,
    DEVICE_PROGRESS,
    DEVICE_PROGRESSES,
    DEVICE_RANK,
    DEVICE_SEGMENTS,
    DEVICE_SIZE,
    DEVICE_STATE,
    LINE_BYTES,
    REASON_NO_PROGRAM,
    REASON_NOT_MAPPED,
    STATE_BASE,
    STATE_EPOCH,
    VARIANT_N_SLICES,
    VARIANT_PROGRAM,
    VARIANT_WORDS,
)
from multiring.kernels.cuda.signals import aborted, fail, get, wait_for
from multiring.kernels.primitives import load_relaxed, load_word, store_relaxed, store_word
from multiring.kernels.records import (
    ABORT_MISMATCH,
    INSTRUCTION_POST,
    INSTRUCTION_SKEW,
    INSTRUCTION_WAIT_BEGIN,
    INSTRUCTION_WAIT_END,
    PROGRAM_EXIT_BEGIN,
    PROGRAM_EXIT_END,
    PROGRAM_MAX_SKEW,
    PROGRAM_N_INSTRUCTIONS,
    PROGRAM_STRIDE,
    PROGRAM_WAITS,
    REFERENCE_SHIFT,
    WAIT_LAG,
    WAIT_PEER,
    WAIT_POSITION,
    WAIT_WORDS,
)

__all__ = ["make_fused", "make_stepped"]


@device
def line_of(area: int, context: int, epoch: int, block: int, rank: int) -> int:
    """Return the address of a rank's arrival line in an inbox."""
    row = (epoch & 1) * get(context, DEVICE_BLOCKS) + block
    return area + (row * get(context, DEVICE_SIZE) + rank) * ARRIVAL_BYTES


@device
def announce(context: int, call: int, epoch: int, block: int, thread: int, threads: int) -> None:
    """Write this rank's line into every inbox, its own too."""
    me = get(context, DEVICE_RANK)
    rank = thread
    while rank < get(context, DEVICE_SIZE):
        line = line_of(load_word(get(context, DEVICE_INBOXES) + 8 * rank), context, epoch, block, me)
        store_relaxed(line + 8 * ARRIVAL_COUNT, get(call, CALL_COUNT))
        store_relaxed(line + 8 * ARRIVAL_SIGNATURE, get(call, CALL_SIGNATURE))
        store_relaxed(line + 8 * ARRIVAL_X, get(call, CALL_X_REFERENCE))
        store_relaxed(line + 8 * ARRIVAL_OUT, get(call, CALL_OUT_REFERENCE))
        release_fence()
        store_relaxed(line + 8 * ARRIVAL_SEQUENCE, epoch)
        rank += threads


@device
def arrive(context: int, call: int, epoch: int, block: int, thread: int, threads: int) -> int:
    """Wait for the lines of this thread's ranks and compare them; return 0 if that ends the call.

    Returns
    -------
    int
        Bit 0: all arrived and agree. Bits 1 and 2: their inputs, and outputs, are symmetric.
    """
    found = 7
    rank = thread
    while rank < get(context, DEVICE_SIZE):
        line = line_of(get(context, DEVICE_INBOX), context, epoch, block, rank)
        if wait_for(context, line + 8 * ARRIVAL_SEQUENCE, epoch, rank, epoch, -1, 0) == 0:
            return 0
        count, signature = load_relaxed(line + 8 * ARRIVAL_COUNT), load_relaxed(line + 8 * ARRIVAL_SIGNATURE)
        if count != get(call, CALL_COUNT) or signature != get(call, CALL_SIGNATURE):
            fail(context, ABORT_MISMATCH, rank, epoch, -1, 0)
            return 0
        # Absent arrays (-2) stand in nobody's way; ordinary ones (-1) cannot be reached.
        if load_relaxed(line + 8 * ARRIVAL_X) == -1:
            found &= ~2
        if load_relaxed(line + 8 * ARRIVAL_OUT) == -1:
            found &= ~4
        rank += threads
    return found


@device
def base_of(context: int, reference: int, rank: int, epoch: int) -> int:
    """Return the address of a peer's array as it is mapped here; 0 if it has none."""
    if reference < 0:
        return 0
    segments = load_word(get(context, DEVICE_SEGMENTS) + 8 * rank)
    base = load_word(segments + 8 * (reference >> REFERENCE_SHIFT))
    if base == 0:
        fail(context, REASON_NOT_MAPPED, rank, epoch, -1, 0)
    return base + (reference & ((1 << REFERENCE_SHIFT) - 1))


@device
def bind(context: int, call: int, bases: int, epoch: int, block: int, thread: int, threads: int) -> None:
    """Enter the addresses of all ranks' arrays."""
    size = get(context, DEVICE_SIZE)
    rank = thread
    while rank < size:
        x = get(call, CALL_X)
        out = get(call, CALL_OUT)
        if rank != get(context, DEVICE_RANK):
            line = line_of(get(context, DEVICE_INBOX), context, epoch, block, rank)
            x = base_of(context, load_relaxed(line + 8 * ARRIVAL_X), rank, epoch)
            out = base_of(context, load_relaxed(line + 8 * ARRIVAL_OUT), rank, epoch)
        store_word(bases + 8 * rank, x)
        store_word(bases + 8 * (size + rank), out)
        rank += threads


@device
def waits_done(
    context: int,
    program: int,
    begin: int,
    end: int,
    base: int,
    piece: int,
    epoch: int,
    index: int,
    block: int,
    thread: int,
    threads: int,
) -> int:
    """Wait for this thread's share of an instruction's waits; return 0 if that ends the call."""
    size = get(context, DEVICE_SIZE)
    stride = get(program, PROGRAM_STRIDE)
    k = begin + thread
    while k < end:
        wait = program + 8 * (get(program, PROGRAM_WAITS) + k * WAIT_WORDS)
        awaited = piece - get(wait, WAIT_LAG)
        if awaited >= 0:
            peer = get(wait, WAIT_PEER)
            word = get(context, DEVICE_PROGRESS) + (block * size + peer) * LINE_BYTES
            target = base + awaited * stride + get(wait, WAIT_POSITION)
            if wait_for(context, word, target, peer, epoch, index, piece) == 0:
                return 0
        k += threads
    if thread == 0 and aborted(context):
        return 0
    return 1


@device
def post(context: int, position: int, block: int, thread: int, threads: int) -> None:
    """Tell every peer's block of this number how far this one is; after a barrier."""
    size = get(context, DEVICE_SIZE)
    me = get(context, DEVICE_RANK)
    rank = thread
    if rank < size:
        release_fence()
    while rank < size:
        if rank != me:
            area = load_word(get(context, DEVICE_PROGRESSES) + 8 * rank)
            store_relaxed(area + (block * size + me) * LINE_BYTES, position)
        rank += threads


def make_fused(spec: StepSpec, threads: int) -> Callable[..., None]:
    """Return the kernel that runs a whole call; its one argument is the address of the call record."""
    part = make_part(spec, threads)

    def fused(call: int) -> None:
        thread = thread_index()
        block = block_index()
        context = get(call, CALL_CONTEXT)
        state = get(context, DEVICE_STATE) + block * LINE_BYTES
        epoch = get(state, STATE_EPOCH) + 1
        base = get(state, STATE_BASE)
        bases = get(call, CALL_BASES) + block * 16 * get(context, DEVICE_SIZE)
        operands = get(call, CALL_OPERANDS) + block * 8 * get(call, CALL_OPERAND_WORDS)
        announce(context, call, epoch, block, thread, threads)
        found = arrive(context, call, epoch, block, thread, threads)
        if all_threads(found & 1) == 0:
            return
        number = all_threads(found & 2) + 2 * all_threads(found & 4)
        bind(context, call, bases, epoch, block, thread, threads)
        variant = call + 8 * (CALL_VARIANTS + number * VARIANT_WORDS)
        program = get(variant, VARIANT_PROGRAM)
        if program == 0:
            if thread == 0:
                fail(context, REASON_NO_PROGRAM, number, epoch, -1, 0)
            return
        n_slices = get(variant, VARIANT_N_SLICES)
        n_instructions = get(program, PROGRAM_N_INSTRUCTIONS)
        stride = get(program, PROGRAM_STRIDE)
        n_loops = n_slices + get(program, PROGRAM_MAX_SKEW)
        loop = 0
        while loop < n_loops:
            index = 0
            while index < n_instructions:
                instruction = instruction_address(program, index)
                piece = loop - get(instruction, INSTRUCTION_SKEW)
                if 0 <= piece < n_slices:
                    begin, end = get(instruction, INSTRUCTION_WAIT_BEGIN), get(instruction, INSTRUCTION_WAIT_END)
                    good = waits_done(context, program, begin, end, base, piece, epoch, index, block, thread, threads)
                    if all_threads(good) == 0:
                        return
                    shift = get(context, DEVICE_BLOCK_SHIFT)
                    part(context, call, variant, bases, operands, index, piece, block, shift, 0, 1, thread)
                    barrier()
                    if get(instruction, INSTRUCTION_POST) != 0:
                        post(context, base + loop * stride + index + 1, block, thread, threads)
                index += 1
            loop += 1
        if n_slices > 0:
            begin, end = get(program, PROGRAM_EXIT_BEGIN), get(program, PROGRAM_EXIT_END)
            good = waits_done(
                context, program, begin, end, base, n_slices - 1, epoch, n_instructions, block, thread, threads
            )
            if all_threads(good) == 0:
                return
        if thread == 0:
            store_word(state + 8 * STATE_EPOCH, epoch)
            store_word(state + 8 * STATE_BASE, base + n_loops * stride)

    return fused


def make_stepped(spec: StepSpec, threads: int) -> Callable[..., None]:
    """Return the kernel that runs one instruction on one slice.

    Its arguments are int64: the call record, the variant's number, the instruction and the slice. The host has done
    the waits, has entered the arrays in the first ``2 P`` words of CALL_BASES, and posts afterwards.
    """
    part = make_part(spec, threads)

    def stepped(call: int, number: int, index: int, piece: int) -> None:
        block = block_index()
        context = get(call, CALL_CONTEXT)
        variant = call + 8 * (CALL_VARIANTS + number * VARIANT_WORDS)
        operands = get(call, CALL_OPERANDS) + block * 8 * get(call, CALL_OPERAND_WORDS)
        bases = get(call, CALL_BASES)
        part(context, call, variant, bases, operands, index, piece, 0, 0, block, n_blocks(), thread_index())

    return stepped
