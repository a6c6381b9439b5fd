"""The symmetric heap: arrays of this process that every peer on the node reads and writes directly.

One for each process, shared by all its communicators. Allocating and freeing are local: a call publishes where its
arrays lie as (segment, offset), and peers map a segment the first time they meet it.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.drivers.control import words_at
from multiring.collectives.drivers.free_list import FreeList
from multiring.collectives.drivers.room import available_bytes, heap_limit_bytes
from multiring.collectives.drivers.segment import PAGE_BYTES, Segment
from multiring.errors import SharedMemoryError

__all__ = ["MAX_SEGMENTS", "Heap", "PeerHeap", "heap", "peer_heap"]

MAX_SEGMENTS = 64
FIRST_SEGMENT_BYTES = 16 << 20
ALIGNMENT_BYTES = 64
_DIRECTORY_WORDS = 1 + 2 * MAX_SEGMENTS


class Heap:
    """This process's symmetric memory.

    Attributes
    ----------
    token : int
        Random, to tell this heap from that of another process.
    directory : Segment
        What peers map first: the number of segments, then (descriptor, bytes) of each.
    table : ndarray of int64
        For the interpreter: the number of segments, then (address, bytes) of each.
    bases : ndarray of int64, shape (MAX_SEGMENTS,)
        The addresses alone, as in a peer's table.
    """

    def __init__(self) -> None:
        self.directory = Segment.create(8 * _DIRECTORY_WORDS, "directory of the symmetric heap")
        self._directory = words_at(self.directory.address, _DIRECTORY_WORDS)
        self.table: NDArray[np.int64] = np.zeros(_DIRECTORY_WORDS, dtype=np.int64)
        self.bases: NDArray[np.int64] = np.zeros(MAX_SEGMENTS, dtype=np.int64)
        self._segments: list[Segment] = []
        self._free: list[FreeList] = []
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._returned: list[tuple[int, int, int, int]] = []
        self._generation = 0
        self.token = int.from_bytes(os.urandom(7), "little")
        limit = heap_limit_bytes()
        # Segments are whole pages, and the limit is never passed.
        self._limit = (limit if limit is not None else available_bytes()) // PAGE_BYTES * PAGE_BYTES

    def allocate(self, n_bytes: int) -> Any:
        """Return a buffer object of ``n_bytes``; its memory comes back when Python collects it.

        Raises
        ------
        SharedMemoryError
            If the heap may not grow that far, or belongs to the process that this one was forked from.
        """
        if os.getpid() != self._pid:
            raise SharedMemoryError(
                f"symmetric heap: process {os.getpid()} was forked from {self._pid}, whose heap this is: what either"
                " allocates, the other would overwrite; make a new communicator in the child, or start it anew"
            )
        size = max(-(-n_bytes // ALIGNMENT_BYTES), 1) * ALIGNMENT_BYTES
        alignment = PAGE_BYTES if size >= PAGE_BYTES else ALIGNMENT_BYTES
        with self._lock:
            self._reclaim()
            index, offset = self._find(size, alignment)
            generation = self._generation
            address = self._segments[index].address + offset
        buffer = (ctypes.c_char * n_bytes).from_address(address)
        # A finalizer runs wherever the collector happens to, perhaps inside allocate() itself: it only takes a note.
        weakref.finalize(buffer, self._returned.append, (index, offset, size, generation)).atexit = False
        return buffer

    def _reclaim(self) -> None:
        while self._returned:
            index, offset, size, generation = self._returned.pop()
            if generation == self._generation:
                self._free[index].give(offset, size)

    def retire(self) -> None:
        """Never hand out again what is lent now: after an error, a late peer may still write one block into it."""
        with self._lock:
            self._reclaim()
            self._generation += 1

    def _find(self, size: int, alignment: int) -> tuple[int, int]:
        for index, free in enumerate(self._free):
            offset = free.take(size, alignment)
            if offset is not None:
                return index, offset
        self._grow(size)
        offset = self._free[-1].take(size, alignment)
        if offset is None:
            raise SharedMemoryError(
                f"symmetric heap: a new segment does not hold the {size} bytes that it was made for"
            )
        return len(self._segments) - 1, offset

    def _grow(self, size: int) -> None:
        used = sum(s.n_bytes for s in self._segments)
        room = self._limit - used
        index = len(self._segments)
        if size > room or index == MAX_SEGMENTS:
            raise SharedMemoryError(
                f"symmetric heap: wanted {size} bytes more, {used} are mapped in {index} segments of at most"
                f" {MAX_SEGMENTS}, the limit is {self._limit}; delete arrays, or raise MULTIRING_HEAP_BYTES"
            )
        wanted = min(max(size, FIRST_SEGMENT_BYTES, used // 2), room)
        try:
            segment = Segment.create(wanted, "symmetric heap")
        except SharedMemoryError:
            if wanted == size:
                raise
            segment = Segment.create(size, "symmetric heap")
        self._segments.append(segment)
        self._free.append(FreeList(segment.n_bytes))
        self.table[1 + 2 * index : 3 + 2 * index] = segment.address, segment.n_bytes
        self.bases[index] = segment.address
        self._directory[1 + 2 * index : 3 + 2 * index] = segment.descriptor, segment.n_bytes
        # Peers read an entry only after a call whose line names its segment, and the line is released after this.
        self._directory[0] = index + 1
        self.table[0] = index + 1

    def holds(self, address: int, n_bytes: int) -> bool:
        """Whether a range lies in one segment of this heap."""
        return any(s.address <= address and address + n_bytes <= s.address + s.n_bytes for s in self._segments)


class PeerHeap:
    """Another process's heap, as far as this process has mapped it.

    Attributes
    ----------
    bases : ndarray of int64, shape (MAX_SEGMENTS,)
        Where its segments lie in this process; 0 while not mapped.
    """

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid = pid
        self._map = Segment.attach(pid, descriptor, _directory_bytes(), "a peer's symmetric heap")
        self._directory = words_at(self._map.address, _DIRECTORY_WORDS)
        self._segments: list[Segment] = []
        self.bases: NDArray[np.int64] = np.zeros(MAX_SEGMENTS, dtype=np.int64)

    def attach(self, index: int) -> None:
        """Map a segment.

        Raises
        ------
        SharedMemoryError
            If its owner has ended, or there is no room.
        """
        descriptor, n_bytes = (int(v) for v in self._directory[1 + 2 * index : 3 + 2 * index])
        segment = Segment.attach(self.pid, descriptor, n_bytes, "a peer's symmetric array")
        self._segments.append(segment)
        self.bases[index] = segment.address


def _directory_bytes() -> int:
    return -(-8 * _DIRECTORY_WORDS // PAGE_BYTES) * PAGE_BYTES


_heaps: dict[int, Heap] = {}
_peers: dict[tuple[int, int, int, int], PeerHeap] = {}
_lock = threading.Lock()


def heap() -> Heap:
    """Return this process's heap; a forked child has its own."""
    with _lock:
        pid = os.getpid()
        if pid not in _heaps:
            _heaps[pid] = Heap()
        return _heaps[pid]


def peer_heap(pid: int, descriptor: int, token: int) -> PeerHeap:
    """Return the mapped heap of another process; all communicators share it.

    Parameters
    ----------
    pid, descriptor : int
        Whose, and its directory.
    token : int
        Tells it from the heap of an earlier process of the same number.
    """
    with _lock:
        key = (os.getpid(), pid, descriptor, token)
        if key not in _peers:
            _peers[key] = PeerHeap(pid, descriptor)
        return _peers[key]
