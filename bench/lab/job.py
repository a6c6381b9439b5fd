"""A program on all ranks of a lab, under MPICH's mpiexec: started, watched, and ended."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType

from multiring.bench.lab.network import Network
from multiring.bench.local_ranks import OUTER_NAMES, OUTER_PREFIXES, PR_SET_PDEATHSIG
from multiring.bench.mpiexec import find_mpiexec
from multiring.errors import LaunchError

__all__ = ["SURVIVORS_S", "TIMED_OUT", "caught_signals", "lab_command", "lab_environment", "run_job"]

SURVIVORS_S = 30.0
TIMED_OUT = 124
"""The exit status after ``--timeout``, as that of timeout(1)."""
_ENDING_S = 3.0  # how long ranks may take to end after a signal before they are ended
_POLL_S = 0.05
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# hydra calls it as it would call ssh: -x HOST COMMAND, the command quoted for a shell.
_LAUNCHER = """#!/bin/sh
[ "$1" = -x ] && shift
host=$1
shift
case "$host" in
{cases}
*) echo "lab: got host $host, which is none of this lab" >&2; exit 255;;
esac
"""
# Around each rank, called as FAILURES COMMAND... It is what tells the rank its host: hydra gives all ranks one
# environment. It stays as the rank's parent, for two reasons: it knows the exit status before all ranks have ended; and
# hydra, which ends all ranks of a host when one is killed by a signal, sees an exit status instead. hydra also sends
# SIGUSR1 to the survivors, which would end those that have not got to MPI_Init.
_RANK = """
read -r MULTIRING_HOST_ID < /proc/sys/kernel/hostname
export MULTIRING_HOST_ID
failures=$1
shift
trap : INT TERM HUP
trap '' USR1
"$@"
status=$?
[ $status -eq 0 ] || echo "$PMI_RANK $status" >> "$failures"
exit $status
"""


def lab_environment(environ: Mapping[str, str], n_hosts: int) -> dict[str, str]:
    """Return the environment of mpiexec, which all ranks get: without an outer launcher's, with what a lab needs.

    Notes
    -----
    All hosts of a lab have one boot id, by which UCX would take them for one machine and use shared memory between
    them: it is told to use TCP. What the caller has set stays. MULTIRING_LAB_HOSTS says how many hosts share this
    machine's memory.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith(OUTER_PREFIXES) and name not in (*OUTER_NAMES, "MULTIRING_HOST_ID")
    }
    return {"UCX_TLS": "tcp,self"} | kept | {"MULTIRING_LAB_HOSTS": str(n_hosts)}


def lab_command(network: Network, ranks: int, mpiexec: str, command: Sequence[str]) -> list[str]:
    """Write the launcher and return the words that start ``command`` on ``ranks`` ranks of each host.

    Parameters
    ----------
    network : Network
        Entered.
    ranks : int
        Of each host; host 0 gets the first ones.
    mpiexec : str
        MPICH's.
    command : sequence of str
    """
    launcher = network.folder / "launcher"
    cases = [
        f'{host.address}) exec {shlex.join(network.command(host.index, []))} sh -c "exec $*";;'
        for host in network.hosts
    ]
    launcher.write_text(_LAUNCHER.format(cases="\n".join(cases)))
    launcher.chmod(0o700)
    first = network.hosts[0]
    hydra = [mpiexec, "-localhost", first.address, "-launcher", "ssh", "-launcher-exec", str(launcher), "-rmk", "user"]
    hydra += ["-hosts", ",".join(f"{host.address}:{ranks}" for host in network.hosts)]
    hydra += ["-n", str(ranks * len(network.hosts)), "-disable-auto-cleanup"]
    return network.command(0, [*hydra, "sh", "-c", _RANK, "sh", str(_failures(network)), *command])


