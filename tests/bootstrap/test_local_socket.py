"""Meeting over an abstract socket: real processes, and what happens when one is missing, late, doubled or foreign."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace

import pytest

from multiring.collectives.bootstrap import connect
from multiring.collectives.bootstrap.frames import HEADER, LIMIT_BYTES, Channel, Frame, Gone, Kind, peer_of
from multiring.collectives.bootstrap.local_socket import SocketBootstrap, socket_name
from multiring.errors import LaunchError

pytestmark = pytest.mark.shm

# argv: rank, size, key, timeout; then what to do. Prints what each all_gather returned, or the error.
PROGRAM = """
import os, signal, sys, time
from multiring.collectives.bootstrap import connect
from multiring.errors import LaunchError
rank, size, key, timeout_s, todo = sys.argv[1:]
environ = {"MULTIRING_RANK": rank, "MULTIRING_SIZE": size, "MULTIRING_JOB": key}
try:
    for meeting in range(int(todo) if todo.isdecimal() else 1):
        met = connect(environ, float(timeout_s))
        print(met.all_gather(b"%s-%d" % (rank.encode(), meeting) * (met.rank + 1)), flush=True)
        if todo == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if todo == "sleep":
            time.sleep(60)
        met.barrier()
        met.close()
except LaunchError as error:
    print(error)
    sys.exit(3)
"""


class Job:
    """Ranks in processes of their own; all are gone when the test ends."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, rank: int, size: int, key: str, todo: str = "1", timeout_s: float = 60, **more: int) -> None:
        argv = [sys.executable, "-c", PROGRAM, str(rank), str(size), key, str(timeout_s), todo]
        self.processes.append(
            subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)  # type: ignore[call-overload]
        )

    def outputs(self, which: Sequence[int] | None = None) -> list[tuple[int, str]]:
        chosen = self.processes if which is None else [self.processes[i] for i in which]
        texts = [process.communicate(timeout=60)[0] for process in chosen]
        return [(process.returncode, text) for process, text in zip(chosen, texts, strict=True)]


@pytest.fixture
def job() -> Iterator[Job]:
    started = Job()
    yield started
    for process in started.processes:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


@pytest.fixture
def key() -> str:
    return uuid.uuid4().hex


def test_ranks_meet_exchange_and_meet_again(job: Job, key: str) -> None:
    """Three communicators of the same ranks, one after the other, under one name (NCCL issue 195)."""
    for rank in (2, 0, 1):
        job.start(rank, 3, key, "3")
    wanted = "".join(f"{[b'%d-%d' % (rank, m) * (rank + 1) for rank in range(3)]}\n" for m in range(3))
    assert job.outputs() == [(0, wanted)] * 3


def test_two_jobs_of_one_user_do_not_meet(job: Job, key: str) -> None:
    for rank in range(2):
        job.start(rank, 2, key)
        job.start(rank, 3, key + "x")
    job.start(2, 3, key + "x")
    two, three = (f"{[b'%d-0' % rank * (rank + 1) for rank in range(n)]}\n" for n in (2, 3))
    assert job.outputs() == [(0, two), (0, three), (0, two), (0, three), (0, three)]


@pytest.fixture
def passes_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[Kind, int], None]:
    """``passes_after(kind, n)``: on rank 0, in this process, the limit passes once ``n`` such frames were heard.

    So it never passes because the machine is busy, and the test never waits for it.
    """

    def passes_after(kind: Kind, n: int) -> None:
        late_ns = 0
        heard = 0
        usual = SocketBootstrap._heard

        def hear(self: SocketBootstrap, channel: Channel) -> Frame | None:
            nonlocal heard, late_ns
            frame = usual(self, channel)
            heard += frame is not None and frame.kind is kind
            late_ns = 10**13 * (heard >= n)
            return frame

        clock = SimpleNamespace(monotonic_ns=lambda: time.monotonic_ns() + late_ns, sleep=time.sleep)
        monkeypatch.setattr(SocketBootstrap, "_heard", hear)
        monkeypatch.setattr("multiring.collectives.bootstrap.local_socket.time", clock)

    return passes_after


