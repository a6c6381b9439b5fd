"""Meeting through MPI: raw bytes over a communicator of our own, with a time limit."""

from __future__ import annotations

import sys
import time
from array import array
from collections.abc import Sequence
from importlib import metadata
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multiring.collectives.bootstrap.detect import Launcher
from multiring.errors import LaunchError

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["MpiBootstrap", "check_wheels", "check_world", "connect_world"]

NAMED_UP_TO = 128  # ranks; above it, lengths go through one collective that cannot say who is missing
TAG = 0
STARTED = {"openmpi": "mpiexec of Open MPI", "pmi": "mpiexec of MPICH or a relative", "srun": "srun"}


class MpiBootstrap:
    """The bootstrap over an MPI communicator.

    Lengths go from each rank to each other, so that a time limit can name who did not come; payloads go through one
    ``MPI_Iallgatherv``. Nothing is pickled.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Duplicated here (a collective call), so that our messages meet nobody else's.
    timeout_s : float
        Time limit of each call, in seconds.
    """

    def __init__(self, comm: MPI.Intracomm, timeout_s: float) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._timeout_s = timeout_s
        self._comm: MPI.Intracomm | None = comm.Dup()
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()

    def all_gather(self, payload: bytes) -> list[bytes]:
        """Return the payloads of all ranks, by rank.

        Raises
        ------
        LaunchError
            A rank did not come within the time limit, or the bootstrap is closed.
        """
        if self._comm is None:
            raise LaunchError(
                "bootstrap: got a call after close(), or after an earlier error, wanted an open bootstrap"
            )
        comm = self._comm
        deadline = time.monotonic() + self._timeout_s
        lengths = self._lengths(comm, len(payload), deadline)
        starts = [0, *accumulate(lengths)]
        gathered = bytearray(starts[-1])
        receive = [gathered, lengths, starts[:-1], self._mpi.BYTE]
        self._wait([comm.Iallgatherv([payload, self._mpi.BYTE], receive)], None, deadline)
        return [bytes(gathered[start : start + length]) for start, length in zip(starts, lengths, strict=False)]

    def barrier(self) -> None:
        """Return when all ranks have come here."""
        self.all_gather(b"")

    def close(self) -> None:
        """Free our communicator: a collective call, left out after an error."""
        comm, self._comm = self._comm, None
        if comm is not None and not self._mpi.Is_finalized():
            comm.Free()

    @property
    def comm(self) -> MPI.Intracomm:
        """The communicator of our own, until close()."""
        if self._comm is None:
            raise LaunchError("bootstrap: got a call after close(), wanted an open bootstrap")
        return self._comm

    def _lengths(self, comm: MPI.Intracomm, length: int, deadline: float) -> list[int]:
        MPI = self._mpi  # noqa: N806
        mine = array("q", [length])
        found = array("q", [0]) * self.size
        if self.size > NAMED_UP_TO:
            self._wait([comm.Iallgather([mine, MPI.INT64_T], [found, MPI.INT64_T])], None, deadline)
            return found.tolist()
        cells = memoryview(found)
        cells[self.rank] = length
        others = [rank for rank in range(self.size) if rank != self.rank]
        receives = [comm.Irecv([cells[rank : rank + 1], MPI.INT64_T], rank, TAG) for rank in others]
        sends = [comm.Isend([mine, MPI.INT64_T], rank, TAG) for rank in others]
        self._wait(receives, others, deadline)
        self._wait(sends, others, deadline)
        return found.tolist()

    def _wait(self, requests: Sequence[Any], ranks: Sequence[int] | None, deadline: float) -> None:
        """Complete requests; ``ranks[i]`` is who must do its part for ``requests[i]``."""
        pause_s = 1e-6
        while not self._mpi.Request.Testall(list(requests)):
            if time.monotonic() > deadline:
                self._comm = None  # freeing is collective: not with a rank that is missing
                missing = [] if ranks is None else [r for r, q in zip(ranks, requests, strict=True) if not q.Test()]
                who = f"rank(s) {', '.join(map(str, missing))}" if missing else "a rank"
                raise LaunchError(
                    f"bootstrap over MPI, rank {self.rank} of {self.size}: {who} did not come within "
                    f"{self._timeout_s:g} s; see what they print, or give a longer timeout"
                )
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 1e-3)


def connect_world(launcher: Launcher, timeout_s: float) -> MpiBootstrap:
    """Meet over ``MPI.COMM_WORLD``; loads and initialises MPI.

    Parameters
    ----------
    launcher : Launcher
        What the environment says.
    timeout_s : float
        Time limit of each later call, in seconds.

    Returns
    -------
    MpiBootstrap
        Over a duplicate of the world.

    Raises
    ------
    LaunchError
        MPI cannot be loaded, or is not the one of the mpiexec that started this process.
    """
    check_wheels(launcher, {name for name in ("mpich", "openmpi") if _is_installed(name)})
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise LaunchError(
            f"{launcher.kind}: the job has {launcher.size} ranks, but mpi4py cannot load an MPI: "
            f"{' '.join(str(error).split())}; install one into this environment: pip install 'multiring[mpi]' (MPICH) "
            "or 'multiring[openmpi]', or start the ranks without MPI: multiring launch"
        ) from error
    library = MPI.Get_library_version().split("\n")[0].split(",")[0].strip(" \0\t")
    check_world(launcher, MPI.COMM_WORLD.Get_size(), library)
    return MpiBootstrap(MPI.COMM_WORLD, timeout_s)


def check_world(launcher: Launcher, world_size: int, library: str) -> None:
    """Refuse an MPI that does not know the launcher: it would run N jobs of one rank each.

    Parameters
    ----------
    launcher : Launcher
        What the environment says.
    world_size : int
        ``COMM_WORLD.size`` as the loaded library sees it.
    library : str
        Its name, for the text.

    Raises
    ------
    LaunchError
        The two sizes differ.
    """
    if world_size == launcher.size:
        return
    raise LaunchError(
        f"MPI world: got {world_size} rank(s) from {library}, wanted the {launcher.size} that "
        f"{STARTED.get(launcher.kind, launcher.kind)} started; they are two different MPIs: {_remedy(library)}"
    )


def check_wheels(launcher: Launcher, installed: set[str]) -> None:
    """Refuse MPICH's wheel under Open MPI's mpiexec: it would abort the process as it is loaded.

    Parameters
    ----------
    launcher : Launcher
        What the environment says.
    installed : set of str
        Which of ``"mpich"`` and ``"openmpi"`` this Python environment has.

    Raises
    ------
    LaunchError
        Only the other MPI is installed.
    """
    if launcher.kind == "openmpi" and installed == {"mpich"}:
        raise LaunchError(
            f"MPI: got MPICH in this Python environment, wanted Open MPI, whose mpiexec started this process; "
            f"they are two different MPIs: {_remedy('MPICH')}"
        )


def _is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _remedy(library: str) -> str:
    beside = Path(sys.executable).parent / "mpiexec"
    return f"start the job with {beside if beside.exists() else f'the mpiexec of {library}'}"
