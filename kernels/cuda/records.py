"""Word numbers of the records that step kernels read; programs are those of :mod:`multiring.kernels.records`.

All lie in device memory. ``n_blocks`` blocks are so many channels: block c of a rank works on part c of every slice,
and waits for block c of its peers only. Whoever waits for a word has it in his own memory; the writer reaches over.
"""

from __future__ import annotations

from typing import Final

# --- the context: one for each (communicator, rank) -----------------------------------------------------------------
DEVICE_RANK: Final = 0
DEVICE_SIZE: Final = 1
DEVICE_BLOCKS: Final = 2
"""Channels: a power of two, and the grid of a fused launch."""
DEVICE_BLOCK_SHIFT: Final = 3
"""Its logarithm."""
DEVICE_LIMIT_NS: Final = 4
"""How long a wait may take."""
DEVICE_ERROR: Final = 5
"""Address of ERROR_WORDS words that the host reads, in mapped host memory."""
DEVICE_ABORT: Final = 6
"""Address of a word in this GPU's memory: not 0 ends every wait. Set by the first block that fails, and by the host."""
DEVICE_STATE: Final = 7
"""Address of one line of LINE_BYTES for each block, in this GPU's memory, which outlives a call."""
DEVICE_INBOX: Final = 8
"""Address of the arrival lines that peers write here: [parity][block][rank], ARRIVAL_BYTES each."""
DEVICE_INBOXES: Final = 9
"""Address of one address for each rank: its inbox."""
DEVICE_PROGRESS: Final = 10
"""Address of the positions that peers write here: [block][rank], LINE_BYTES each."""
DEVICE_PROGRESSES: Final = 11
"""Address of one address for each rank: its positions."""
DEVICE_SLOTS: Final = 12
"""Address of one address for each rank: its slots."""
DEVICE_SLOT_BYTES: Final = 13
DEVICE_SLOT_MASK: Final = 14
"""Slots of each rank less one; their number is a power of two."""
DEVICE_SEGMENTS: Final = 15
"""Address of one address for each rank: its table of segment addresses, 0 where one is not mapped."""
DEVICE_WORDS: Final = 16

LINE_BYTES: Final = 128
ARRIVAL_BYTES: Final = 64

STATE_EPOCH: Final = 0
"""Calls so far."""
STATE_BASE: Final = 1
"""Progress positions used so far."""

# --- an arrival line ------------------------------------------------------------------------------------------------
ARRIVAL_SEQUENCE: Final = 0
ARRIVAL_COUNT: Final = 1
ARRIVAL_SIGNATURE: Final = 2
ARRIVAL_X: Final = 3
"""References as the host's: segment << 48 | offset, or negative."""
ARRIVAL_OUT: Final = 4

# --- the call: one for each (rank, request, count) ------------------------------------------------------------------
CALL_CONTEXT: Final = 0
CALL_COUNT: Final = 1
CALL_SIGNATURE: Final = 2
CALL_X: Final = 3
CALL_OUT: Final = 4
CALL_X_REFERENCE: Final = 5
CALL_OUT_REFERENCE: Final = 6
CALL_CHUNKS: Final = 7
"""Address of (x offset, out offset, length) for each chunk, in elements."""
CALL_SCALE: Final = 8
"""Bits of the float64 that contributions are multiplied by."""
CALL_RANKS: Final = 9
"""Bits of the number of ranks as a float64."""
CALL_BASES: Final = 10
"""Address of 2 P words for each block: every rank's input, then every rank's output."""
CALL_OPERANDS: Final = 11
"""Address of MOST_OPERANDS(P) words for each block."""
CALL_OPERAND_WORDS: Final = 12
"""Words of one block there."""
CALL_VARIANTS: Final = 16
"""VARIANT_WORDS words for each variant (bit 0: inputs symmetric, bit 1: outputs)."""
VARIANT_PROGRAM: Final = 0
"""Address of the program, 0 where there is none."""
VARIANT_SLICE: Final = 1
"""Elements of a slice of a chunk."""
VARIANT_PLACE_BYTES: Final = 2
VARIANT_N_SLICES: Final = 3
VARIANT_WORDS: Final = 4
CALL_WORDS: Final = 32

# --- the error record in host memory, in words ----------------------------------------------------------------------
ERROR_RECORD: Final = 0
"""0 while all is well; else as the host's ABORT word: reason, culprit, reporter and epoch. Written last."""
ERROR_INSTRUCTION: Final = 1
ERROR_SLICE: Final = 2
ERROR_BLOCK: Final = 3
ERROR_WORDS: Final = 4

REASON_NO_PROGRAM: Final = 16
"""The variant that the ranks agreed on was not lowered; after the host's reasons."""
REASON_NOT_MAPPED: Final = 17
"""A peer's array lies in a segment that is not mapped here."""
