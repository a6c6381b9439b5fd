"""Ranks as processes of this machine: started, bound to cores, watched, and all gone in the end.

Each rank leads a process group of its own, so that what it starts can be ended with it. Two things see to it that
nothing outlives this process, even when it is killed outright: the kernel kills each rank when its parent dies
(``PR_SET_PDEATHSIG``), and a small watcher process kills the groups when a pipe from here closes.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import FrameType

from multiring.bench.tagged_output import TaggedOutput
from multiring.collectives.drivers.room import available_bytes
from multiring.errors import LaunchError

__all__ = ["core_shares", "rank_environment", "run_ranks"]

SURVIVORS_S = 3.0  # how long the other ranks may take to raise their own error after one has failed
TERMINATE_S = 2.0  # how long they may take to end after SIGTERM
PR_SET_PDEATHSIG = 1
RANK_BYTES = 64 << 20
"""What a rank needs at least, not counting its arrays: the interpreter, numpy and Numba."""
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# What an outer launcher set for this process is not true for the ranks that we start.
OUTER_PREFIXES = ("PMI_", "PMIX_", "OMPI_COMM_WORLD_", "HYDRA_", "HYDI_", "MPI_LOCAL", "PRTE_LAUNCHED", "TORCHELASTIC_")
OUTER_NAMES = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_ID")


def core_shares(cores: Sequence[int], n_ranks: int) -> list[list[int]] | None:
    """Divide cores among ranks: equal shares of neighbours.

    Parameters
    ----------
    cores : sequence of int
        The cores that this process may use.
    n_ranks : int
        Number of ranks.

    Returns
    -------
    list of list of int, or None
        The cores of each rank; None where there are more ranks than cores, which are then better left to the kernel.
    """
    share = len(cores) // n_ranks
    if share == 0:
        return None
    ordered = sorted(cores)
    return [ordered[rank * share : (rank + 1) * share] for rank in range(n_ranks)]


def rank_environment(environ: Mapping[str, str], rank: int, n_ranks: int, token: str) -> dict[str, str]:
    """Return the environment of a rank: ``environ`` without an outer launcher's variables, with ours.

    Parameters
    ----------
    environ : mapping of str to str
        The environment to start from.
    rank, n_ranks : int
        The rank, and how many there are.
    token : str
        What tells this job from all others.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith(OUTER_PREFIXES) and name not in OUTER_NAMES
    }
    return kept | {
        "MULTIRING_RANK": str(rank),
        "MULTIRING_SIZE": str(n_ranks),
        "MULTIRING_LOCAL_RANK": str(rank),
        "MULTIRING_LOCAL_SIZE": str(n_ranks),
        "MULTIRING_JOB": token,
    }


def run_ranks(
    command: Sequence[str],
    n_ranks: int,
    *,
    bind: bool = True,
    tag_output: bool = False,
    environ: Mapping[str, str] | None = None,
    say: Callable[[str], None] | None = None,
    quiet_status: int | None = None,
) -> int:
    """Run a command on local ranks and wait for all of them.

    SIGINT, SIGTERM and SIGHUP are forwarded to the ranks; a second one kills them. When a rank fails, the others have
    3 s to raise their own error before they are ended. Must be called from the main thread.

    Parameters
    ----------
    command : sequence of str
        The program and its arguments; standard input, output and error are inherited.
    n_ranks : int
        Number of ranks, at least 1.
    bind : bool
        Whether each rank gets its own cores; nothing is bound where there are more ranks than cores.
    tag_output : bool
        Whether each line of output gets its rank in front.
    environ : mapping of str to str, optional
        The environment to start from; this process's where omitted.
    say : callable, optional
        Takes each message about ranks that failed; standard error where omitted.
    quiet_status : int, optional
        An exit status that is no failure but the end of the job: the others are ended at once, and nothing is said.

    Returns
    -------
    int
        0 if all ranks succeeded; else the exit status of the rank that failed first, 128 plus the number where a
        signal ended it; 128 plus the number of a signal that this process was sent.

    Raises
    ------
    LaunchError
        The command cannot be started, or so many ranks do not fit the machine's memory.
    """
    if n_ranks < 1:
        raise LaunchError(f"ranks: got {n_ranks}, wanted at least 1")
    room = available_bytes() // RANK_BYTES
    if n_ranks > room:
        raise LaunchError(
            f"ranks: got {n_ranks}, wanted at most {room}: a Python process with its libraries takes about"
            f" {RANK_BYTES >> 20} MiB, and this machine has {available_bytes() >> 20} MiB left"
        )
    ranks = _Ranks(n_ranks, say or (lambda text: print(text, file=sys.stderr, flush=True)), quiet_status)  # noqa: T201
    try:
        ranks.start(command, bind, tag_output, os.environ if environ is None else environ)
        return ranks.wait()
    finally:
        ranks.end()