def run_job(
    network: Network,
    ranks: int,
    command: Sequence[str],
    *,
    timeout_s: float | None = None,
    survivors_s: float = SURVIVORS_S,
    signals: list[int] | None = None,
    environ: Mapping[str, str] | None = None,
    say: Callable[[str], None] | None = None,
) -> int:
    """Run a command on every rank of a lab and wait until nothing of it is left.

    SIGINT, SIGTERM and SIGHUP are forwarded to the ranks; 3 s later, or at a second signal, what still runs in the
    lab is ended. Must be called from the main thread.

    Parameters
    ----------
    network : Network
        Entered.
    ranks : int
        Of each host.
    command : sequence of str
        The program and its arguments; standard output and error are inherited, and standard input unless it is a
        terminal.
    timeout_s : float, optional
        How long it may take.
    survivors_s : float
        How long the others may go on after a rank has failed, to raise their own error.
    signals : list of int, optional
        From :func:`caught_signals`, where the caller catches them already.
    environ : mapping of str to str, optional
        The environment to start from; this process's where omitted.
    say : callable, optional
        Takes each message; standard error where omitted.

    Returns
    -------
    int
        0 if all ranks succeeded; else the exit status of the rank that failed first, 128 plus the number where a
        signal ended it; 128 plus the number of a signal that this process was sent; 124 after ``timeout_s``.

    Raises
    ------
    LaunchError
        There is no such program, or no mpiexec of MPICH.
    """
    environ = os.environ if environ is None else environ
    say = say or (lambda text: print(text, file=sys.stderr, flush=True))  # noqa: T201
    if shutil.which(command[0], path=environ.get("PATH")) is None:
        raise LaunchError(f"{command[0]}: cannot be started: got no such program, wanted one on PATH")
    mpiexec = find_mpiexec(environ)
    if mpiexec.kind != "mpich":
        raise LaunchError(
            f"mpiexec: got {mpiexec.path}, which is Open MPI's, wanted MPICH's for a lab; "
            "use an environment with MPICH: pip install 'multiring[mpi]'"
        )
    _failures(network).unlink(missing_ok=True)
    words = lab_command(network, ranks, mpiexec.path, command)
    parent = os.getpid()
    libc = ctypes.CDLL(None)

    def before_exec() -> None:
        # When this process is killed outright, mpiexec ends too, and the ranks with it.
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    with nullcontext(signals) if signals is not None else caught_signals() as caught:
        if caught:
            return 128 + caught[0]
        process = subprocess.Popen(
            words,
            env=lab_environment(environ, len(network.hosts)),
            stdin=subprocess.DEVNULL if sys.stdin is None or sys.stdin.isatty() else None,
            process_group=0,  # a terminal's Ctrl-C comes once, from here
            preexec_fn=before_exec,
        )
        try:
            return _watch(process, network, caught, timeout_s, survivors_s, say)
        finally:
            network.end_processes()
            process.wait()


def _watch(
    process: subprocess.Popen[bytes],
    network: Network,
    signals: list[int],
    timeout_s: float | None,
    survivors_s: float,
    say: Callable[[str], None],
) -> int:
    """Wait for mpiexec, or until it is time to end what still runs; return the exit status."""
    status = 0
    interrupted = False
    end_at = None if timeout_s is None else time.monotonic() + timeout_s
    why = f"did not end within {timeout_s:g} s" if timeout_s is not None else ""
    late = TIMED_OUT
    while process.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_POLL_S)
        if signals:
            if interrupted:
                return status
            interrupted, status = True, 128 + signals[0]
            late, why, end_at = status, "", time.monotonic() + _ENDING_S
            process.send_signal(signals.pop(0))
        if not status and (failure := _first_failure(network)):
            rank, status = failure
            say(f"multiring lab: rank {rank} failed first: {_how(status)}")
            until = time.monotonic() + survivors_s
            if end_at is None or until < end_at:
                late, end_at = status, until
                why = f"still ran {survivors_s:g} s after that"
        if end_at is not None and time.monotonic() > end_at:
            if why:
                say(f"multiring lab: ranks {why}, and are ended")
            return status or late
    if not status and (failure := _first_failure(network)):
        rank, status = failure
        say(f"multiring lab: rank {rank} failed first: {_how(status)}")
    code = process.returncode
    return status or (code if code >= 0 else 128 - code)


def _failures(network: Network) -> Path:
    return network.folder / "failures"


def _first_failure(network: Network) -> tuple[int, int] | None:
    """Return the rank that failed first, and its exit status."""
    with suppress(FileNotFoundError):
        first, whole, _ = _failures(network).read_text().partition("\n")
        if whole:
            rank, status = map(int, first.split())
            return rank, status
    return None


def _how(status: int) -> str:
    with suppress(ValueError):
        if status > 128:
            return f"killed by {signal.Signals(status - 128).name} ({status - 128})"
    return f"exit status {status}"


@contextmanager
def caught_signals() -> Iterator[list[int]]:
    """Collect the signals that would end this process, while what it has built is taken down."""
    caught: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        del frame
        caught.append(number)

    old = {number: signal.signal(number, on_signal) for number in _FORWARDED}
    try:
        yield caught
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
