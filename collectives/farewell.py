"""The end of a process that used MPI: MPI_Finalize waits for all ranks, also for those that will never come.

A process in which a communicator failed tells its peers so and ends without MPI_Finalize. One that closed in good order
first waits until all its peers are that far, in a barrier that it leaves when it is told of a failure: then it ends
without MPI_Finalize too.
"""

from __future__ import annotations

import os
import sys
import time
from array import array
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["expect", "note_failure", "say_farewell"]

FAILED_TAG = 0
LONGEST_NAP_S = 1e-3
PARTING_S = 1.5
"""How long a process whose communicator failed waits for the others to be that far: mpiexec may end the whole job, and
drop what the others have to say, as soon as a second process has gone."""
OUTPUT_S = 0.1
"""How long mpiexec may take to read what was said last."""

_meetings: dict[tuple[int, ...], MPI.Intracomm] = {}
"""By their ranks in MPI.COMM_WORLD: communicators of our own, over which peers part."""
_failed: list[bool] = []


def expect(comm: MPI.Intracomm) -> None:
    """Note that this process must part from the ranks of a communicator; a collective call."""
    from mpi4py import MPI

    group, world = comm.Get_group(), MPI.COMM_WORLD.Get_group()
    ranks = tuple(group.Translate_ranks(list(range(group.Get_size())), world))
    group.Free()
    world.Free()
    # Duplicated once for the same ranks, however often they meet: MPI has few communicators.
    if ranks not in _meetings:
        _meetings[ranks] = comm.Dup()


def note_failure() -> None:
    """Note that a communicator of this process failed."""
    _failed.append(True)


def say_farewell() -> None:
    """Return when all peers have come here; end the process if anything failed."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not _meetings or mpi.Is_finalized():
        return
    if _failed:
        _leave_without_finalize()
    for comm in _meetings.values():
        barrier, nap_s = comm.Ibarrier(), 1e-6
        while not barrier.Test():
            if any(other.Iprobe(mpi.ANY_SOURCE, FAILED_TAG) for other in _meetings.values()):
                _leave_without_finalize()
            time.sleep(nap_s)
            nap_s = min(nap_s * 2, LONGEST_NAP_S)


def _leave_without_finalize() -> NoReturn:
    """End the process here, when those that wait for it know, and have said what they have to say."""
    from mpi4py import MPI

    sys.stdout.flush()
    sys.stderr.flush()
    news, room = array("b", [1]), array("b", [0])
    end = time.monotonic() + PARTING_S
    missing = [
        (comm, comm.Isend(news, peer, FAILED_TAG), comm.Irecv(room, peer, FAILED_TAG))
        for comm in _meetings.values()
        for peer in range(comm.size)
        if peer != comm.rank
    ]
    while missing and time.monotonic() < end:
        try:
            missing = [entry for entry in missing if not (entry[1].Test() and entry[2].Test())]
        except MPI.Exception:
            break  # It says of a peer what is known already.
        time.sleep(LONGEST_NAP_S)
    time.sleep(OUTPUT_S)
    os._exit(1 if getattr(sys, "last_value", None) is not None else 0)
