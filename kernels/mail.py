"""Point-to-point messages: several sends and receives of one rank, progressing together.

::

    src  ->  box 0 | box 1 | box 2 | box 3  ->  dst      POSTED counts pieces written, TAKEN pieces read

A message is cut into pieces of a box; one that is larger and lies in symmetric memory is offered, and the receiver
reads it there. See "Point to point" in ``collectives/drivers/DESIGN.md``.
"""

from __future__ import annotations

from numba.extending import register_jitable

from multiring.kernels.arrival import reference
from multiring.kernels.primitives import (
    add_word,
    clock_ns,
    copy_bytes,
    futex_wait,
    load_acquire,
    load_relaxed,
    load_word,
    pause,
    store_relaxed,
    yield_processor,
)
from multiring.kernels.records import (
    ABORT_CLOSED,
    ABORT_MISMATCH,
    ABORTED,
    ARRIVAL_SIGNATURE,
    ATTACH,
    BOX_HEADER_BYTES,
    BOX_REFERENCE,
    BOX_SIGNATURE,
    BOX_TOTAL,
    CALL_CONTEXT,
    CALL_DONE,
    CALL_ENTERED_NS,
    CALL_PEER,
    CALL_SEGMENT,
    CALL_SIGNATURE,
    CALL_X,
    CALL_X_BYTES,
    CONTEXT_BOX_BYTES,
    CONTEXT_CONTROL,
    CONTEXT_MAIL,
    CONTEXT_MAIL_STRIDE,
    CONTEXT_N_BOXES,
    CONTEXT_PATIENCE_NS,
    CONTEXT_PEERS,
    CONTEXT_RANK,
    CONTEXT_REPORTS,
    CONTEXT_SIZE,
    CONTEXT_SPINS,
    CONTEXT_TIMESPEC,
    CONTEXT_YIELDS,
    CONTROL_ABORT,
    CONTROL_SLEEPERS,
    CONTROL_WAKE,
    DONE,
    LINE_BYTES,
    MAIL_BOXES,
    MAIL_FINISHED,
    MAIL_PEER,
    MAIL_POSTED,
    MAIL_SENDS,
    MAIL_TAKEN,
    MAIL_TICKET,
    MISMATCH,
    REFERENCE_ORDINARY,
    REFERENCE_SHIFT,
    REPORT_GOT_BYTES,
    REPORT_GOT_SIGNATURE,
    SIGNATURE_CLOSED,
    WAIT,
)
from multiring.kernels.waiting import arrival_line, begin_waiting, delay, get, look_around, put, raise_abort, signal

__all__ = ["deliver"]

# What the helpers below return besides a number of steps.
BAD = -1
FINISHED = -2
UNMAPPED = -3


@register_jitable
def pair_boxes(context: int, src: int, dst: int) -> int:
    """Return the address of the boxes of an ordered pair."""
    index = src * get(context, CONTEXT_SIZE) + dst
    return get(context, CONTEXT_MAIL) + index * get(context, CONTEXT_MAIL_STRIDE)


