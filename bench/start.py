"""Starting the ranks of a benchmark on this machine: by ourselves, or under the MPI of this environment."""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from multiring.errors import ArgumentError

__all__ = ["find_mpiexec", "mpi_command", "start_local", "start_mpi"]

_GRACE_S = 3.0
_KILL_S = 2.0
_PR_SET_PDEATHSIG = 1


def start_local(n_ranks: int, command: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Start a command as ranks 0 to n-1 of one job, wait, and return an exit code.

    Parameters
    ----------
    n_ranks : int
    command : sequence of str
    environment : mapping
        Of the ranks, to which their places are added.

    Returns
    -------
    int
        0 if every rank returned 0, 2 if the first that failed returned 2 (bad usage), else 1.

    Notes
    -----
    When a rank fails, the others get 3 seconds to notice by themselves; then they are ended. Ranks do not outlive this
    process.
    """
    job = secrets.token_hex(16)
    ranks: list[subprocess.Popen[bytes]] = []

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        for rank in range(n_ranks):
            place = {"RANK": rank, "SIZE": n_ranks, "LOCAL_RANK": rank, "LOCAL_SIZE": n_ranks}
            variables = {f"MULTIRING_{name}": str(value) for name, value in place.items()}
            ranks.append(
                subprocess.Popen(
                    list(command),
                    env={**environment, **variables, "MULTIRING_JOB": job},
                    stdin=subprocess.DEVNULL,
                    preexec_fn=_end_with_parent,
                )
            )
        return _wait(ranks)
    except KeyboardInterrupt:
        return 130
    finally:
        _end(ranks)
        signal.signal(signal.SIGTERM, previous)


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait(ranks: Sequence[subprocess.Popen[bytes]]) -> int:
    failed: int | None = None
    deadline = float("inf")
    while True:
        codes = [rank.poll() for rank in ranks]
        if failed is None:
            failed = next((code for code in codes if code), None)
            if failed is not None:
                deadline = time.monotonic() + _GRACE_S
                which = codes.index(failed)
                if failed < 0:
                    name = signal.Signals(-failed).name
                    print(f"multiring bench: rank {which} was ended by {name}", file=sys.stderr, flush=True)
        if None not in codes or time.monotonic() > deadline:
            return 0 if failed is None else 2 if failed == 2 else 1
        time.sleep(0.01)


def _end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    for ask in (signal.SIGTERM, signal.SIGKILL):
        running = [rank for rank in ranks if rank.poll() is None]
        for rank in running:
            rank.send_signal(ask)
        deadline = time.monotonic() + _KILL_S
        for rank in running:
            try:
                rank.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue


def find_mpiexec(python: str = sys.executable) -> tuple[str, str]:
    """Return the mpiexec of an interpreter's environment, else of PATH, and whose it is.

    Returns
    -------
    path, kind : str
        kind is ``"mpich"`` (also its relatives with the hydra launcher) or ``"openmpi"``.

    Raises
    ------
    ArgumentError
        If there is none.
    """
    beside = Path(python).parent / "mpiexec"
    path = str(beside) if beside.exists() else shutil.which("mpiexec")
    if path is None:
        raise ArgumentError(
            "--peer mpi: found no mpiexec beside this Python nor in PATH; install MPI and mpi4py, "
            "for instance with: pip install mpi4py mpich"
        )
    try:
        told = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL, check=False
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise ArgumentError(f"--peer mpi: {path} --version failed ({error}); wanted a working mpiexec") from None
    return path, "openmpi" if any(word in told for word in ("Open MPI", "OpenRTE", "PRRTE", "prte")) else "mpich"


def mpi_command(
    mpiexec: str, kind: str, n_ranks: int, command: Sequence[str], environment: Mapping[str, str], as_root: bool
) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment that start local ranks under an MPI launcher.

    Notes
    -----
    The ranks bind themselves, equally for every contender, so the launcher must not. Open MPI refuses root and more
    ranks than cores unless told, and takes a second to start unless it is kept from looking for networks.
    """
    variables = dict(environment)
    flags = ["-n", str(n_ranks)]
    if kind == "openmpi":
        flags += ["--bind-to", "none"]
        variables.setdefault("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")
        variables.setdefault("OMPI_MCA_btl", "self,sm")
        if as_root:
            variables |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return [mpiexec, *flags, *command], variables


def start_mpi(n_ranks: int, command: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Start a command under the MPI of this environment, wait, and return its exit code (0, 1 or 2)."""
    mpiexec, kind = find_mpiexec()
    started, variables = mpi_command(mpiexec, kind, n_ranks, command, environment, os.geteuid() == 0)
    launcher = subprocess.Popen(started, env=variables, stdin=subprocess.DEVNULL, preexec_fn=_end_with_parent)

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        code = launcher.wait()
    except KeyboardInterrupt:
        return 130
    finally:
        _end([launcher])
        signal.signal(signal.SIGTERM, previous)
    return code if code in (0, 2) else 1
