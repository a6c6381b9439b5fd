"""The symmetric heap of a GPU: arrays of this process that every peer on the node reads and writes directly.

One for each process, shared by all its communicators, like the host's (:mod:`multiring.collectives.drivers.heap`). A
segment is one allocation, exported once and opened once by each peer that meets it: what a CUDA handle names is an
allocation, never an address inside one. A segment is freed only while no array lies in it and no peer has it open.
"""

from __future__ import annotations

import os
import threading
import weakref

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.drivers.control import words_at
from multiring.collectives.drivers.device import GRANULE_BYTES, HANDLE_BYTES, Device
from multiring.collectives.drivers.device_directory import (
    BYTES,
    DIRECTORY_BYTES,
    DIRECTORY_WORDS,
    HANDLE,
    MAX_SEGMENTS,
    OPENERS,
    entry_of,
    openers_of,
)
from multiring.collectives.drivers.free_list import FreeList
from multiring.collectives.drivers.room import heap_limit_bytes
from multiring.collectives.drivers.segment import Segment
from multiring.errors import DeviceError, SharedMemoryError

__all__ = ["Block", "DeviceHeap", "device_heap"]

FIRST_SEGMENT_BYTES = 16 << 20
ALIGNMENT_BYTES = 256


class Block:
    """Part of a segment; its memory comes back when Python collects it.

    Attributes
    ----------
    address, n_bytes : int
    """

    __slots__ = ("__weakref__", "address", "n_bytes")

    def __init__(self, address: int, n_bytes: int) -> None:
        self.address = address
        self.n_bytes = n_bytes


