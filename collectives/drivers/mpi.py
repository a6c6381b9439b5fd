"""The network between nodes as MPI point-to-point messages."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from multiring.collectives.drivers.network import NOTICE_TAG, SPLIT_TAG, NetworkError

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["Mpi"]

NOTICE_BYTES = 4096
FAREWELL_S = 0.1
"""How long a notice may take to leave before the process goes on without looking after it."""
CANCEL_S = 0.05
_kept: list[Any] = []
"""What MPI may still write to after its owner is gone."""


class Mpi:
    """Messages over a communicator of our own.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Owned by this object from now on.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._comm: MPI.Intracomm | None = comm
        self._byte = MPI.BYTE
        self._at = MPI.memory.fromaddress
        self._room = np.zeros(NOTICE_BYTES, dtype=np.uint8)
        self._status = MPI.Status()
        self._leaving: deque[tuple[Any, Any]] = deque()
        self._listening = self._listen()

    def _listen(self) -> Any:
        assert self._comm is not None
        return self._comm.Irecv([self._room, self._byte], self._mpi.ANY_SOURCE, NOTICE_TAG)

    @property
    def _open(self) -> MPI.Intracomm:
        if self._comm is None:
            raise NetworkError("the network of this communicator is closed")
        return self._comm

    def send(self, address: int, n_bytes: int, peer: int, tag: int) -> Any:
        """See :class:`~multiring.collectives.drivers.network.Network`."""
        return self._open.Isend([self._at(address, n_bytes), self._byte], peer, tag)

    def receive(self, address: int, n_bytes: int, peer: int, tag: int) -> Any:
        """See :class:`~multiring.collectives.drivers.network.Network`."""
        return self._open.Irecv([self._at(address, n_bytes), self._byte], peer, tag)

    def has_finished(self, handle: Any) -> bool:
        """See :class:`~multiring.collectives.drivers.network.Network`."""
        try:
            return bool(handle.Test())
        except self._mpi.Exception as error:
            raise NetworkError(" ".join(str(error).split())) from None

    def abandon(self, handle: Any) -> None:
        """See :class:`~multiring.collectives.drivers.network.Network`."""
        try:
            handle.Cancel()
            end = time.monotonic() + CANCEL_S
            while not handle.Test() and time.monotonic() < end:
                pass
        except self._mpi.Exception:
            return

    def tell(self, peer: int, text: bytes) -> None:
        """See :class:`~multiring.collectives.drivers.network.Network`."""
        data = np.frombuffer(text[:NOTICE_BYTES], dtype=np.uint8)
        try:
            self._leaving.append((self._open.Isend([data, self._byte], peer, NOTICE_TAG), data))
        except (NetworkError, self._mpi.Exception):
            return  # Who cannot be reached finds out by its time limit.

    def heard(self) -> tuple[int, bytes] | None:
        """See :class:`~multiring.collectives.drivers.network.Network`."""
        if self._comm is None:
            return None
        try:
            if not self._listening.Test(self._status):
                return None
            length = self._status.Get_count(self._byte)
            found = self._status.Get_source(), self._room[:length].tobytes()
            self._listening = self._listen()
        except self._mpi.Exception:
            return None
        return found

    def split(self, ranks: Sequence[int]) -> Mpi:
        """See :class:`~multiring.collectives.drivers.network.Network`."""
        world = self._open.Get_group()
        group = world.Incl(list(ranks))
        try:
            return Mpi(self._open.Create_group(group, SPLIT_TAG))
        finally:
            group.Free()
            world.Free()

    def flush(self) -> None:
        """Let notices leave."""
        end = time.monotonic() + FAREWELL_S
        while self._leaving and time.monotonic() < end:
            try:
                if not self._leaving[0][0].Test():
                    time.sleep(1e-4)
                    continue
            except self._mpi.Exception:
                pass
            self._leaving.popleft()

    def close(self) -> None:
        """See :class:`~multiring.collectives.drivers.network.Network`."""
        comm, self._comm = self._comm, None
        if comm is None:
            return
        _kept.append(self._room)
        if not self._mpi.Is_finalized():
            self.abandon(self._listening)
