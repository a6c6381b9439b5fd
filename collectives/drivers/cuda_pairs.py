"""Whether two GPUs reach each other's memory: tried, since what drivers report is not always so.

Each rank has a test area at the start of its block: a pattern of its own, then a place for each rank to write in, and
one to read into::

    | own pattern | written by rank 0 | written by rank 1 | ... | landing |
"""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.drivers.device import Device
from multiring.errors import DeviceError

__all__ = ["PairTest"]

_BYTES = 256


class PairTest:
    """One rank's part of trying all pairs.

    Parameters
    ----------
    device : Device
    rank, size : int
    address : int
        Of this rank's block, at least :meth:`n_bytes` long.

    Attributes
    ----------
    pattern : bytes
        What this rank writes.
    """

    def __init__(self, device: Device, rank: int, size: int, address: int) -> None:
        self._device, self._rank, self._size, self._address = device, rank, size, address
        self.pattern = secrets.token_bytes(_BYTES)
        own = np.frombuffer(self.pattern + bytes(_BYTES * (size + 1)), np.uint8)
        device.copy(address, own.ctypes.data, own.nbytes, 0)
        device.synchronize(0)

    @staticmethod
    def n_bytes(size: int) -> int:
        """Return the bytes of a test area."""
        return _BYTES * (size + 2)

    @staticmethod
    def _written(rank: int) -> int:
        return _BYTES * (1 + rank)

    def reach(self, peer_address: int, peer_pattern: bytes) -> None:
        """Read a peer's pattern into this GPU's memory, and write this rank's into the peer's.

        Raises
        ------
        DeviceError
            If it reads as something else.
        """
        device = self._device
        # By way of this GPU's memory: what the host reads does not go from GPU to GPU.
        landing = self._address + self._written(self._size)
        seen: NDArray[np.uint8] = np.zeros(_BYTES, np.uint8)
        device.copy(landing, seen.ctypes.data, _BYTES, 0)
        device.copy(landing, peer_address, _BYTES, 0)
        device.copy(peer_address + self._written(self._rank), self._address, _BYTES, 0)
        device.copy(seen.ctypes.data, landing, _BYTES, 0)
        device.synchronize(0)
        if seen.tobytes() != peer_pattern:
            raise DeviceError("its memory reads as other bytes than were written")

    def was_reached(self, peer: int, peer_pattern: bytes) -> bool:
        """Whether what a peer wrote has arrived here."""
        seen: NDArray[np.uint8] = np.zeros(_BYTES, np.uint8)
        self._device.copy(seen.ctypes.data, self._address + self._written(peer), _BYTES, 0)
        self._device.synchronize(0)
        return seen.tobytes() == peer_pattern
