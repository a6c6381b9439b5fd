"""Too little shared memory, leaks, forked children, and other processes' segments."""

from __future__ import annotations

import gc
import os
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multiring as mr
from multiring.collectives.drivers.heap import FIRST_SEGMENT_BYTES
from multiring.collectives.drivers.segment import Segment
from tests.shm.helpers import caught, descriptors, join
from tests.support.ranks import results, run_ranks

pytestmark = pytest.mark.shm

MEBIBYTE = 1 << 20


def can_mount() -> str | None:
    """Return why a small tmpfs cannot be mounted in a mount namespace of its own, or None."""
    try:
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=64k tmpfs /mnt"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr.strip() if done.returncode else None


def in_small_tmpfs(code: str, folder: Path, size: str) -> str:
    """Run a program that sees ``folder`` as a tmpfs of ``size``; return what it wrote."""
    program = folder.parent / "program.py"
    program.write_text(textwrap.dedent(code))
    paths = (shlex.quote(str(path)) for path in (folder, sys.executable, program))
    command = "mount -t tmpfs -o size={} tmpfs {} && exec {} {}".format(size, *paths)
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", command],
        env={**os.environ, "MULTIRING_SHM_DIR": str(folder), "PYTHONPATH": os.pathsep.join([*sys.path, str(root)])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stderr)  # -7 would be SIGBUS.
    return done.stdout


PROGRAM = """
    import numpy as np
    from tests.shm.helpers import caught, join
    from tests.support.ranks import results, run_ranks

    def body(rank, exchange):
        comm = join(rank, exchange, 2)
        arrays = []
        def fill():
            while len(arrays) < 100:
                arrays.append(comm.empty(1 << 20, "uint8"))
                arrays[-1][:] = 7
        found = caught(fill)
        # What there is works, and so do the calls.
        comm.all_reduce(arrays[0], op="max")
        small = comm.empty(100, "float32")
        comm.close()
        return found[0], found[1], len(arrays)

    for kind, text, n in results(run_ranks(2, body)):
        print(kind, n, text)
"""


def test_a_small_tmpfs_is_an_error_and_no_bus_error(tmp_path: Path) -> None:
    why = can_mount()
    if why:
        pytest.skip(f"cannot mount a tmpfs: {why}")
    folder = tmp_path / "shm"
    folder.mkdir()
    for line in in_small_tmpfs(PROGRAM, folder, "40m").splitlines():
        kind, n, text = line.split(" ", 2)
        assert kind == "SharedMemoryError"
        assert int(n) >= 1
        assert "symmetric heap: wanted " in text
        assert f"in {folder} (MULTIRING_SHM_DIR)" in text
        assert " are free: No space left on device" in text
        assert "larger tmpfs (in a container: docker run --shm-size)" in text


def test_no_room_for_the_control_segment_is_an_error_on_every_rank(tmp_path: Path) -> None:
    why = can_mount()
    if why:
        pytest.skip(f"cannot mount a tmpfs: {why}")
    folder = tmp_path / "shm"
    folder.mkdir()
    code = """
        from tests.shm.helpers import caught, join
        from tests.support.ranks import results, run_ranks
        for kind, text, _ in results(run_ranks(3, lambda rank, exchange: caught(lambda: join(rank, exchange, 3)))):
            print(kind, text)
    """
    lines = in_small_tmpfs(code, folder, "256k").splitlines()
    assert len(lines) == 3
    for line in lines:
        assert line.startswith("SharedMemoryError joining the ranks of a node failed; rank 0: control segment of a")
        assert "bytes of shared memory in" in line
        assert "docker run --shm-size" in line


def test_the_cap_of_the_heap_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIRING_HEAP_BYTES", str(FIRST_SEGMENT_BYTES + MEBIBYTE))

    def body(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 2)
        first = comm.empty(FIRST_SEGMENT_BYTES, "uint8")
        found = caught(lambda: comm.empty(2 * MEBIBYTE, "uint8"))
        second = comm.empty(MEBIBYTE, "uint8")
        third = caught(lambda: comm.empty(1, "uint8"))
        del second
        gc.collect()
        again = comm.empty(1000, "uint8")
        comm.all_reduce(first, op="max")
        return found, third, again.size

    for found, third, size in results(run_ranks(2, body)):
        assert found[0] == third[0] == "SharedMemoryError"
        assert f"wanted {2 * MEBIBYTE} bytes more, {FIRST_SEGMENT_BYTES} are mapped" in found[1]
        assert f"the limit is {FIRST_SEGMENT_BYTES + MEBIBYTE}" in found[1]
        assert "delete arrays, or raise MULTIRING_HEAP_BYTES" in found[1]
        assert size == 1000


def test_empty_arrays_and_an_empty_first_message() -> None:
    def body(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 3)
        for x in (comm.empty(0, "float32"), np.empty(0, np.float32), comm.empty((3, 0, 2), "float32")):
            comm.all_reduce(x)
            comm.all_gather(x)
            comm.broadcast(x)
        comm.send_recv(np.empty(0, np.int8), (rank + 1) % 3, np.empty(0, np.int8), (rank - 1) % 3)
        comm.barrier()
        return True

    assert results(run_ranks(3, body)) == [True] * 3


