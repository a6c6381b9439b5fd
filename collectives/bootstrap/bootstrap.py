"""What every way of meeting offers, and the choice among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from multiring.collectives.bootstrap.detect import Launcher, detect
from multiring.errors import LaunchError

__all__ = ["Bootstrap", "connect", "refuse_several_nodes"]


class Bootstrap(Protocol):
    """How the ranks exchange a few bytes before they share memory.

    Every call is collective: all ranks make the same calls in the same order.
    """

    @property
    def rank(self) -> int:
        """This rank."""
        ...

    @property
    def size(self) -> int:
        """The number of ranks."""
        ...

    def all_gather(self, payload: bytes) -> list[bytes]:
        """Return the payloads of all ranks, by rank.

        Raises
        ------
        LaunchError
            A rank ended or did not come within the time limit; the text names it. The bootstrap is closed then.
        """
        ...

    def barrier(self) -> None:
        """Return when all ranks have come here."""
        ...

    def close(self) -> None:
        """Give back what this rank holds; may be called twice."""
        ...


def connect(environ: Mapping[str, str], timeout_s: float) -> Bootstrap:
    """Meet the other ranks of the job that the environment describes.

    Parameters
    ----------
    environ : mapping of str to str
        The environment, usually ``os.environ``.
    timeout_s : float
        How long to wait for the others, here and in each later call, in seconds.

    Returns
    -------
    Bootstrap
        Ready to use. A job of one rank never loads MPI.

    Raises
    ------
    LaunchError
        The environment makes no sense, a rank is missing, MPI cannot be loaded, or MPI does not belong to the
        mpiexec that started this process.
    """
    launcher = detect(environ)
    if launcher.size == 1:
        from multiring.collectives.bootstrap.alone import AloneBootstrap

        return AloneBootstrap()
    if launcher.over_mpi:
        from multiring.collectives.bootstrap.mpi import connect_world

        return connect_world(launcher, timeout_s)
    refuse_several_nodes(launcher)
    from multiring.collectives.bootstrap.local_socket import SocketBootstrap

    return SocketBootstrap(launcher.rank, launcher.size, launcher.job_key, timeout_s)


def refuse_several_nodes(launcher: Launcher) -> None:
    """Raise where a launcher without MPI has spread the ranks over several nodes.

    Raises
    ------
    LaunchError
        Fewer ranks are on this node than in the job.
    """
    if launcher.local_size not in (None, launcher.size):
        raise LaunchError(
            f"{launcher.kind}: got {launcher.size} ranks of which {launcher.local_size} are on this node, wanted "
            "all on one node; between nodes multiring needs MPI: start the program with mpiexec, or with srun and an "
            "MPI plug-in (srun --mpi=pmix)"
        )
