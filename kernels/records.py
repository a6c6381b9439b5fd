"""Word numbers of the records that Python fills in and the interpreter reads.

Each record is an array of int64. This is the only place that knows their layout.
"""

from __future__ import annotations

from typing import Final

# --- the context: one for each (communicator, rank) -----------------------------------------------------------------
CONTEXT_RANK: Final = 0
CONTEXT_SIZE: Final = 1
CONTEXT_EPOCH: Final = 2
"""Calls so far."""
CONTEXT_BASE: Final = 3
"""Progress positions used so far."""
CONTEXT_PENDING: Final = 4
"""1 while a refused call has not been settled."""
CONTEXT_CONTROL: Final = 5
"""Address of the control segment."""
CONTEXT_ARRIVALS: Final = 6
CONTEXT_ARRIVAL_STRIDE: Final = 7
CONTEXT_PROGRESS: Final = 8
CONTEXT_REPORTS: Final = 9
CONTEXT_SLOTS: Final = 10
CONTEXT_SLOT_BYTES: Final = 11
CONTEXT_N_SLOTS: Final = 12
CONTEXT_PARITY_MASK: Final = 13
"""1: two parities of arrival lines."""
CONTEXT_SPINS: Final = 14
CONTEXT_YIELDS: Final = 15
CONTEXT_DESCRIPTORS: Final = 16
"""Address of one pollfd record for each rank: fd, events and revents in one word."""
CONTEXT_TIMESPEC: Final = 17
"""Address of the longest sleep."""
CONTEXT_PATIENCE_NS: Final = 18
"""How long a native call waits before it returns WAIT; 0 returns at once."""
CONTEXT_HEAP: Final = 19
"""Address of this process's heap table: number of segments, then (start, size) for each."""
CONTEXT_PEERS: Final = 20
"""Address of one address for each rank: its table of segment addresses in this process, 0 while not mapped."""
CONTEXT_DELAY: Final = 21
"""Chance in 256 of a random delay between steps; 0 outside tests."""
CONTEXT_RANDOM: Final = 22
CONTEXT_MAIL: Final = 23
CONTEXT_MAIL_STRIDE: Final = 24
CONTEXT_BOX_BYTES: Final = 25
CONTEXT_N_BOXES: Final = 26
CONTEXT_RANKS: Final = 27
"""Address of the communicator's rank of each rank of the node. Everything else here counts the ranks of the node."""
CONTEXT_WORDS: Final = 32

# --- the control segment, in bytes ----------------------------------------------------------------------------------
LINE_BYTES: Final = 128
CONTROL_ABORT: Final = 0
CONTROL_SLEEPERS: Final = 128
CONTROL_WAKE: Final = 256
CONTROL_NONCE: Final = 384
CONTROL_TEXT_OWNER: Final = 392
"""Who may write the text: 0, or that rank + 1."""
CONTROL_TEXT: Final = 512
"""Why the communicator was closed, where words do not say it: length in bytes as a word, then UTF-8."""
CONTROL_TEXT_BYTES: Final = 2048
CONTROL_HEADER_BYTES: Final = 4096

# --- an arrival line, in words --------------------------------------------------------------------------------------
ARRIVAL_SEQUENCE: Final = 0
ARRIVAL_COUNT: Final = 1
ARRIVAL_SIGNATURE: Final = 2
ARRIVAL_X: Final = 3
ARRIVAL_OUT: Final = 4
ARRIVAL_INLINE_BYTES: Final = 40
"""Where the payload starts if it fits the line."""
ARRIVAL_INLINE_ROOM: Final = 24
ARRIVAL_PAYLOAD_BYTES: Final = 64
"""Where the payload starts otherwise."""

SIGNATURE_REFUSED: Final = -1
SIGNATURE_CLOSED: Final = -2

REFERENCE_ORDINARY: Final = -1
"""The array is not in symmetric memory."""
REFERENCE_ABSENT: Final = -2
"""This rank has no such array in this collective."""
REFERENCE_SHIFT: Final = 48
"""A reference is ``segment << 48 | offset``."""

# --- why the control segment's ABORT word is set --------------------------------------------------------------------
ABORT_PEER_LOST: Final = 1
ABORT_TIMEOUT: Final = 2
ABORT_USER: Final = 3
ABORT_MISMATCH: Final = 4
ABORT_CLOSED: Final = 5
"""The culprit closed, and will not send or receive what is waited for."""
ABORT_TOLD: Final = 6
"""The text holds the error: its kind, a newline, what it says. For what was found out between nodes."""
ABORT_REASON_SHIFT: Final = 56
ABORT_CULPRIT_SHIFT: Final = 40
ABORT_REPORTER_SHIFT: Final = 24
ABORT_RANK_MASK: Final = 0xFFFF
ABORT_EPOCH_MASK: Final = 0xFFFFFF

