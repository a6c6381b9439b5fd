"""The end of a process that used MPI: MPI_Finalize waits for all ranks, also for those that will never come.

A process in which a communicator failed tells its peers so and ends without MPI_Finalize. One that closed in good order
first waits until all its peers are that far, in a barrier that it leaves when it is told of a failure: then it ends
without MPI_Finalize too.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from multiring.collectives.notices import own_notices

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["expect", "note_failure", "say_farewell"]

TOPIC = "farewell"
LONGEST_NAP_S = 1e-3
PARTING_S = 1.5
"""How long a process whose communicator failed waits for the others to be that far: mpiexec may end the whole job, and
drop what the others have to say, as soon as a second process has gone."""
MPI_MEMORY = ("mpich_shm_", "sm_segment.", "vader_segment.")
"""How MPICH and Open MPI name their shared memory."""
OUTPUT_S = 0.1
"""How long mpiexec may take to read what was said last."""


@dataclass
class _Meeting:
    """Ranks that part from each other: a communicator of our own, and how to tell each something."""

    comm: MPI.Intracomm
    facts: list[dict[str, Any]]


_meetings: dict[tuple[int, ...], _Meeting] = {}
"""By their ranks in MPI.COMM_WORLD."""
_failed: list[bool] = []
_failed_peers: set[str] = set()
_statuses: list[Any] = []


def expect(comm: MPI.Intracomm, all_gather: Callable[[bytes], list[bytes]]) -> None:
    """Note that this process must part from the ranks of a communicator; a collective call.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    all_gather : callable
        Gives every rank the bytes of all.
    """
    from mpi4py import MPI

    group, world = comm.Get_group(), MPI.COMM_WORLD.Get_group()
    ranks = tuple(group.Translate_ranks(list(range(group.Get_size())), world))
    group.Free()
    world.Free()
    # Duplicated once for the same ranks, however often they meet: MPI has few communicators.
    if ranks not in _meetings:
        _remember_exit_status()
        facts = [json.loads(answer) for answer in all_gather(json.dumps(own_notices().facts).encode())]
        _meetings[ranks] = _Meeting(comm.Dup(), facts)


def _remember_exit_status() -> None:
    """Let ``sys.exit`` leave its argument here: what runs at exit is not told the status of the process."""
    if _meetings:
        return
    exit_process = sys.exit

    def exit_and_tell(status: Any = None, /) -> NoReturn:
        _statuses.append(status)
        exit_process(status)

    sys.exit = exit_and_tell


def _exit_status() -> int:
    """Return the status that the process would have had."""
    if getattr(sys, "last_value", None) is not None:
        return 1
    status = _statuses[-1] if _statuses else None
    if isinstance(status, int):
        return status & 0xFF
    return 0 if status is None else 1


def _forget_mpi_memory() -> None:
    """Take the names away from shared memory that MPI would have removed in MPI_Finalize; what is mapped stays."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return
    paths = {line.split(maxsplit=5)[5] for line in lines if "/dev/shm/" in line}
    for path in paths:
        if Path(path).name.startswith(MPI_MEMORY):
            with contextlib.suppress(OSError):
                Path(path).unlink()


def note_failure() -> None:
    """Note that a communicator of this process failed."""
    _failed.append(True)


def _have_failed() -> set[str]:
    """Return which peers have told that they end without MPI_Finalize, by the tokens of their notices."""
    _failed_peers.update(text for _, text in own_notices().heard(TOPIC))
    return _failed_peers


def say_farewell() -> None:
    """Return when all peers have come here; end the process if anything failed."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not _meetings or mpi.Is_finalized():
        return
    if _failed:
        _leave_without_finalize()
    for meeting in _meetings.values():
        barrier, nap_s = meeting.comm.Ibarrier(), 1e-6
        while not barrier.Test():
            if _have_failed():
                _leave_without_finalize()
            time.sleep(nap_s)
            nap_s = min(nap_s * 2, LONGEST_NAP_S)


def _leave_without_finalize() -> NoReturn:
    """End the process here, when those that wait for it know, and have said what they have to say."""
    sys.stdout.flush()
    sys.stderr.flush()
    notices = own_notices()
    mine = notices.facts["token"]
    peers = {fact["token"]: fact for meeting in _meetings.values() for fact in meeting.facts if fact["token"] != mine}
    notices.tell(list(peers.values()), TOPIC, 0, mine)
    end = time.monotonic() + PARTING_S
    missing = set(peers)
    while missing and time.monotonic() < end:
        missing -= _have_failed()
        time.sleep(LONGEST_NAP_S)
    time.sleep(OUTPUT_S)
    _forget_mpi_memory()
    os._exit(_exit_status())
