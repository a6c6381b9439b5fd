"""The wire: hands a call's slices to the network and takes what comes, while the interpreter works.

The protocol is in ``DESIGN.md`` beside this file, under "Between nodes".
"""

from __future__ import annotations

import ctypes
import os
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.drivers.faults import far_mismatch_error
from multiring.collectives.drivers.network import FIRST_LANE_TAG, HEADER_TAG, Network, NetworkError
from multiring.kernels.records import (
    CALL_COUNT,
    CALL_EPOCH,
    CALL_SIGNATURE,
    WIRE_FINISHED,
    WIRE_MASK,
    WIRE_N_LANES,
    WIRE_QUEUED,
    WIRE_REQUEST_WORDS,
    WIRE_RING,
    WIRE_TAKEN,
    WIRE_WORDS,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from multiring.collectives.plan import Plan
    from multiring.collectives.program import Lane

__all__ = ["INLINE_BYTES", "Wire", "WireRecord"]

HEADER_WORDS = 8
HEADER_BYTES = 8 * HEADER_WORDS
HEADER_EPOCH, HEADER_SIGNATURE, HEADER_COUNT, HEADER_SLICE_BYTES = range(4)
INLINE_BYTES = 4096
"""Up to here a first slice travels in the message of its header."""
VERDICT_S = 1.0
"""How long to wait for the header that explains why a slice could not be received."""


class WireRecord:
    """The wire record of one call record: lanes, requests, and what has finished.

    Parameters
    ----------
    lanes : sequence of Lane
        Of this rank.
    rank : int
        This rank.
    n_slots : int
        So many slices of a lane can be under way.
    """

    def __init__(self, lanes: Sequence[Lane], rank: int, n_slots: int) -> None:
        self.words: NDArray[np.int64] = np.zeros(WIRE_WORDS, dtype=np.int64)
        length = 1 << (max(len(lanes), 1) * n_slots - 1).bit_length()
        self._ring: NDArray[np.int64] = np.zeros(length * WIRE_REQUEST_WORDS, dtype=np.int64)
        self._finished: NDArray[np.int64] = np.zeros(max(len(lanes), 1), dtype=np.int64)
        self.words[WIRE_MASK] = length - 1
        self.words[WIRE_RING] = self._ring.ctypes.data
        self.words[WIRE_FINISHED] = self._finished.ctypes.data
        self.words[WIRE_N_LANES] = len(lanes)
        self.lanes = [_LaneState(index, lane, rank) for index, lane in enumerate(lanes)]
        # Single words are read and written much more often than by numpy's leave.
        self.state = self.words.data
        self.ring = self._ring.data
        self.finished = self._finished.data
        self.epoch = -1

    @property
    def memory(self) -> list[NDArray[np.int64]]:
        """The arrays that the record consists of."""
        return [self.words, self._ring, self._finished]


class _LaneState:
    """One lane, from this rank's side."""

    def __init__(self, index: int, lane: Lane, rank: int) -> None:
        self.index = index
        self.sends = lane.src == rank
        self.peer = lane.dst if self.sends else lane.src
        self.tag = FIRST_LANE_TAG + lane.number
        self.is_first = lane.number == 0
        """Whether its first slice brings the header of the call."""
        self.started = 0
        self.under_way: deque[_Message] = deque()
        # Room for a header and what travels with it; of this lane alone, which has one header in each call.
        self._room: NDArray[np.int64] = np.zeros((HEADER_BYTES + INLINE_BYTES) // 8 * self.is_first, dtype=np.int64)
        self.header = self._room.data
        self.header_address = self._room.ctypes.data


class _Message:
    """A slice under way: one message, or a header and perhaps one."""

    __slots__ = ("address", "finished", "handles", "has_header", "n_bytes")

    def __init__(self, handles: list[Any], address: int, n_bytes: int, has_header: bool) -> None:
        self.handles = handles
        self.address = address
        self.n_bytes = n_bytes
        self.has_header = has_header
        self.finished = False


class Wire:
    """One rank's traffic with other nodes for the collectives of a communicator.

    Parameters
    ----------
    network : Network
    rank : int
    """

    def __init__(self, network: Network, rank: int) -> None:
        self._network = network
        self._rank = rank
        self._busy: list[_LaneState] = []

    @property
    def is_busy(self) -> bool:
        """Whether messages are under way."""
        return bool(self._busy)

    def awaited(self) -> list[int]:
        """Return the peers of messages under way: first those that something should come from."""
        lanes = sorted(self._busy, key=lambda lane: lane.sends)
        return list(dict.fromkeys(lane.peer for lane in lanes))

    def forget(self) -> None:
        """Look after nothing any more, after an error: what has not come must not come into memory used again."""
        for lane in self._busy:
            for message in lane.under_way:
                for handle in message.handles if not lane.sends else ():
                    self._network.abandon(handle)
        self._busy.clear()

    def progress(self, record: WireRecord, call: NDArray[np.int64], plan: Plan) -> bool:
        """Hand over what the interpreter has asked for, and note what has finished.

        Parameters
        ----------
        record : WireRecord
        call : ndarray of int64
            The call record that it belongs to.
        plan : Plan
            For messages.

        Returns
        -------
        bool
            Whether anything happened.

        Raises
        ------
        MismatchError
            If a peer's header says another call.
        NetworkError
            With the peer's rank as its second argument.
        """
        moved = False
        state = record.state
        epoch = int(call[CALL_EPOCH])
        if record.epoch != epoch:
            record.epoch = epoch
            for lane in record.lanes:
                lane.started = 0
        taken, queued, mask = state[WIRE_TAKEN], state[WIRE_QUEUED], state[WIRE_MASK]
        while taken != queued:
            at = WIRE_REQUEST_WORDS * (taken & mask)
            self._start(record.lanes[record.ring[at]], record.ring[at + 1], record.ring[at + 2], call)
            taken += 1
            moved = True
        state[WIRE_TAKEN] = taken
        for lane in list(self._busy):
            for message in lane.under_way:
                if not message.finished and self._has_finished(lane, message, call, plan):
                    message.finished = True
            while lane.under_way and lane.under_way[0].finished:
                lane.under_way.popleft()
                record.finished[lane.index] += 1
                moved = True
            if not lane.under_way:
                self._busy.remove(lane)
        return moved

    def _start(self, lane: _LaneState, address: int, n_bytes: int, call: NDArray[np.int64]) -> None:
        if not lane.under_way:
            self._busy.append(lane)
        has_header = lane.is_first and lane.started == 0
        lane.started += 1
        begin = self._network.send if lane.sends else self._network.receive
        handles = []
        try:
            if has_header:
                length = HEADER_BYTES + INLINE_BYTES
                if lane.sends:
                    header = lane.header
                    header[HEADER_EPOCH], header[HEADER_SIGNATURE], header[HEADER_COUNT] = _call_of(call)
                    header[HEADER_SLICE_BYTES] = n_bytes
                    length = HEADER_BYTES
                    if n_bytes <= INLINE_BYTES:
                        ctypes.memmove(lane.header_address + HEADER_BYTES, address, n_bytes)
                        length += n_bytes
                handles.append(begin(lane.header_address, length, lane.peer, HEADER_TAG))
            if not has_header or n_bytes > INLINE_BYTES:
                handles.append(begin(address, n_bytes, lane.peer, lane.tag))
        except NetworkError as error:
            raise NetworkError(str(error), lane.peer) from None
        lane.under_way.append(_Message(handles, address, n_bytes, has_header))

    def _has_finished(self, lane: _LaneState, message: _Message, call: NDArray[np.int64], plan: Plan) -> bool:
        # The header, if there is one, first: it explains what may be wrong with the rest.
        while message.handles:
            try:
                if not self._network.has_finished(message.handles[0]):
                    return False
            except NetworkError as error:
                self._explain(lane, call, plan)
                raise NetworkError(str(error), lane.peer) from None
            del message.handles[0]
            if message.has_header:
                message.has_header = False
                if not lane.sends:
                    self._compare(lane, message.n_bytes, call, plan)
                    if message.n_bytes <= INLINE_BYTES:
                        ctypes.memmove(message.address, lane.header_address + HEADER_BYTES, message.n_bytes)
        return True

    def _explain(self, lane: _LaneState, call: NDArray[np.int64], plan: Plan) -> None:
        """Look at the headers that are still to come from a peer: one may say why it sent something else."""
        end = time.monotonic() + VERDICT_S
        for other in self._busy:
            for message in other.under_way:
                if other.peer != lane.peer or other.sends or not message.has_header:
                    continue
                while time.monotonic() < end:
                    try:
                        if self._network.has_finished(message.handles[0]):
                            self._compare(other, message.n_bytes, call, plan)
                            return
                    except NetworkError:
                        return
                    os.sched_yield()

    def _compare(self, lane: _LaneState, n_bytes: int, call: NDArray[np.int64], plan: Plan) -> None:
        header = lane.header
        theirs = header[HEADER_EPOCH], header[HEADER_SIGNATURE], header[HEADER_COUNT]
        mine = _call_of(call)
        if theirs != mine or header[HEADER_SLICE_BYTES] != n_bytes:
            raise far_mismatch_error(self._rank, lane.peer, mine, theirs, plan)


def _call_of(call: NDArray[np.int64]) -> tuple[int, int, int]:
    return int(call[CALL_EPOCH]), int(call[CALL_SIGNATURE]), int(call[CALL_COUNT])
