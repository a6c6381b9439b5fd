"""The one place where a communicator gets its executor from."""

from __future__ import annotations

from typing import Any

from multiring.collectives.communicator.contract import Executor
from multiring.collectives.time_limit import seconds_of
from multiring.errors import ArgumentError

__all__ = ["DEVICES", "start_executor"]

DEVICES = ("auto", "host", "cuda")


def start_executor(device: str, timeout: float, mpi_comm: Any = None, *, over_mpi: bool = False) -> Executor:
    """Find the other ranks and return this rank's executor.

    Parameters
    ----------
    device : str
        One of :data:`DEVICES`.
    timeout : float
        Seconds that a call waits for its peers; above 0 and at most 1e9.
    mpi_comm : mpi4py.MPI.Intracomm, optional
        The ranks, and the way to them.
    over_mpi : bool
        Whether ``mpi_comm`` counts; else the launcher's environment decides.
    """
    if device not in DEVICES:
        raise ArgumentError(f"device: got {device!r}, wanted one of {', '.join(map(repr, DEVICES))}")
    limit_s = seconds_of(f"{'from_mpi' if over_mpi else 'init'}: timeout", timeout)
    from multiring.collectives import initialise

    if not over_mpi:
        return initialise.init(device, limit_s)
    return initialise.from_mpi(mpi_comm, device, limit_s)