def test_a_missing_rank_is_named_on_every_rank(job: Job, key: str, passes_after: Callable[[Kind, int], None]) -> None:
    passes_after(Kind.HELLO, 2)
    for rank in (1, 3):
        job.start(rank, 4, key, timeout_s=600)
    wanted = "3 of 4 ranks came within 600 s, missing: rank(s) 2; see what they print"
    with pytest.raises(LaunchError, match=re.escape(wanted)):
        SocketBootstrap(0, 4, key, 600)
    for status, text in job.outputs():
        assert status == 3
        assert wanted in text


def test_a_missing_rank_0_is_named(job: Job, key: str) -> None:
    job.start(1, 2, key, timeout_s=0.5)
    ((status, text),) = job.outputs()
    assert status == 3
    assert "rank 1 of 2 did not reach rank 0 within 0.5 s, missing: rank(s) 0" in text


def test_a_rank_that_dies_between_calls_is_named_at_once(job: Job, key: str) -> None:
    for rank in range(3):
        job.start(rank, 3, key, "die" if rank == 1 else "1", timeout_s=600)
    pid = job.processes[1].pid
    for status, text in job.outputs([0, 2]):
        assert status == 3
        assert f"rank 1 (process {pid}) ended before all ranks had come" in text


def test_a_dead_rank_0_is_named_at_once(job: Job, key: str) -> None:
    for rank in range(3):
        job.start(rank, 3, key, "die" if rank == 0 else "1", timeout_s=600)
    pid = job.processes[0].pid
    for status, text in job.outputs([1, 2]):
        assert status == 3
        assert f"rank 0 (process {pid}) ended before all ranks had come" in text


def test_a_rank_that_never_calls_is_named_on_every_rank(
    job: Job, key: str, passes_after: Callable[[Kind, int], None]
) -> None:
    """Rank 2 takes part in the first exchange and then sleeps; rank 1 comes to the second."""
    passes_after(Kind.PART, 3)
    for rank in (1, 2):
        job.start(rank, 3, key, "sleep" if rank == 2 else "1", timeout_s=600)
    met = SocketBootstrap(0, 3, key, 600)
    assert met.all_gather(b"zero")[0] == b"zero"
    wanted = "2 of 3 ranks came within 600 s, missing: rank(s) 2"
    with pytest.raises(LaunchError, match=re.escape(wanted)):
        met.barrier()
    ((status, text),) = job.outputs([0])
    assert status == 3
    assert wanted in text


def test_a_rank_given_twice_is_refused_by_number(job: Job, key: str) -> None:
    for rank in (1, 1, 0):
        job.start(rank, 3, key)
    pids = [process.pid for process in job.processes]
    (status, text), *others = job.outputs()[::-1]
    assert status == 3
    assert "both say that they are rank 1; start all ranks of a job with one launcher" in text
    assert all(str(pid) in text for pid in pids[:2])
    assert {status for status, _ in others} == {3}


def test_two_rank_0s_are_refused(key: str) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(socket_name(key))
        with pytest.raises(LaunchError, match=r"another process that listens as rank 0.* given twice, or the job"):
            SocketBootstrap(0, 2, key, 0.3)


def test_ranks_that_expect_other_sizes_are_refused(job: Job, key: str) -> None:
    job.start(0, 3, key)
    job.start(1, 2, key)
    for status, text in job.outputs():
        assert status == 3
        assert f"rank 1 (process {job.processes[1].pid}) expects 2 ranks, rank 0 expects 3" in text