def test_a_segment_of_a_few_bytes_has_a_whole_page() -> None:
    for size in (0, 1, 8, 4096, 4097):
        made = Segment.create(size, "test")
        seen = Segment.attach(os.getpid(), made.descriptor, made.n_bytes, "test")
        assert seen.n_bytes == made.n_bytes == max(-(-size // 4096), 1) * 4096
        made.buffer[0] = b"x"
        assert seen.buffer[0] == b"x"


def test_a_failed_attach_leaves_the_owner_its_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    import mmap

    from multiring.errors import SharedMemoryError

    made = Segment.create(4096, "test")
    made.buffer[0] = b"x"
    before = descriptors()

    def refuse(*_: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(mmap, "mmap", refuse)
        with pytest.raises(SharedMemoryError, match=r"test: mapping 4096 bytes of /proc/\d+/fd/\d+: .*Cannot allocate"):
            Segment.attach(os.getpid(), made.descriptor, 4096, "test")
    assert descriptors() == before
    assert Segment.attach(os.getpid(), made.descriptor, 4096, "test").buffer[0] == b"x"


def shared_memory_files() -> set[str]:
    """Return what lies in /dev/shm, but for what other programs make there."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith(("mpich", "sem.mp", "vader", "psm2"))}  # noqa: PTH208


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:multiring")


def test_200_communicators_leave_nothing_behind() -> None:
    def body(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 2)
        x = comm.empty(1000, "float32")
        counts = []
        for n in range(200):
            twin = comm.dup()
            x[:] = 1
            twin.all_reduce(x)
            twin.send_recv(np.ones(10), 1 - rank, np.ones(10), 1 - rank)
            twin.close()
            del twin
            if n in (20, 199):
                gc.collect()
                comm.barrier()
                counts.append((descriptors(), mappings()))
        comm.close()
        return counts

    before = shared_memory_files(), descriptors()
    for early, late in results(run_ranks(2, body, timeout_s=200)):
        assert late == early
    assert shared_memory_files() - before[0] == set()
    assert descriptors() == before[1]


def test_communicators_that_are_dropped_without_close_leave_no_descriptors() -> None:
    def body(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 2)
        counts = []
        for n in range(30):
            comm.dup().barrier()
            if n in (5, 29):
                gc.collect()
                comm.barrier()
                counts.append(descriptors())
        return counts

    for early, late in results(run_ranks(2, body)):
        assert late == early


def test_nothing_is_left_when_all_are_killed(tmp_path: Path) -> None:
    import signal
    import time

    def body(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 2)
        x = comm.empty(1 << 20, "float32")
        (tmp_path / str(rank)).touch()
        while True:
            comm.all_reduce(x)

    def kill(pids: list[int]) -> None:
        while len(os.listdir(tmp_path)) < 2:  # noqa: PTH208
            time.sleep(0.01)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    before = shared_memory_files()
    assert [o.signal for o in run_ranks(2, body, during=kill)] == [signal.SIGKILL] * 2
    assert shared_memory_files() - before == set()


# --- forked children -------------------------------------------------------------------------------------------------


def child(do: Any) -> str:
    """Run ``do`` in a forked child that ends as a script does, with its exit handlers; return the text it gives."""
    near, far = os.pipe()
    pid = os.fork()
    if pid == 0:
        import atexit

        try:
            os.write(far, str(do()).encode())
        except BaseException as error:
            os.write(far, f"{type(error).__name__}: {error}".encode())
        atexit._run_exitfuncs()
        gc.collect()
        os._exit(0)
    os.close(far)
    with os.fdopen(near) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return text


def test_a_forked_child_has_no_part_in_its_parents_communicator() -> None:
    def body(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 2)
        split = comm.dup()
        x = comm.empty(1000, "float32")
        x[:] = rank
        call = comm.prepare("all_reduce", x)
        comm.barrier()
        texts = [
            child(comm.barrier),
            child(lambda: comm.all_reduce(x)),
            child(call),
            child(lambda: split.send(x, 1 - rank)),
            child(lambda: comm.empty(10)),
            child(comm.close),
            child(lambda: comm.abort("child")),
            child(lambda: mr.init().all_reduce(np.ones(3)).sum()),
        ]
        call()
        split.barrier()
        return texts, float(x[0])

    for texts, value in results(run_ranks(2, body)):
        assert value == 1.0
        for text in texts[:4]:
            assert text.startswith("CommunicatorClosed: process ")
            assert "is its forked child and has no part in it; make a new one in the child" in text
        assert "was forked from" in texts[4]
        assert texts[5:] == ["None", "None", "3.0"]


def test_subprocesses_of_a_rank_do_not_keep_it_alive(tmp_path: Path) -> None:
    """A child process inherits no descriptor of ours, and its life is not taken for its parent's."""

    def body(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 2)
        if rank == 1:
            done = subprocess.run(
                [sys.executable, "-c", "import os; print(len(os.listdir('/proc/self/fd')))"],
                capture_output=True,
                text=True,
                check=True,
                close_fds=False,
            )
            subprocess.Popen(["sleep", "5"])
            return int(done.stdout)
        return caught(comm.barrier)

    found, n_descriptors = results(run_ranks(2, body))
    assert found[0] == "PeerLostError"
    assert found[2] < 4.0
    assert n_descriptors < 60