class _Ranks:
    """The processes of one job."""

    def __init__(self, n_ranks: int, say: Callable[[str], None], quiet_status: int | None = None) -> None:
        self._n_ranks = n_ranks
        self._say = say
        self._quiet_status = quiet_status
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._selector = selectors.DefaultSelector()
        self._output = TaggedOutput(self._selector)
        self._signals: list[int] = []
        self._explained = False  # why ranks end: one failed, or this process was sent a signal
        self._old_handlers = {number: signal.getsignal(number) for number in (*FORWARDED, signal.SIGTSTP)}
        self._wake_up = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._old_wake_up = signal.set_wakeup_fd(self._wake_up[1], warn_on_full_buffer=False)
        for number in FORWARDED:
            signal.signal(number, self._on_signal)
        if self._old_handlers[signal.SIGTSTP] == signal.SIG_DFL:
            signal.signal(signal.SIGTSTP, self._on_stop)
        self._selector.register(self._wake_up[0], selectors.EVENT_READ)
        self._watcher_pid, self._watcher_pipe = _start_watcher()

    def start(self, command: Sequence[str], bind: bool, tag_output: bool, environ: Mapping[str, str]) -> None:
        shares = core_shares(sorted(os.sched_getaffinity(0)), self._n_ranks) if bind else None
        token = secrets.token_hex(16)
        libc = ctypes.CDLL(None)
        parent = os.getpid()

        def before_exec(rank: int) -> None:
            libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != parent:  # it died before it could be watched
                os._exit(1)
            # Outside the terminal's foreground group, reading the terminal would stop the rank: let it fail instead.
            signal.signal(signal.SIGTTIN, signal.SIG_IGN)
            if shares:
                os.sched_setaffinity(0, shares[rank])

        for rank in range(self._n_ranks):
            if self._signals:
                break  # wait() passes it on to those that run
            try:
                process = subprocess.Popen(
                    list(command),
                    env=rank_environment(environ, rank, self._n_ranks, token),
                    stdout=subprocess.PIPE if tag_output else None,
                    stderr=subprocess.PIPE if tag_output else None,
                    process_group=0,
                    preexec_fn=lambda rank=rank: before_exec(rank),
                )
            except OSError as error:
                raise LaunchError(
                    f"{command[0]}: cannot be started: {error.strerror}; give a program on PATH"
                ) from error
            self._tell_watcher("+", process.pid)
            self._running[rank] = process
            self._selector.register(os.pidfd_open(process.pid), selectors.EVENT_READ, rank)
            if tag_output and process.stdout and process.stderr:
                self._output.add(rank, process.stdout, 1)
                self._output.add(rank, process.stderr, 2)

    def wait(self) -> int:
        """Wait for all ranks, and see to it that they end once one has failed or a signal came."""
        status = 0
        interrupted = False
        coming: list[tuple[float, int]] = []  # (when, which signal): how the ranks that still run are ended
        while self._running:
            left_s = max(coming[0][0] - time.monotonic(), 0.0) if coming else None
            for key, _ in self._selector.select(left_s):
                if isinstance(key.data, int):
                    ended = self._reap(key)
                    if ended and not status:
                        status = ended
                        coming = _ending(0.0 if ended == self._quiet_status else SURVIVORS_S)
                elif key.data is None:
                    with suppress(BlockingIOError):
                        os.read(self._wake_up[0], 4096)
                else:
                    self._output.forward(key)
            while self._signals:
                number = self._signals.pop(0)
                self._send(signal.SIGKILL if interrupted else number)
                interrupted = True
                status = 128 + number
                coming = _ending()
            if coming and self._running and time.monotonic() >= coming[0][0]:
                _, number = coming.pop(0)
                ranks = ", ".join(map(str, self._running))
                if status != self._quiet_status:
                    self._say(f"multiring launch: rank(s) {ranks} still ran and got {signal.Signals(number).name}")
                self._send(number)
        return status

    def end(self) -> None:
        """Kill what still runs and put everything back."""
        self._send(signal.SIGKILL)
        for process in self._running.values():
            process.wait()
            self._tell_watcher("-", process.pid)
        self._running = {}
        self._output.drain()
        for key in list(self._selector.get_map().values()):
            os.close(key.fd) if isinstance(key.fileobj, int) else key.fileobj.close()  # type: ignore[attr-defined]
        self._selector.close()
        signal.set_wakeup_fd(self._old_wake_up)
        os.close(self._wake_up[1])
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        os.close(self._watcher_pipe)
        os.waitpid(self._watcher_pid, 0)

    def _reap(self, key: selectors.SelectorKey) -> int:
        """Take the status of a rank that ended, and say so if it failed before all others."""
        rank: int = key.data
        self._selector.unregister(key.fileobj)
        os.close(key.fd)
        process = self._running.pop(rank)
        # While it is a zombie its number is nobody else's: what it left in its group can be ended without a mistake.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        self._tell_watcher("-", process.pid)
        if code == 0:
            return 0
        how = f"exit status {code}" if code > 0 else f"killed by {_signal_name(-code)}"
        if code == self._quiet_status:
            self._explained = True
        if not self._explained:
            self._explained = True
            self._say(f"multiring launch: rank {rank} (process {process.pid}) failed first: {how}")
        return code if code > 0 else 128 - code

    def _send(self, number: int) -> None:
        for process in self._running.values():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._explained = True  # they end because they were told to
        self._signals.append(number)

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        """Stop the ranks with this process (Ctrl-Z), and let them go on with it."""
        del number, frame
        self._send(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._send(signal.SIGCONT)

    def _tell_watcher(self, sign: str, pid: int) -> None:
        with suppress(BrokenPipeError):
            os.write(self._watcher_pipe, f"{sign}{pid}\n".encode())


def _ending(survivors_s: float = SURVIVORS_S) -> list[tuple[float, int]]:
    """Return when ranks that still run get which signal."""
    now_s = time.monotonic()
    return [(now_s + survivors_s, signal.SIGTERM), (now_s + survivors_s + TERMINATE_S, signal.SIGKILL)]


def _signal_name(number: int) -> str:
    with suppress(ValueError):
        return f"{signal.Signals(number).name} ({number})"
    return f"signal {number}"


def _start_watcher() -> tuple[int, int]:
    """Fork a process that kills the groups named on a pipe once the pipe closes; return its pid and the pipe."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid:
        os.close(reading)
        return pid, writing
    try:
        os.setsid()
        for number in (*FORWARDED, signal.SIGTSTP):
            signal.signal(number, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(null, descriptor)
        os.dup2(reading, 3)
        os.closerange(4, os.sysconf("SC_OPEN_MAX") if os.sysconf("SC_OPEN_MAX") < 1 << 16 else 1 << 16)
        groups: set[int] = set()
        with os.fdopen(3, "rb", buffering=0) as pipe:
            text = b""
            while arrived := pipe.read(4096):
                *lines, text = (text + arrived).split(b"\n")
                for line in lines:
                    (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
        for group in groups:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
    finally:
        os._exit(0)
