"""Starting the ranks of a benchmark on this machine: by ourselves, or under the MPI of this environment."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from multiring.bench.console import complain
from multiring.bench.local_ranks import run_ranks
from multiring.bench.mpiexec import Mpiexec, find_mpiexec

__all__ = ["exit_code", "mpi_command", "start_local", "start_mpi"]


BROKEN_PIPE = 141
"""The exit status of a rank whose reader went away, as after ``| head``: no failure, and nobody wants to hear of it."""


def exit_code(status: int) -> int:
    """Return the command's exit code for a job's status: 0, 2 for bad usage, 128 plus a signal's number, else 1."""
    return status if status in (0, 2, 130, BROKEN_PIPE, 143) else 1


def start_local(n_ranks: int, command: Sequence[str]) -> int:
    """Start a command as ranks of one job without MPI, wait, and return the exit code.

    Notes
    -----
    The ranks bind themselves, in the same way as under MPI.
    """

    def say(text: str) -> None:
        complain(text.removeprefix("multiring launch: "))

    return exit_code(run_ranks(command, n_ranks, bind=False, say=say, quiet_status=BROKEN_PIPE))


def mpi_command(mpiexec: Mpiexec, n_ranks: int, command: Sequence[str]) -> list[str]:
    """Return the words that start local ranks, which bind themselves: a launcher that binds would favour its own."""
    words = mpiexec.command(n_ranks, command)
    return [words[0], "--bind-to", "none", *words[1:]] if mpiexec.kind == "openmpi" else words


def start_mpi(n_ranks: int, command: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Start a command under the MPI of this environment, wait, and return the exit code.

    Raises
    ------
    LaunchError
        If there is no mpiexec.
    """
    mpiexec = find_mpiexec(environ)
    launcher = subprocess.Popen(
        mpi_command(mpiexec, n_ranks, command), env=mpiexec.environment(environ), stdin=subprocess.DEVNULL
    )
    try:
        return exit_code(launcher.wait())
    except KeyboardInterrupt:
        # The terminal's Ctrl-C reaches mpiexec too, which ends the ranks.
        launcher.wait()
        return 130
    finally:
        if launcher.poll() is None:
            launcher.terminate()
            launcher.wait()