def test_a_process_of_another_user_is_not_let_in(job: Job, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says that the first two to knock are user 12345; rank 1 comes in when it is one of us."""
    users = [12345, 12345]

    def peer(connection: socket.socket) -> tuple[int, int]:
        pid, uid = peer_of(connection)
        return pid, users.pop() if users else uid

    monkeypatch.setattr("multiring.collectives.bootstrap.frames.peer_of", peer)
    job.start(1, 2, key, timeout_s=600)
    met = SocketBootstrap(0, 2, key, 600)
    assert users == []
    assert met.all_gather(b"zero") == [b"zero", b"1-01-0"]
    met.barrier()
    met.close()
    assert [status for status, _ in job.outputs()] == [0]


def test_a_listener_of_another_user_is_not_spoken_to(job: Job, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as it is reached: no time limit passes."""
    monkeypatch.setattr("multiring.collectives.bootstrap.local_socket.peer_of", lambda _: (1, 12345))
    job.start(0, 2, key, timeout_s=600)
    with pytest.raises(LaunchError, match=r"got a listener of user 12345 under this job's name, wanted one of user"):
        SocketBootstrap(1, 2, key, 600)


def test_a_name_belongs_to_a_user_and_a_job() -> None:
    assert socket_name("a") != socket_name("b")
    assert socket_name("a").startswith(f"\0multiring-{os.geteuid()}-")
    assert len(socket_name("a" * 1000)) < 100


def test_nothing_is_left_on_disk_or_in_the_name_space(job: Job, key: str) -> None:
    for rank in range(2):
        job.start(rank, 2, key)
    job.outputs()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(socket_name(key))  # free


def test_a_closed_bootstrap_refuses_calls(job: Job, key: str) -> None:
    job.start(1, 2, key)
    met = SocketBootstrap(0, 2, key, 60)
    met.close()
    met.close()
    with pytest.raises(LaunchError, match=r"got a call after close\(\)"):
        met.all_gather(b"")


def test_an_empty_key_is_refused() -> None:
    with pytest.raises(LaunchError, match="got an empty job key"):
        connect({"MULTIRING_RANK": "0", "MULTIRING_SIZE": "2", "MULTIRING_JOB": ""}, 1)


def test_alone_needs_nobody() -> None:
    met = connect({}, 1)
    assert (met.rank, met.size, met.all_gather(b"x")) == (0, 1, [b"x"])
    met.barrier()
    met.close()


class TestFrames:
    @pytest.fixture
    def pair(self) -> Iterator[tuple[Channel, socket.socket]]:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            yield Channel(ours), theirs

    @pytest.mark.parametrize(
        "header",
        [
            HEADER.pack(b"http", Kind.HELLO, 0, 1, 0, 0),
            HEADER.pack(b"mrb1", 99, 0, 1, 0, 0),
            HEADER.pack(b"mrb1", Kind.PART, 0, 1, 0, LIMIT_BYTES + 1),
        ],
    )
    def test_what_is_no_frame_is_refused(self, pair: tuple[Channel, socket.socket], header: bytes) -> None:
        pair[1].sendall(header)
        with pytest.raises(LaunchError, match=r"from process \d+, wanted a message .* one version"):
            pair[0].poll()

    def test_a_frame_that_comes_in_pieces_is_whole_in_the_end(self, pair: tuple[Channel, socket.socket]) -> None:
        whole = HEADER.pack(b"mrb1", Kind.PART, 1, 2, 7, 3) + b"abc"
        for byte in whole[:-1]:
            pair[1].sendall(bytes([byte]))
            assert pair[0].poll() is None
        pair[1].sendall(whole[-1:])
        assert pair[0].poll() == Frame(Kind.PART, 1, 2, 7, b"abc")

    def test_an_end_is_told_from_silence(self, pair: tuple[Channel, socket.socket]) -> None:
        assert pair[0].poll() is None
        with pytest.raises(TimeoutError):
            pair[0].receive(0)
        pair[1].close()
        with pytest.raises(Gone):
            pair[0].poll()

    def test_a_message_over_the_limit_is_not_sent(
        self, pair: tuple[Channel, socket.socket], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("multiring.collectives.bootstrap.frames.LIMIT_BYTES", 2)
        with pytest.raises(LaunchError, match="got a message of 3 bytes, wanted at most 2"):
            pair[0].send(Frame(Kind.PART, 0, 1, 0, b"abc"), 0)
