"""The waiting protocol: how one rank waits for a word of another, and what it looks at meanwhile.

The protocol's reasons are in ``collectives/drivers/DESIGN.md``.
"""

from __future__ import annotations

from numba.extending import register_jitable

from multiring.kernels.primitives import (
    add_word,
    clock_ns,
    compare_and_swap,
    exchange_word,
    futex_wait,
    futex_wake,
    load_acquire,
    load_relaxed,
    load_word,
    pause,
    poll_descriptors,
    store_relaxed,
    store_word,
    yield_processor,
)
from multiring.kernels.records import (
    ABORT_CULPRIT_SHIFT,
    ABORT_EPOCH_MASK,
    ABORT_PEER_LOST,
    ABORT_RANK_MASK,
    ABORT_REASON_SHIFT,
    ABORT_REPORTER_SHIFT,
    ABORT_TIMEOUT,
    ABORTED,
    CALL_COUNT,
    CALL_DEADLINE_NS,
    CALL_ENTERED_NS,
    CALL_EPOCH,
    CALL_INSTRUCTION,
    CALL_LOOP,
    CALL_PEER,
    CALL_PHASE,
    CALL_PROGRAM,
    CALL_SIGNATURE,
    CALL_TIMEOUT_NS,
    CONTEXT_ARRIVAL_STRIDE,
    CONTEXT_ARRIVALS,
    CONTEXT_CONTROL,
    CONTEXT_DELAY,
    CONTEXT_DESCRIPTORS,
    CONTEXT_PARITY_MASK,
    CONTEXT_PATIENCE_NS,
    CONTEXT_RANDOM,
    CONTEXT_RANK,
    CONTEXT_RANKS,
    CONTEXT_REPORTS,
    CONTEXT_SIZE,
    CONTEXT_SPINS,
    CONTEXT_TIMESPEC,
    CONTEXT_YIELDS,
    CONTROL_ABORT,
    CONTROL_SLEEPERS,
    CONTROL_WAKE,
    DONE,
    INSTRUCTION_CHUNK,
    INSTRUCTION_SKEW,
    INSTRUCTION_STEP,
    INSTRUCTION_WORDS,
    LINE_BYTES,
    PHASE_RUN,
    PROGRAM_INSTRUCTIONS,
    PROGRAM_N_STEPS,
    REPORT_CHUNK,
    REPORT_COUNT,
    REPORT_INSTRUCTION,
    REPORT_N_STEPS,
    REPORT_PEER,
    REPORT_PHASE,
    REPORT_SIGNATURE,
    REPORT_SLICE,
    REPORT_STEP,
    REPORT_TIMEOUT_NS,
    WAIT,
)

__all__ = [
    "arrival_line",
    "begin_waiting",
    "delay",
    "get",
    "look_around",
    "put",
    "raise_abort",
    "rank_of",
    "signal",
    "wait_for",
]

DEATH_INTERVAL_NS = 2_000_000
"""How often a waiting rank looks whether its peers live."""


@register_jitable
def get(record: int, field: int) -> int:
    """Read a word of a private record."""
    return load_word(record + 8 * field)


@register_jitable
def put(record: int, field: int, value: int) -> None:
    """Write a word of a private record."""
    store_word(record + 8 * field, value)


@register_jitable
def arrival_line(context: int, epoch: int, rank: int) -> int:
    """Return the address of a rank's arrival line of a call."""
    parity = epoch & get(context, CONTEXT_PARITY_MASK)
    index = parity * get(context, CONTEXT_SIZE) + rank
    return get(context, CONTEXT_ARRIVALS) + index * get(context, CONTEXT_ARRIVAL_STRIDE)


@register_jitable
def wake_all(control: int) -> None:
    """Wake every sleeper of the communicator."""
    add_word(control + CONTROL_WAKE, 1)
    futex_wake(control + CONTROL_WAKE)


@register_jitable
def signal(context: int, word: int, value: int) -> None:
    """Raise a word that peers wait for, after everything written before."""
    delay(context)
    exchange_word(word, value)
    control = get(context, CONTEXT_CONTROL)
    if load_relaxed(control + CONTROL_SLEEPERS) > 0:
        wake_all(control)


@register_jitable
def rank_of(context: int, member: int) -> int:
    """Return the communicator's rank of a rank of this node; one that is none stays."""
    return load_word(get(context, CONTEXT_RANKS) + 8 * member) if member >= 0 else member


@register_jitable
def report(context: int, call: int, peer: int) -> None:
    """Write down where this rank stands, for the errors of all ranks."""
    line = get(context, CONTEXT_REPORTS) + LINE_BYTES * get(context, CONTEXT_RANK)
    phase = get(call, CALL_PHASE)
    store_relaxed(line + 8 * REPORT_PHASE, phase)
    store_relaxed(line + 8 * REPORT_PEER, rank_of(context, peer))
    store_relaxed(line + 8 * REPORT_SIGNATURE, get(call, CALL_SIGNATURE))
    store_relaxed(line + 8 * REPORT_COUNT, get(call, CALL_COUNT))
    store_relaxed(line + 8 * REPORT_TIMEOUT_NS, get(call, CALL_TIMEOUT_NS))
    program = get(call, CALL_PROGRAM)
    if phase == PHASE_RUN and program != 0:
        index = get(call, CALL_INSTRUCTION)
        instruction = program + 8 * (get(program, PROGRAM_INSTRUCTIONS) + index * INSTRUCTION_WORDS)
        store_relaxed(line + 8 * REPORT_INSTRUCTION, index)
        store_relaxed(line + 8 * REPORT_SLICE, get(call, CALL_LOOP) - get(instruction, INSTRUCTION_SKEW))
        store_relaxed(line + 8 * REPORT_STEP, get(instruction, INSTRUCTION_STEP))
        store_relaxed(line + 8 * REPORT_CHUNK, get(instruction, INSTRUCTION_CHUNK))
        store_relaxed(line + 8 * REPORT_N_STEPS, get(program, PROGRAM_N_STEPS))


