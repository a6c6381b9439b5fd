"""Sends and receives between ranks of different nodes, several at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.drivers.network import MAIL_HEADER_TAG, MAIL_TAG, Network, NetworkError
from multiring.kernels.records import (
    CALL_SIGNATURE,
    CALL_X,
    CALL_X_BYTES,
    MAIL_PEER,
    MAIL_SENDS,
)

__all__ = ["FarMail", "FarMismatchError"]

HEADER_WORDS = 2
PIECE_BYTES = 1 << 30
"""The most that one message carries: counts in MPI are 32 bits wide."""


class FarMismatchError(Exception):
    """A message of another size or type came than was expected: (record, bytes, element type)."""


class FarMail:
    """Point-to-point operations under way.

    Parameters
    ----------
    network : Network
    records : sequence of ndarray of int64
        One record for each operation, as :mod:`multiring.kernels.mail` reads them, but with the communicator's rank as
        the peer. Those from and to one rank match in the order given.

    Notes
    -----
    Each message is a header of its bytes and element type, then pieces of its bytes. All are under way at once.
    """

    def __init__(self, network: Network, records: Sequence[NDArray[np.int64]]) -> None:
        self._network = network
        self._operations = [_Operation(network, record) for record in records]

    @property
    def awaited(self) -> list[int]:
        """The peers of what is under way: first those that something should come from."""
        by_kind = sorted(self._operations, key=lambda operation: operation.sends)
        return list(dict.fromkeys(operation.peer for operation in by_kind))

    @property
    def first(self) -> NDArray[np.int64] | None:
        """The record of the first operation under way, or None."""
        return self._operations[0].record if self._operations else None

    def progress(self) -> bool:
        """Note what has finished; return whether anything did.

        Raises
        ------
        FarMismatchError
        NetworkError
            With the record as its second argument.
        """
        open_before = len(self._operations)
        self._operations = [operation for operation in self._operations if not operation.has_finished()]
        return len(self._operations) < open_before


class _Operation:
    def __init__(self, network: Network, record: NDArray[np.int64]) -> None:
        self.record = record
        self.peer = int(record[MAIL_PEER])
        self.sends = bool(record[MAIL_SENDS])
        self._network = network
        self._header: NDArray[np.int64] = np.zeros(HEADER_WORDS, dtype=np.int64)
        self._expected = int(record[CALL_X_BYTES]), int(record[CALL_SIGNATURE])
        begin = network.receive
        if self.sends:
            begin = network.send
            self._header[:] = self._expected
        address, n_bytes = int(record[CALL_X]), self._expected[0]
        self._handles: list[Any] = []
        try:
            self._handles.append(begin(self._header.ctypes.data, self._header.nbytes, self.peer, MAIL_HEADER_TAG))
            for start in range(0, n_bytes, PIECE_BYTES):
                piece = min(PIECE_BYTES, n_bytes - start)
                self._handles.append(begin(address + start, piece, self.peer, MAIL_TAG))
        except NetworkError as error:
            raise NetworkError(str(error), record) from None
        self._knows_header = self.sends

    def has_finished(self) -> bool:
        while self._handles:
            try:
                if not self._network.has_finished(self._handles[0]):
                    return False
            except NetworkError as error:
                raise NetworkError(str(error), self.record) from None
            del self._handles[0]
            if not self._knows_header:
                self._knows_header = True
                got = int(self._header[0]), int(self._header[1])
                if got != self._expected:
                    raise FarMismatchError(self.record, *got)
        return True