@register_jitable
def send_pieces(context: int, operation: int) -> int:
    """Write as many pieces as there are empty boxes, or offer the array itself; return how many steps were made."""
    boxes = pair_boxes(context, get(context, CONTEXT_RANK), get(operation, MAIL_PEER))
    box_bytes = get(context, CONTEXT_BOX_BYTES)
    n_boxes = get(context, CONTEXT_N_BOXES)
    total = get(operation, CALL_X_BYTES)
    ticket = get(operation, MAIL_TICKET)
    if ticket != 0:
        if load_acquire(boxes + MAIL_TAKEN) < ticket:
            return 0
        put(operation, MAIL_FINISHED, 1)
        return 1
    where = REFERENCE_ORDINARY
    if total > box_bytes - BOX_HEADER_BYTES:
        where = reference(context, get(operation, CALL_X), total)
    pieces = 0
    while get(operation, MAIL_FINISHED) == 0:
        posted = load_relaxed(boxes + MAIL_POSTED)
        if posted - load_acquire(boxes + MAIL_TAKEN) >= n_boxes:
            break
        delay(context)
        box = boxes + MAIL_BOXES + (posted % n_boxes) * box_bytes
        done = get(operation, CALL_DONE)
        count = min(box_bytes - BOX_HEADER_BYTES, total - done)
        store_relaxed(box + 8 * BOX_TOTAL, total)
        store_relaxed(box + 8 * BOX_SIGNATURE, get(operation, CALL_SIGNATURE))
        store_relaxed(box + 8 * BOX_REFERENCE, where)
        if where >= 0:
            put(operation, MAIL_TICKET, posted + 1)
            signal(context, boxes + MAIL_POSTED, posted + 1)
            return pieces + 1
        copy_bytes(box + BOX_HEADER_BYTES, get(operation, CALL_X) + done, count)
        put(operation, CALL_DONE, done + count)
        if done + count >= total:
            put(operation, MAIL_FINISHED, 1)
        signal(context, boxes + MAIL_POSTED, posted + 1)
        pieces += 1
    return pieces


@register_jitable
def receive_pieces(context: int, operation: int) -> int:
    """Read as many pieces as have come.

    Returns
    -------
    int
        How many; BAD if the message is not the one expected; UNMAPPED if the sender's segment must be mapped first.
    """
    boxes = pair_boxes(context, get(operation, MAIL_PEER), get(context, CONTEXT_RANK))
    box_bytes = get(context, CONTEXT_BOX_BYTES)
    total = get(operation, CALL_X_BYTES)
    pieces = 0
    while get(operation, MAIL_FINISHED) == 0:
        taken = load_relaxed(boxes + MAIL_TAKEN)
        if load_acquire(boxes + MAIL_POSTED) <= taken:
            break
        delay(context)
        box = boxes + MAIL_BOXES + (taken % get(context, CONTEXT_N_BOXES)) * box_bytes
        done = get(operation, CALL_DONE)
        got_bytes = load_relaxed(box + 8 * BOX_TOTAL)
        got_signature = load_relaxed(box + 8 * BOX_SIGNATURE)
        if got_bytes != total or got_signature != get(operation, CALL_SIGNATURE):
            mine = get(context, CONTEXT_REPORTS) + LINE_BYTES * get(context, CONTEXT_RANK)
            store_relaxed(mine + 8 * REPORT_GOT_BYTES, got_bytes)
            store_relaxed(mine + 8 * REPORT_GOT_SIGNATURE, got_signature)
            return BAD
        where = load_relaxed(box + 8 * BOX_REFERENCE)
        if where >= 0:
            segment = where >> REFERENCE_SHIFT
            table = load_word(get(context, CONTEXT_PEERS) + 8 * get(operation, MAIL_PEER))
            base = load_word(table + 8 * segment)
            if base == 0:
                put(operation, CALL_PEER, get(operation, MAIL_PEER))
                put(operation, CALL_SEGMENT, segment)
                return UNMAPPED
            count = total
            copy_bytes(get(operation, CALL_X), base + (where & ((1 << REFERENCE_SHIFT) - 1)), total)
        else:
            count = min(box_bytes - BOX_HEADER_BYTES, total - done)
            copy_bytes(get(operation, CALL_X) + done, box + BOX_HEADER_BYTES, count)
        put(operation, CALL_DONE, done + count)
        if done + count >= total:
            put(operation, MAIL_FINISHED, 1)
        signal(context, boxes + MAIL_TAKEN, taken + 1)
        pieces += 1
    return pieces


