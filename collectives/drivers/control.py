"""The control segment of a communicator, and each rank's private context: where the protocol's words lie.

The protocol itself is in ``DESIGN.md`` beside this file.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from multiring.kernels.records import (
    CONTEXT_ARRIVAL_STRIDE,
    CONTEXT_ARRIVALS,
    CONTEXT_BOX_BYTES,
    CONTEXT_CONTROL,
    CONTEXT_DELAY,
    CONTEXT_DESCRIPTORS,
    CONTEXT_EPOCH,
    CONTEXT_HEAP,
    CONTEXT_MAIL,
    CONTEXT_MAIL_STRIDE,
    CONTEXT_N_BOXES,
    CONTEXT_N_SLOTS,
    CONTEXT_PARITY_MASK,
    CONTEXT_PATIENCE_NS,
    CONTEXT_PEERS,
    CONTEXT_PROGRESS,
    CONTEXT_RANDOM,
    CONTEXT_RANK,
    CONTEXT_RANKS,
    CONTEXT_REPORTS,
    CONTEXT_SIZE,
    CONTEXT_SLOT_BYTES,
    CONTEXT_SLOTS,
    CONTEXT_SPINS,
    CONTEXT_TIMESPEC,
    CONTEXT_WORDS,
    CONTEXT_YIELDS,
    CONTROL_ABORT,
    CONTROL_HEADER_BYTES,
    CONTROL_TEXT,
    CONTROL_TEXT_BYTES,
    LINE_BYTES,
    MAIL_BOXES,
    REPORT_WORDS,
)

__all__ = ["Context", "Layout", "Waiting", "words_at"]

PAGE_BYTES = 4096
FAR_SLOTS = 16
FAR_SLOT_BYTES = 256 << 10
"""What leaves a node is cut into slices of this many bytes less what other places take: see ``Layout``."""


def _pages(n_bytes: int) -> int:
    return -(-n_bytes // PAGE_BYTES) * PAGE_BYTES


@dataclass(frozen=True)
class Layout:
    """Sizes and offsets of a control segment.

    Parameters
    ----------
    n_ranks : int
    n_slots : int
        Slots of each rank, at least 3.
    slot_bytes : int
        Bytes of a slot. Together a rank's slots should fit its second-level cache.
    eager_bytes : int
        Bytes of an arrival line's payload area.
    """

    n_ranks: int
    n_slots: int = 4
    slot_bytes: int = 128 << 10
    eager_bytes: int = 8192

    @classmethod
    def between_nodes(cls, n_ranks: int) -> Layout:
        """Return the layout of a node among several: more slots, so that more slices are on their way at once."""
        return cls(n_ranks, n_slots=FAR_SLOTS, slot_bytes=FAR_SLOT_BYTES)

    @property
    def n_boxes(self) -> int:
        """Boxes of each ordered pair of ranks."""
        return 4

    @property
    def box_bytes(self) -> int:
        """Bytes of a point-to-point box: all pairs together take at most 16 MiB, or 256 bytes a box."""
        share = (16 << 20) // (self.n_ranks * self.n_ranks * self.n_boxes)
        return min(max(share // LINE_BYTES * LINE_BYTES, 256), 64 << 10)

    @property
    def arrival_stride(self) -> int:
        """Bytes from one arrival line to the next."""
        return LINE_BYTES + -(-self.eager_bytes // LINE_BYTES) * LINE_BYTES

    @property
    def progress(self) -> int:
        """Offset of the progress words."""
        return CONTROL_HEADER_BYTES + 2 * self.n_ranks * self.arrival_stride

    @property
    def reports(self) -> int:
        """Offset of the reports."""
        return self.progress + self.n_ranks * LINE_BYTES

    @property
    def slots(self) -> int:
        """Offset of the slots."""
        return _pages(self.reports + self.n_ranks * LINE_BYTES)

    @property
    def mail(self) -> int:
        """Offset of the point-to-point boxes."""
        return _pages(self.slots + self.n_ranks * self.n_slots * self.slot_bytes)

    @property
    def mail_stride(self) -> int:
        """Bytes from one pair's boxes to the next."""
        return MAIL_BOXES + self.n_boxes * self.box_bytes

    @property
    def n_bytes(self) -> int:
        """Bytes of the segment."""
        return _pages(self.mail + self.n_ranks * self.n_ranks * self.mail_stride)


@dataclass(frozen=True)
class Waiting:
    """How a rank waits.

    Attributes
    ----------
    spins : int
        Looks in a tight loop first; 0 where ranks share cores, since the awaited rank needs the core.
    yields : int
        Then looks between offers of the core to others; then it sleeps.
    sleep_us : int
        The longest sleep, in microseconds.
    patience_ms : int
        How long a native call lasts at most before Python may look at signals; 0: it never waits.
    delay : int
        Chance in 256 of a random delay between the protocol's steps, for tests.
    seed : int
        Of these delays.
    """

    spins: int = 1000
    yields: int = 100
    sleep_us: int = 20_000
    patience_ms: int = 100
    delay: int = 0
    seed: int = 1

    @classmethod
    def of(cls, n_ranks: int, n_cores: int) -> Waiting:
        """Return the policy for ``n_ranks`` ranks that share ``n_cores`` cores."""
        return cls() if n_ranks <= n_cores else cls(spins=0)