# --- a report: where its rank stood, in words -----------------------------------------------------------------------
REPORT_PHASE: Final = 0
REPORT_INSTRUCTION: Final = 1
REPORT_PEER: Final = 2
REPORT_SLICE: Final = 3
REPORT_STEP: Final = 4
REPORT_CHUNK: Final = 5
REPORT_N_STEPS: Final = 6
REPORT_SIGNATURE: Final = 7
REPORT_COUNT: Final = 8
REPORT_TIMEOUT_NS: Final = 9
REPORT_GOT_BYTES: Final = 10
"""Of a message that is not the one expected: its bytes, and its element type."""
REPORT_GOT_SIGNATURE: Final = 11
REPORT_WORDS: Final = 12

# --- the call record ------------------------------------------------------------------------------------------------
CALL_CONTEXT: Final = 0
CALL_PHASE: Final = 1
CALL_X: Final = 2
CALL_OUT: Final = 3
CALL_COUNT: Final = 4
CALL_SIGNATURE: Final = 5
CALL_TIMEOUT_NS: Final = 6
CALL_DEADLINE_NS: Final = 7
CALL_X_BYTES: Final = 8
"""Bytes of the input; -1 if this rank has none."""
CALL_OUT_BYTES: Final = 9
CALL_X_REFERENCE: Final = 10
CALL_OUT_REFERENCE: Final = 11
CALL_EAGER: Final = 12
CALL_CHUNKS: Final = 13
"""Address of (x offset, out offset, length) for each chunk, in elements."""
CALL_LONGEST_CHUNK: Final = 14
CALL_PROGRAMS: Final = 15
"""Four words: the program of each variant (bit 0: inputs symmetric, bit 1: outputs), 0 while not lowered."""
CALL_PROGRAM: Final = 19
CALL_LOOP: Final = 20
CALL_INSTRUCTION: Final = 21
CALL_DONE: Final = 22
"""Elements of the current instruction that are done."""
CALL_N_SLICES: Final = 23
CALL_SLICE: Final = 24
"""Elements of a slice of a chunk."""
CALL_PEER: Final = 25
"""The peer that the call waits for, or whose memory must be mapped."""
CALL_SEGMENT: Final = 26
CALL_EPOCH: Final = 27
CALL_BASES: Final = 28
"""Address of 2 P addresses: every rank's input, then every rank's output."""
CALL_OPERANDS: Final = 29
"""Address of room for 2 P addresses."""
CALL_PARAMETERS: Final = 30
"""Address of the span kernels' parameter block."""
CALL_VARIANT: Final = 31
CALL_KINDS: Final = 32
"""For each kind: span kernel (0: copy), bytes of a source and of a destination element, and the span kernel that writes
past the caches (0: none)."""
CALL_WIRE_BYTES: Final = 56
"""Bytes of an element in the slots."""
CALL_PLACE_BYTES: Final = 57
CALL_BLOCK: Final = 58
"""Elements between two looks at ABORT."""
CALL_ENTERED_NS: Final = 59
CALL_WIRE: Final = 60
"""Address of the wire record, 0 where no message leaves the node."""
CALL_STREAM: Final = 61
"""1: results go past the caches, where they do not overwrite what was just read."""
CALL_WORDS: Final = 64

PHASE_START: Final = 0
PHASE_ARRIVE: Final = 1
PHASE_BIND: Final = 2
PHASE_RUN: Final = 3
PHASE_EXIT: Final = 4
PHASE_IDLE: Final = 5
PHASE_MAIL: Final = 6

# --- the wire record: slices that go to other nodes or come from there ----------------------------------------------
WIRE_QUEUED: Final = 0
"""Requests of this call so far, written by the interpreter."""
WIRE_TAKEN: Final = 1
"""Of these, how many were handed to the network, written by its driver."""
WIRE_MASK: Final = 2
"""Length of the ring of requests, a power of two, less one."""
WIRE_RING: Final = 3
"""Its address; a request is (lane, address, bytes)."""
WIRE_N_LANES: Final = 4
WIRE_FINISHED: Final = 5
"""Address of one word for each lane: slices of this call that have been sent or have come, from the first on without a
gap."""
WIRE_WORDS: Final = 6
WIRE_REQUEST_WORDS: Final = 3

