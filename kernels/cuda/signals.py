"""How a block waits for a word that a peer writes into this GPU's memory, and what it does when none comes.

Polling is relaxed, since an acquire empties the first-level cache; one acquire follows when the value is there. A
wait is bounded by the GPU's clock and ended by the abort word, so that no kernel spins for ever.
"""

from __future__ import annotations

from multiring.kernels.cuda.homes import device
from multiring.kernels.cuda.ptx import block_index, release_fence, wait_ns
from multiring.kernels.cuda.records import (
    DEVICE_ABORT,
    DEVICE_ERROR,
    DEVICE_LIMIT_NS,
    DEVICE_RANK,
    ERROR_BLOCK,
    ERROR_INSTRUCTION,
    ERROR_RECORD,
    ERROR_SLICE,
)
from multiring.kernels.primitives import (
    clock_ns,
    compare_and_swap,
    load_acquire,
    load_relaxed,
    load_word,
    store_relaxed,
    store_release,
)
from multiring.kernels.records import (
    ABORT_CULPRIT_SHIFT,
    ABORT_EPOCH_MASK,
    ABORT_REASON_SHIFT,
    ABORT_REPORTER_SHIFT,
    ABORT_TIMEOUT,
)

__all__ = ["aborted", "fail", "get", "wait_for"]

POLLS_BEFORE_SLEEP = 64
SLEEP_NS = 100


@device
def get(record: int, field: int) -> int:
    """Read a word of a record that this rank's host wrote before the launch, or this block."""
    return load_word(record + 8 * field)


@device
def aborted(context: int) -> bool:
    """Whether a block of this GPU has failed, or the host wants it to end."""
    return load_relaxed(get(context, DEVICE_ABORT)) != 0


@device
def fail(context: int, reason: int, culprit: int, epoch: int, instruction: int, piece: int) -> None:
    """Write the error record, unless another block has, and end every wait of this GPU."""
    record = (
        (reason << ABORT_REASON_SHIFT)
        | (culprit << ABORT_CULPRIT_SHIFT)
        | (get(context, DEVICE_RANK) << ABORT_REPORTER_SHIFT)
        | (epoch & ABORT_EPOCH_MASK)
    )
    if compare_and_swap(get(context, DEVICE_ABORT), 0, record) == 0:
        error = get(context, DEVICE_ERROR)
        store_relaxed(error + 8 * ERROR_INSTRUCTION, instruction)
        store_relaxed(error + 8 * ERROR_SLICE, piece)
        store_relaxed(error + 8 * ERROR_BLOCK, block_index())
        release_fence()
        store_release(error + 8 * ERROR_RECORD, record)


@device
def wait_for(context: int, word: int, value: int, peer: int, epoch: int, instruction: int, piece: int) -> int:
    """Wait until a word reaches a value.

    Returns
    -------
    int
        1, or 0 after the time limit or an abort.
    """
    if load_relaxed(word) < value:
        start = clock_ns()
        polls = 0
        while load_relaxed(word) < value:
            polls += 1
            if polls > POLLS_BEFORE_SLEEP:
                wait_ns(SLEEP_NS)
                if aborted(context):
                    return 0
                if clock_ns() - start > get(context, DEVICE_LIMIT_NS):
                    fail(context, ABORT_TIMEOUT, peer, epoch, instruction, piece)
                    return 0
    load_acquire(word)
    return 1
