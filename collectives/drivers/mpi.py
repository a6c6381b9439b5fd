"""The network between nodes as MPI point-to-point messages."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from multiring.collectives.drivers.network import SPLIT_TAG, NetworkError

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["Mpi"]

CANCEL_S = 0.05
"""How long a receive may take to be cancelled."""


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

    def split(self, ranks: Sequence[int]) -> Mpi:
        """See :class:`~multiring.collectives.drivers.network.Network`."""
        world = self._open.Get_group()
        group = world.Incl(list(ranks))
        try:
            return Mpi(self._open.Create_group(group, SPLIT_TAG))
        finally:
            group.Free()
            world.Free()

    def close(self) -> None:
        """See :class:`~multiring.collectives.drivers.network.Network`."""
        self._comm = None
