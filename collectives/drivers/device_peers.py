"""The symmetric heaps of other processes' GPUs, opened segment by segment at first use."""

from __future__ import annotations

import os
import threading

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.drivers.control import words_at
from multiring.collectives.drivers.device import Device
from multiring.collectives.drivers.device_directory import (
    BYTES,
    DIRECTORY_BYTES,
    DIRECTORY_WORDS,
    HANDLE,
    MAX_SEGMENTS,
    count_opener,
    entry_of,
)
from multiring.collectives.drivers.segment import Segment
from multiring.errors import DeviceError

__all__ = ["PeerDeviceHeap", "acquire", "release"]


class PeerDeviceHeap:
    """Another process's heap, as far as this process has opened it.

    Parameters
    ----------
    device : Device
    pid, descriptor : int
        Whose, and its directory.

    Attributes
    ----------
    bases : ndarray of int64, shape (MAX_SEGMENTS,)
        Where its segments lie in this process; 0 while not open.
    users : int
        Communicators that need it: the last one closes it.
    """

    def __init__(self, device: Device, pid: int, descriptor: int) -> None:
        self.device = device
        self.pid = pid
        self.users = 0
        self._lock = threading.Lock()
        self._map = Segment.attach(pid, descriptor, DIRECTORY_BYTES, "a peer's symmetric heap")
        self._directory = words_at(self._map.address, DIRECTORY_WORDS)
        self.bases: NDArray[np.int64] = np.zeros(MAX_SEGMENTS, dtype=np.int64)

    @property
    def n_segments(self) -> int:
        """Segments that the peer has made so far."""
        return int(self._directory[0])

    def attach(self, index: int) -> None:
        """Open a segment; at its second time nothing.

        Raises
        ------
        DeviceError
            If the driver refuses.
        """
        # A watchdog opens segments too, and a handle may be opened once.
        with self._lock:
            self._attach(index)

    def _attach(self, index: int) -> None:
        if self.bases[index]:
            return
        entry = entry_of(self._directory, index)
        self.device.use()
        # Counted before the bytes are read: an owner that frees meanwhile has set them to 0, or keeps the segment.
        count_opener(entry, 1)
        try:
            if int(entry[BYTES]) == 0:
                raise DeviceError(f"segment {index} of process {self.pid} was freed")
            self.bases[index] = self.device.open(entry[HANDLE:].tobytes())
        except DeviceError:
            count_opener(entry, -1)
            raise

    def close(self) -> None:
        """Close what is open."""
        for index in np.flatnonzero(self.bases).tolist():
            address, self.bases[index] = int(self.bases[index]), 0
            try:
                self.device.close(address)
            finally:
                count_opener(entry_of(self._directory, index), -1)


_peers: dict[tuple[int, int, int, int, int], PeerDeviceHeap] = {}
_lock = threading.Lock()


def acquire(device: Device, pid: int, descriptor: int, token: int) -> PeerDeviceHeap:
    """Return the heap of another process, once more needed; all communicators share it.

    Parameters
    ----------
    device : Device
    pid, descriptor : int
        Whose, and its directory.
    token : int
        Tells it from the heap of an earlier process of the same number.
    """
    with _lock:
        key = (os.getpid(), id(device), pid, descriptor, token)
        if key not in _peers:
            _peers[key] = PeerDeviceHeap(device, pid, descriptor)
        _peers[key].users += 1
        return _peers[key]


def release(heap: PeerDeviceHeap) -> None:
    """Say that one communicator needs a heap no longer; the last one closes its mappings."""
    with _lock:
        heap.users -= 1
        if heap.users:
            return
        for key, found in list(_peers.items()):
            if found is heap:
                del _peers[key]
    heap.close()
