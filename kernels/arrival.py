"""How a call begins: every rank publishes what it calls, and all compare.

The protocol is in ``collectives/drivers/DESIGN.md``.
"""

from __future__ import annotations

from numba.extending import register_jitable

from multiring.kernels.primitives import load_relaxed, load_word, store_relaxed
from multiring.kernels.records import (
    ARRIVAL_COUNT,
    ARRIVAL_OUT,
    ARRIVAL_SIGNATURE,
    ARRIVAL_X,
    CALL_COUNT,
    CALL_EPOCH,
    CALL_PHASE,
    CALL_SIGNATURE,
    CALL_VARIANT,
    CONTEXT_EPOCH,
    CONTEXT_HEAP,
    CONTEXT_PENDING,
    CONTEXT_RANK,
    CONTEXT_SIZE,
    DONE,
    MISMATCH,
    PHASE_BIND,
    REFERENCE_ABSENT,
    REFERENCE_ORDINARY,
    REFERENCE_SHIFT,
    SIGNATURE_REFUSED,
    VARIANT_OUT,
    VARIANT_X,
)
from multiring.kernels.waiting import arrival_line, get, put, signal, wait_for

__all__ = ["arrive", "publish", "reference", "settle"]


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