# --- a point-to-point operation: a call record with these fields besides --------------------------------------------
MAIL_SENDS: Final = 12
"""1: send, 0: receive."""
MAIL_PEER: Final = 13
MAIL_FINISHED: Final = 14
MAIL_TICKET: Final = 15
"""What TAKEN must reach before a sender may have its symmetric array back; 0 before it was offered."""

# --- the boxes of an ordered pair, in bytes -------------------------------------------------------------------------
MAIL_POSTED: Final = 0
MAIL_TAKEN: Final = 128
MAIL_BOXES: Final = 256
BOX_TOTAL: Final = 0
"""Words of a box: bytes of the message, its element type, where it lies; then the payload."""
BOX_SIGNATURE: Final = 1
BOX_REFERENCE: Final = 2
"""Where the message lies in symmetric memory, or REFERENCE_ORDINARY: then the box holds a piece of it."""
BOX_HEADER_BYTES: Final = 64

# --- a program ------------------------------------------------------------------------------------------------------
PROGRAM_N_INSTRUCTIONS: Final = 0
PROGRAM_STRIDE: Final = 1
"""Positions of one slice: the longest program of all ranks."""
PROGRAM_MAX_SKEW: Final = 2
PROGRAM_N_PLACES: Final = 3
PROGRAM_HOISTED: Final = 4
"""Instructions that run before the arrival."""
PROGRAM_EXIT_BEGIN: Final = 5
PROGRAM_EXIT_END: Final = 6
PROGRAM_INSTRUCTIONS: Final = 7
"""Word offsets of the three tables, from the program's start."""
PROGRAM_WAITS: Final = 8
PROGRAM_OPERANDS: Final = 9
PROGRAM_N_STEPS: Final = 10
PROGRAM_TOUCHED: Final = 11
"""Word offset of (space, rank) of each symmetric array of a peer that the program reads or writes."""
PROGRAM_N_TOUCHED: Final = 12
PROGRAM_WORDS: Final = 13

INSTRUCTION_KIND: Final = 0
INSTRUCTION_CHUNK: Final = 1
INSTRUCTION_SKEW: Final = 2
INSTRUCTION_WAIT_BEGIN: Final = 3
INSTRUCTION_WAIT_END: Final = 4
INSTRUCTION_SOURCE_BEGIN: Final = 5
INSTRUCTION_SOURCE_END: Final = 6
INSTRUCTION_DESTINATION_END: Final = 7
"""Destinations follow the sources."""
INSTRUCTION_POST: Final = 8
INSTRUCTION_STEP: Final = 9
INSTRUCTION_LANE: Final = 10
"""Of an instruction of the wire: which of this rank's lanes."""
INSTRUCTION_WORDS: Final = 11

WAIT_PEER: Final = 0
WAIT_POSITION: Final = 1
"""Position to wait for, less ``base + slice * stride``."""
WAIT_LAG: Final = 2
"""By how many slices the awaited slice lies behind."""
WAIT_WORDS: Final = 3

OPERAND_SPACE: Final = 0
OPERAND_RANK: Final = 1
OPERAND_PLACE: Final = 2
OPERAND_WORDS: Final = 3

SPACE_X: Final = 0
SPACE_OUT: Final = 1
SPACE_SLOT: Final = 2

KIND_COPY: Final = 0
"""Array to array, or array to slot and back where the wire type is the array's."""
KIND_REDUCE: Final = 1
KIND_REDUCE_FINAL: Final = 2
KIND_CAST_IN: Final = 3
"""Input to slot, in the wire type."""
KIND_CAST_OUT: Final = 4
"""Slot to output."""
KIND_FORWARD: Final = 5
"""Slot to slot."""
N_KINDS: Final = 6
"""Kinds that a span kernel serves; those that follow are the wire's."""
KIND_WORDS: Final = 4
KIND_SEND: Final = 6
"""Begin to send a slice to another node."""
KIND_POST: Final = 7
"""Offer the place where a slice from another node will lie."""
KIND_RECEIVED: Final = 8
"""Wait until it is there."""
KIND_SENT: Final = 9
"""Wait until the place that was sent may be written again."""

VARIANT_X: Final = 1
VARIANT_OUT: Final = 2

# --- what a native call returns -------------------------------------------------------------------------------------
DONE: Final = 0
WAIT: Final = 1
ABORTED: Final = 2
MISMATCH: Final = 3
ATTACH: Final = 4
LOWER: Final = 5