class Context:
    """One rank's private record of a communicator, and the tables that it points to.

    Parameters
    ----------
    rank : int
        Among the ranks of the node, as everywhere here but in ``ranks``.
    layout : Layout
    control : int
        Address of the control segment in this process.
    waiting : Waiting
    heap_table : ndarray of int64
        This process's heap, as :class:`multiring.collectives.drivers.heap.Heap` keeps it.
    peer_bases : list of ndarray of int64
        Each rank's table of segment addresses in this process.
    descriptors : list of int
        A pidfd of each rank; -1 for this one, or where there is none.
    ranks : sequence of int, optional
        What the communicator calls the ranks of this node, then those of the others. By default all are here.
    """

    def __init__(
        self,
        rank: int,
        layout: Layout,
        control: int,
        waiting: Waiting,
        heap_table: NDArray[np.int64],
        peer_bases: list[NDArray[np.int64]],
        descriptors: list[int],
        ranks: Sequence[int] | None = None,
    ) -> None:
        self.layout = layout
        self.ranks = list(ranks or range(layout.n_ranks))
        self.member_of = {r: member for member, r in enumerate(self.ranks)}
        """What this node calls a rank of the communicator; those of other nodes come after its own."""
        self._ranks: NDArray[np.int64] = np.array(self.ranks, dtype=np.int64)
        self.words: NDArray[np.int64] = np.zeros(CONTEXT_WORDS, dtype=np.int64)
        self.address = self.words.ctypes.data
        self.descriptors = descriptors
        self._keep = [heap_table, peer_bases]
        self._peers: NDArray[np.int64] = np.array([b.ctypes.data for b in peer_bases], dtype=np.int64)
        poll_in = 1
        self._descriptors: NDArray[np.int64] = np.array(
            [(d & 0xFFFFFFFF) | (poll_in << 32) for d in descriptors], dtype=np.int64
        )
        self._timespec: NDArray[np.int64] = np.array(
            [waiting.sleep_us // 1_000_000, waiting.sleep_us % 1_000_000 * 1000], dtype=np.int64
        )
        for field, value in (
            (CONTEXT_RANK, rank),
            (CONTEXT_SIZE, layout.n_ranks),
            (CONTEXT_CONTROL, control),
            (CONTEXT_ARRIVALS, control + CONTROL_HEADER_BYTES),
            (CONTEXT_ARRIVAL_STRIDE, layout.arrival_stride),
            (CONTEXT_PROGRESS, control + layout.progress),
            (CONTEXT_REPORTS, control + layout.reports),
            (CONTEXT_SLOTS, control + layout.slots),
            (CONTEXT_SLOT_BYTES, layout.slot_bytes),
            (CONTEXT_N_SLOTS, layout.n_slots),
            (CONTEXT_PARITY_MASK, 1),
            (CONTEXT_SPINS, waiting.spins),
            (CONTEXT_YIELDS, waiting.yields),
            (CONTEXT_DESCRIPTORS, self._descriptors.ctypes.data),
            (CONTEXT_TIMESPEC, self._timespec.ctypes.data),
            (CONTEXT_PATIENCE_NS, waiting.patience_ms * 1_000_000),
            (CONTEXT_HEAP, heap_table.ctypes.data),
            (CONTEXT_PEERS, self._peers.ctypes.data),
            (CONTEXT_DELAY, waiting.delay),
            (CONTEXT_RANDOM, waiting.seed * 7919 + rank * 104729 + 12345),
            (CONTEXT_MAIL, control + layout.mail),
            (CONTEXT_MAIL_STRIDE, layout.mail_stride),
            (CONTEXT_BOX_BYTES, layout.box_bytes),
            (CONTEXT_N_BOXES, layout.n_boxes),
            (CONTEXT_RANKS, self._ranks.ctypes.data),
        ):
            self.words[field] = value

    @property
    def memory(self) -> list[NDArray[np.int64]]:
        """The private arrays that the record consists of."""
        return [self.words, self._peers, self._descriptors, self._timespec, self._ranks]

    @property
    def epoch(self) -> int:
        """Calls so far."""
        return int(self.words[CONTEXT_EPOCH])

    def arrival(self, epoch: int, rank: int) -> NDArray[np.int64]:
        """Return the words of the arrival line of a rank of this node."""
        parity = epoch & int(self.words[CONTEXT_PARITY_MASK])
        index = parity * self.layout.n_ranks + rank
        return words_at(int(self.words[CONTEXT_ARRIVALS]) + index * self.layout.arrival_stride, 5)

    @property
    def abort_word(self) -> int:
        """What ABORT holds; 0 while all is well."""
        return int(words_at(int(self.words[CONTEXT_CONTROL]) + CONTROL_ABORT, 1)[0])

    @property
    def abort_text(self) -> str:
        """What the rank that closed the communicator has to say."""
        address = int(self.words[CONTEXT_CONTROL]) + CONTROL_TEXT
        length = min(int(words_at(address, 1)[0]), CONTROL_TEXT_BYTES)
        return ctypes.string_at(address + 8, length).decode(errors="replace")

    @abort_text.setter
    def abort_text(self, text: str) -> None:
        data = text.encode()[:CONTROL_TEXT_BYTES]
        address = int(self.words[CONTEXT_CONTROL]) + CONTROL_TEXT
        ctypes.memmove(address + 8, data, len(data))
        words_at(address, 1)[0] = len(data)

    def report(self, rank: int) -> NDArray[np.int64]:
        """Return the words of the report of a rank of this node."""
        return words_at(int(self.words[CONTEXT_REPORTS]) + rank * LINE_BYTES, REPORT_WORDS)


def words_at(address: int, count: int) -> NDArray[np.int64]:
    """Return a view of words in memory."""
    return np.ctypeslib.as_array((ctypes.c_int64 * count).from_address(address))
