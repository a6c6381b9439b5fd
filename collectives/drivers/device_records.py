"""The records that kernels read, as words: the only builder of what :mod:`multiring.kernels.cuda.records` lays out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.plan import Plan, Table
from multiring.kernels.cuda import records as r
from multiring.kernels.cuda.parts import StepSpec
from multiring.kernels.records import PROGRAM_N_PLACES

__all__ = ["CallFields", "ContextFields", "Slicing", "enter_variant", "operand_words", "spec_of"]

Words = NDArray[np.int64]


@dataclass(frozen=True)
class ContextFields:
    """What a kernel must know of its rank: addresses in its own GPU's mappings, but for sizes and numbers.

    Attributes
    ----------
    rank, size : int
    blocks : int
        Channels of a fused launch; a power of two.
    limit_ns : int
        How long a wait may take.
    error : int
        ERROR_WORDS words in host memory.
    abort, state : int
        A word, and a line for each block, in this GPU's memory.
    inbox, inboxes, progress, progresses, slots, segments : int
        Arrival lines and positions of this rank; tables of one address for each rank.
    slot_bytes, n_slots : int
    """

    rank: int
    size: int
    blocks: int
    limit_ns: int
    error: int
    abort: int
    state: int
    inbox: int
    inboxes: int
    progress: int
    progresses: int
    slots: int
    slot_bytes: int
    n_slots: int
    segments: int

    def words(self) -> Words:
        """Return the record."""
        words: Words = np.zeros(r.DEVICE_WORDS, dtype=np.int64)
        for field, value in (
            (r.DEVICE_RANK, self.rank),
            (r.DEVICE_SIZE, self.size),
            (r.DEVICE_BLOCKS, self.blocks),
            (r.DEVICE_BLOCK_SHIFT, self.blocks.bit_length() - 1),
            (r.DEVICE_LIMIT_NS, self.limit_ns),
            (r.DEVICE_ERROR, self.error),
            (r.DEVICE_ABORT, self.abort),
            (r.DEVICE_STATE, self.state),
            (r.DEVICE_INBOX, self.inbox),
            (r.DEVICE_INBOXES, self.inboxes),
            (r.DEVICE_PROGRESS, self.progress),
            (r.DEVICE_PROGRESSES, self.progresses),
            (r.DEVICE_SLOTS, self.slots),
            (r.DEVICE_SLOT_BYTES, self.slot_bytes),
            (r.DEVICE_SLOT_MASK, self.n_slots - 1),
            (r.DEVICE_SEGMENTS, self.segments),
        ):
            words[field] = value
        return words


@dataclass(frozen=True)
class CallFields:
    """What a kernel must know of a call, but its programs.

    Attributes
    ----------
    context, count, signature : int
    x, out, x_reference, out_reference : int
        Addresses, and where they lie in symmetric memory, of a fused call.
    chunks : int
        Address of the chunks' table.
    scale : float
        What contributions are multiplied by.
    n_ranks : int
    bases, operands : int
        Room for 2 P words for each block, and for :func:`operand_words` words.
    """

    context: int
    count: int
    signature: int
    x: int
    out: int
    x_reference: int
    out_reference: int
    chunks: int
    scale: float
    n_ranks: int
    bases: int
    operands: int

    def words(self) -> Words:
        """Return the record."""
        words: Words = np.zeros(r.CALL_WORDS, dtype=np.int64)
        for field, value in (
            (r.CALL_CONTEXT, self.context),
            (r.CALL_COUNT, self.count),
            (r.CALL_SIGNATURE, self.signature),
            (r.CALL_X, self.x),
            (r.CALL_OUT, self.out),
            (r.CALL_X_REFERENCE, self.x_reference),
            (r.CALL_OUT_REFERENCE, self.out_reference),
            (r.CALL_CHUNKS, self.chunks),
            (r.CALL_SCALE, int(np.float64(self.scale).view(np.int64))),
            (r.CALL_RANKS, int(np.float64(self.n_ranks).view(np.int64))),
            (r.CALL_BASES, self.bases),
            (r.CALL_OPERANDS, self.operands),
            (r.CALL_OPERAND_WORDS, operand_words(self.n_ranks)),
        ):
            words[field] = value
        return words


def operand_words(n_ranks: int) -> int:
    """Return how many operands an instruction has at most."""
    return 2 * n_ranks + 2


@dataclass(frozen=True)
class Slicing:
    """How a program cuts chunks: as the host's interpreter does, which counts the slices.

    Attributes
    ----------
    piece : int
        Elements of a slice.
    place_bytes : int
    n_slices : int
    """

    piece: int
    place_bytes: int
    n_slices: int

    @classmethod
    def of(cls, program: Table, longest: int, wire_bytes: int, slot_bytes: int) -> Slicing:
        """Return the slices of chunks of at most ``longest`` elements.

        Parameters
        ----------
        program : Table
        longest : int
        wire_bytes : int
            Of an element in a slot.
        slot_bytes : int
        """
        places = int(program[PROGRAM_N_PLACES])
        if not places:
            return cls(max(longest, 1), 0, int(longest > 0))
        piece = slot_bytes // (places * wire_bytes)
        if piece >= 64:
            piece &= ~63
        return cls(piece, piece * wire_bytes, -(-longest // piece))


def enter_variant(call: Words, variant: int, program: int, slicing: Slicing) -> None:
    """Enter a variant's program, which lies at ``program``, in a call record."""
    at = r.CALL_VARIANTS + variant * r.VARIANT_WORDS
    call[at + r.VARIANT_PROGRAM] = program
    call[at + r.VARIANT_SLICE] = slicing.piece
    call[at + r.VARIANT_PLACE_BYTES] = slicing.place_bytes
    call[at + r.VARIANT_N_SLICES] = slicing.n_slices


def spec_of(plan: Plan) -> StepSpec:
    """Return what decides the kernels of a plan."""
    request = plan.request
    return StepSpec(request.dtype, request.wire_type, request.operation, request.accumulate, plan.staged)