@register_jitable
def raise_abort(context: int, call: int, reason: int, culprit: int) -> int:
    """Close the communicator for all ranks, unless somebody already has; return ABORTED."""
    report(context, call, culprit)
    control = get(context, CONTEXT_CONTROL)
    record = (
        (reason << ABORT_REASON_SHIFT)
        | ((rank_of(context, culprit) & ABORT_RANK_MASK) << ABORT_CULPRIT_SHIFT)
        | (rank_of(context, get(context, CONTEXT_RANK)) << ABORT_REPORTER_SHIFT)
        | (get(call, CALL_EPOCH) & ABORT_EPOCH_MASK)
    )
    compare_and_swap(control + CONTROL_ABORT, 0, record)
    wake_all(control)
    return ABORTED


@register_jitable
def delay(context: int) -> None:
    """Wait a random time, in tests only."""
    chance = get(context, CONTEXT_DELAY)
    if chance == 0:
        return
    # A linear congruential generator: any spread will do, and every rank has its own seed.
    random = (get(context, CONTEXT_RANDOM) * 2862933555777941757 + 3037000493) & 0x7FFFFFFFFFFFFFFF
    put(context, CONTEXT_RANDOM, random)
    if ((random >> 40) & 0xFF) < chance:
        kind = (random >> 50) & 7
        if kind < 4:
            yield_processor()
        else:
            end = clock_ns() + ((random >> 20) & (0xFFFFF if kind == 7 else 0x3FFF))
            while clock_ns() < end:
                pause()


@register_jitable
def find_dead(context: int, call: int, peer: int) -> int:
    """Return a rank that has ended and is still needed, or -1.

    Needed is the peer that is waited for, and any that has not arrived in this call: a rank that has done its part may
    leave.
    """
    size = get(context, CONTEXT_SIZE)
    descriptors = get(context, CONTEXT_DESCRIPTORS)
    if descriptors == 0 or poll_descriptors(descriptors, size) <= 0:
        return -1
    epoch = get(call, CALL_EPOCH)
    for rank in range(size):
        ended = (load_word(descriptors + 8 * rank) >> 48) & 0xFFFF
        if ended != 0 and (rank == peer or load_acquire(arrival_line(context, epoch, rank)) < epoch):
            return rank
    return -1


@register_jitable
def begin_waiting(call: int) -> int:
    """Start the clocks of a call that has to wait; return the time."""
    now = clock_ns()
    if get(call, CALL_ENTERED_NS) == 0:
        put(call, CALL_ENTERED_NS, now)
    if get(call, CALL_DEADLINE_NS) == 0:
        put(call, CALL_DEADLINE_NS, now + get(call, CALL_TIMEOUT_NS))
    return now


@register_jitable
def look_around(context: int, call: int, peer: int, now: int) -> int:
    """Return why a wait is hopeless, as an ABORT reason with the culprit in CALL_PEER, or 0."""
    dead = find_dead(context, call, peer)
    if dead >= 0:
        put(call, CALL_PEER, dead)
        return ABORT_PEER_LOST
    if now > get(call, CALL_DEADLINE_NS):
        return ABORT_TIMEOUT
    return 0


@register_jitable
def wait_longer(context: int, call: int, word: int, value: int, peer: int) -> int:
    """Wait past the spin: yield, sleep, and look for abort, death and the deadline."""
    control = get(context, CONTEXT_CONTROL)
    put(call, CALL_PEER, peer)
    patience = get(context, CONTEXT_PATIENCE_NS)
    if patience == 0:
        return ABORTED if load_relaxed(control + CONTROL_ABORT) != 0 else WAIT
    now = begin_waiting(call)
    looked = now
    yields = get(context, CONTEXT_YIELDS)
    while True:
        if load_acquire(word) >= value:
            return DONE
        if load_relaxed(control + CONTROL_ABORT) != 0:
            return ABORTED
        if yields > 0:
            yields -= 1
            yield_processor()
            continue
        seen = load_relaxed(control + CONTROL_WAKE) & 0xFFFFFFFF
        add_word(control + CONTROL_SLEEPERS, 1)
        if load_acquire(word) < value and load_relaxed(control + CONTROL_ABORT) == 0:
            futex_wait(control + CONTROL_WAKE, seen, get(context, CONTEXT_TIMESPEC))
        add_word(control + CONTROL_SLEEPERS, -1)
        now = clock_ns()
        if now - looked > DEATH_INTERVAL_NS:
            looked = now
            reason = look_around(context, call, peer, now)
            # What came before the end of its sender is good: look once more.
            if reason != 0 and load_acquire(word) < value:
                return raise_abort(context, call, reason, get(call, CALL_PEER))
        if now - get(call, CALL_ENTERED_NS) > patience:
            return DONE if load_acquire(word) >= value else WAIT


@register_jitable
def wait_for(context: int, call: int, word: int, value: int, peer: int) -> int:
    """Wait until a word of ``peer`` reaches ``value``.

    Returns
    -------
    int
        DONE, WAIT (call again), or ABORTED.
    """
    if load_acquire(word) >= value:
        delay(context)
        return DONE
    spins = get(context, CONTEXT_SPINS)
    while spins > 0:
        pause()
        if load_acquire(word) >= value:
            return DONE
        spins -= 1
    return wait_longer(context, call, word, value, peer)