class DeviceHeap:
    """This process's symmetric memory on its GPU.

    Parameters
    ----------
    device : Device

    Attributes
    ----------
    token : int
        Random, to tell this heap from that of another process.
    directory : Segment
        What peers map first, in host memory.
    table : ndarray of int64
        For the interpreter: the number of segments, then (address, bytes) of each; 0 bytes where one was freed or
        cannot be exported.
    bases : ndarray of int64, shape (MAX_SEGMENTS,)
        The addresses alone, as in a peer's table.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.directory = Segment.create(DIRECTORY_BYTES, "directory of the GPU's symmetric heap")
        self._directory = words_at(self.directory.address, DIRECTORY_WORDS)
        self.table: NDArray[np.int64] = np.zeros(1 + 2 * MAX_SEGMENTS, dtype=np.int64)
        self.bases: NDArray[np.int64] = np.zeros(MAX_SEGMENTS, dtype=np.int64)
        self.token = int.from_bytes(os.urandom(7), "little")
        self._free: list[FreeList | None] = []
        self._lent: list[int] = []
        self._spans: list[tuple[int, int]] = []
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._returned: list[tuple[int, int, int, int]] = []
        self._generation = 0
        limit = heap_limit_bytes()
        self._limit = limit // GRANULE_BYTES * GRANULE_BYTES if limit is not None else None

    def allocate(self, n_bytes: int) -> Block:
        """Return a block of symmetric memory.

        Raises
        ------
        SharedMemoryError
            If the heap may not grow that far, or belongs to the process that this one was forked from.
        """
        if os.getpid() != self._pid:
            raise SharedMemoryError(
                f"symmetric heap: process {os.getpid()} was forked from {self._pid}, whose GPU memory this is; start"
                " processes that use a GPU by spawn, not fork"
            )
        size = max(-(-n_bytes // ALIGNMENT_BYTES), 1) * ALIGNMENT_BYTES
        self.device.use()
        with self._lock:
            index, offset = self._find(size)
            self._lent[index] += 1
            block = Block(int(self.bases[index]) + offset, n_bytes)
            note = (index, offset, size, self._generation)
        # A finalizer runs wherever the collector happens to: it only takes a note.
        weakref.finalize(block, self._returned.append, note).atexit = False
        return block

    def _find(self, size: int) -> tuple[int, int]:
        found = self._take(size)
        if found is None and self._reclaim():
            found = self._take(size)
        if found is None:
            self._grow(size)
            found = self._take(size)
        if found is None:
            raise SharedMemoryError(f"symmetric heap: a new segment does not hold the {size} bytes it was made for")
        return found

    def _take(self, size: int) -> tuple[int, int] | None:
        for index, free in enumerate(self._free):
            offset = free.take(size, ALIGNMENT_BYTES) if free is not None else None
            if offset is not None:
                return index, offset
        return None

    def _reclaim(self) -> bool:
        """Take back what was returned; kernels of the user's may still work on it, so they end first."""
        if not self._returned:
            return False
        self.device.wait_for_all()
        while self._returned:
            index, offset, size, generation = self._returned.pop()
            free = self._free[index]
            if generation == self._generation and free is not None:
                free.give(offset, size)
                self._lent[index] -= 1
        return True

    def retire(self) -> None:
        """Never hand out again what is lent now: after an error, a late peer may still write into it."""
        with self._lock:
            self._generation += 1

    def _grow(self, size: int) -> None:
        used = sum(n_bytes for _, n_bytes in self._spans)
        try:
            room = self.device.free_bytes() if self._limit is None else self._limit - used
            index = len(self._free)  # A number is used once: peers remember what they have opened.
            least = -(-size // GRANULE_BYTES) * GRANULE_BYTES
            if least > room or index == MAX_SEGMENTS:
                raise DeviceError(f"{room} bytes are left")
            wanted = max(least, min(FIRST_SEGMENT_BYTES, room // GRANULE_BYTES * GRANULE_BYTES))
            address, wanted = self._allocate(wanted, least)
        except DeviceError as error:
            remedy = "free memory of the GPU" if self._limit is None else f"raise MULTIRING_HEAP_BYTES={self._limit}"
            raise SharedMemoryError(
                f"symmetric heap on {self.device.name}: wanted {size} bytes more, {used} are in use in"
                f" {len(self._free)} segments of at most {MAX_SEGMENTS}: {error}; delete arrays, or {remedy}"
            ) from error
        self._enter(index, address, wanted)

    def _allocate(self, wanted: int, least: int) -> tuple[int, int]:
        try:
            return self.device.allocate(wanted), wanted
        except DeviceError:
            if wanted == least:
                raise
            return self.device.allocate(least), least

    def _enter(self, index: int, address: int, n_bytes: int) -> None:
        self._free.append(FreeList(n_bytes))
        self._lent.append(0)
        self._spans.append((address, n_bytes))
        try:
            handle, reachable = self.device.export(address), n_bytes
        except DeviceError:
            # Its arrays are ordinary. That slots cannot be reached either is found out when the ranks join.
            handle, reachable = bytes(HANDLE_BYTES), 0
        entry = entry_of(self._directory, index)
        entry[HANDLE:] = np.frombuffer(handle, np.int64)
        entry[OPENERS] = 0
        entry[BYTES] = n_bytes
        self.table[1 + 2 * index : 3 + 2 * index] = address, reachable
        self.bases[index] = address
        # Peers read an entry only after a call whose line names its segment, and the line is released after this.
        self._directory[0] = self.table[0] = len(self._free)

    def holds(self, address: int, n_bytes: int) -> bool:
        """Whether a range lies in one segment of this heap that peers can open."""
        place = self.place(address, n_bytes)
        return place is not None and int(self.table[2 + 2 * place[0]]) > 0

    def place(self, address: int, n_bytes: int) -> tuple[int, int] | None:
        """Return (segment, offset) of a range, or None."""
        for index, (start, size) in enumerate(self._spans):
            if size and start <= address and address + n_bytes <= start + size:
                return index, address - start
        return None

    @property
    def n_segments(self) -> int:
        """Segments so far, freed ones too."""
        return int(self.table[0])

    def trim(self) -> None:
        """Free the segments in which no array lies and that no peer has open."""
        with self._lock:
            self._reclaim()
            for index, free in enumerate(self._free):
                entry = entry_of(self._directory, index)
                if free is None or self._lent[index]:
                    continue
                # Peers count themselves first and look at the bytes then: one of the two sees the other.
                n_bytes, entry[BYTES] = int(entry[BYTES]), 0
                if openers_of(entry):
                    entry[BYTES] = n_bytes
                    continue
                self.device.free(int(self.bases[index]))
                self.table[1 + 2 * index : 3 + 2 * index] = 0
                self.bases[index] = 0
                self._free[index], self._spans[index] = None, (0, 0)


_heaps: dict[tuple[int, int], DeviceHeap] = {}
_heaps_lock = threading.Lock()


def device_heap(device: Device) -> DeviceHeap:
    """Return this process's heap on a GPU; all communicators share it."""
    with _heaps_lock:
        key = os.getpid(), id(device)
        if key not in _heaps:
            _heaps[key] = DeviceHeap(device)
        return _heaps[key]