@register_jitable
def try_all(context: int, operations: int, n_operations: int) -> int:
    """Go through all operations once.

    Returns
    -------
    int
        How many steps were made; FINISHED; or BAD or UNMAPPED, with where in the first operation's record.

    Notes
    -----
    Of several operations with one peer in one direction, only the first unfinished one moves: messages of a pair do not
    overtake each other.
    """
    moved = 0
    open_operations = 0
    for index in range(n_operations):
        operation = load_word(operations + 8 * index)
        if get(operation, MAIL_FINISHED) != 0:
            continue
        first = True
        for earlier in range(index):
            other = load_word(operations + 8 * earlier)
            if (
                get(other, MAIL_FINISHED) == 0
                and get(other, MAIL_PEER) == get(operation, MAIL_PEER)
                and get(other, MAIL_SENDS) == get(operation, MAIL_SENDS)
            ):
                first = False
        if first:
            if get(operation, MAIL_SENDS) != 0:
                moved += send_pieces(context, operation)
            else:
                pieces = receive_pieces(context, operation)
                if pieces == BAD:
                    raise_abort(context, operation, ABORT_MISMATCH, get(operation, MAIL_PEER))
                if pieces < 0:
                    put(load_word(operations), CALL_PEER, get(operation, MAIL_PEER))
                    put(load_word(operations), CALL_SEGMENT, get(operation, CALL_SEGMENT))
                    return pieces
                moved += pieces
        if get(operation, MAIL_FINISHED) == 0:
            open_operations += 1
    return moved if open_operations > 0 else FINISHED


@register_jitable
def has_closed(context: int, peer: int) -> bool:
    """Whether a peer has left: its last line says so, and nothing comes after that."""
    for parity in range(2):
        if load_relaxed(arrival_line(context, parity, peer) + 8 * ARRIVAL_SIGNATURE) == SIGNATURE_CLOSED:
            return True
    return False


@register_jitable
def verdict(moved: int) -> int:
    """Return what a native call returns for a negative answer of :func:`try_all`."""
    if moved == FINISHED:
        return DONE
    return MISMATCH if moved == BAD else ATTACH


@register_jitable
def deliver(operations: int, n_operations: int) -> int:
    """Carry out sends and receives.

    Parameters
    ----------
    operations : int
        Address of ``n_operations`` addresses of call records.

    Returns
    -------
    int
        DONE; WAIT (call again); ABORTED; MISMATCH (a receive met a message of another size or type); ATTACH (map
        segment CALL_SEGMENT of rank CALL_PEER, both in the first record, then call again).
    """
    context = get(load_word(operations), CALL_CONTEXT)
    control = get(context, CONTEXT_CONTROL)
    spins = get(context, CONTEXT_SPINS)
    yields = get(context, CONTEXT_YIELDS)
    patience = get(context, CONTEXT_PATIENCE_NS)
    for index in range(n_operations):
        put(load_word(operations + 8 * index), CALL_ENTERED_NS, 0)
    entered = 0
    while True:
        if load_relaxed(control + CONTROL_ABORT) != 0:
            return ABORTED
        moved = try_all(context, operations, n_operations)
        if moved < 0:
            return verdict(moved)
        if moved > 0:
            continue
        if patience == 0:
            return WAIT
        if spins > 0:
            spins -= 1
            pause()
            continue
        if yields > 0:
            yields -= 1
            yield_processor()
            continue
        if entered == 0:
            entered = clock_ns()
        seen = load_relaxed(control + CONTROL_WAKE) & 0xFFFFFFFF
        add_word(control + CONTROL_SLEEPERS, 1)
        moved = try_all(context, operations, n_operations)
        if moved == 0 and load_relaxed(control + CONTROL_ABORT) == 0:
            futex_wait(control + CONTROL_WAKE, seen, get(context, CONTEXT_TIMESPEC))
        add_word(control + CONTROL_SLEEPERS, -1)
        if moved < 0:
            return verdict(moved)
        for index in range(n_operations):
            operation = load_word(operations + 8 * index)
            if get(operation, MAIL_FINISHED) == 0:
                now = begin_waiting(operation)
                peer = get(operation, MAIL_PEER)
                put(operation, CALL_PEER, peer)
                reason = ABORT_CLOSED if has_closed(context, peer) else look_around(context, operation, peer, now)
                # What came before the end of its sender is good: look once more.
                if reason != 0 and try_all(context, operations, n_operations) == 0:
                    return raise_abort(context, operation, reason, get(operation, CALL_PEER))
        if clock_ns() - entered > patience:
            return WAIT
