"""Segments: reserved, nameless, and errors that name the bytes and the remedy."""

from __future__ import annotations

import ctypes
import errno
import os
import re
from pathlib import Path
from typing import Any

import pytest

from multiring.collectives.drivers import segment as segment_module
from multiring.collectives.drivers.control import Layout, words_at
from multiring.collectives.drivers.segment import PAGE_BYTES, Segment
from multiring.collectives.drivers.shared_memory import SharedMemory
from multiring.errors import SharedMemoryError


def n_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def ended_process() -> int:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return child


@pytest.fixture
def folder() -> Path:
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK):
        pytest.skip("/dev/shm cannot be written")
    return shm


@pytest.mark.parametrize("n_bytes", [1, PAGE_BYTES, 10 * PAGE_BYTES + 1])
def test_memory_is_reserved_not_only_sized(n_bytes: int) -> None:
    segment = Segment.create(n_bytes, "a test")
    status = os.fstat(segment.descriptor)
    assert segment.n_bytes == status.st_size == -(-n_bytes // PAGE_BYTES) * PAGE_BYTES
    assert status.st_blocks * 512 >= segment.n_bytes
    assert segment.address % PAGE_BYTES == 0
    assert not any(segment.buffer.raw)


def test_a_segment_of_no_bytes_is_a_page() -> None:
    """B10: nothing maps 0 bytes."""
    segment = Segment.create(0, "a test")
    assert segment.n_bytes == PAGE_BYTES
    ctypes.memset(segment.address, 1, PAGE_BYTES)


def test_a_segment_has_no_name_and_is_not_inherited(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(os.listdir(folder))  # noqa: PTH208
    for setting in (None, str(folder)):
        if setting:
            monkeypatch.setenv("MULTIRING_SHM_DIR", setting)
        segment = Segment.create(100, "a test")
        assert not os.get_inheritable(segment.descriptor)
        assert "deleted" in os.readlink(f"/proc/self/fd/{segment.descriptor}")  # noqa: PTH115
        assert set(os.listdir(folder)) == before  # noqa: PTH208


def test_descriptors_and_mappings_go_with_the_segment() -> None:
    before = n_descriptors()
    segment = Segment.create(100, "a test")
    assert n_descriptors() > before
    other = Segment.attach(os.getpid(), segment.descriptor, segment.n_bytes, "a test")
    assert other.descriptor == -1
    del segment, other
    assert n_descriptors() == before


def test_both_ends_see_one_memory() -> None:
    segment = Segment.create(3 * PAGE_BYTES, "a test")
    child = os.fork()
    if child == 0:
        peer = Segment.attach(os.getppid(), segment.descriptor, segment.n_bytes, "a test")
        ctypes.memset(peer.address + PAGE_BYTES, 9, PAGE_BYTES)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert segment.buffer.raw == b"\0" * PAGE_BYTES + b"\11" * PAGE_BYTES + b"\0" * PAGE_BYTES


def test_no_room_names_the_bytes_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(segment_module, "available_bytes", lambda: 123456)
    before = n_descriptors()
    with pytest.raises(
        SharedMemoryError,
        match=re.escape(
            f"the heap: wanted {2 * PAGE_BYTES} bytes of shared memory of the machine's memory, 123456 are free: No"
            " space left on device; free memory, lower MULTIRING_HEAP_BYTES, use smaller arrays, or point"
            " MULTIRING_SHM_DIR at a larger tmpfs (in a container: docker run --shm-size)"
        ),
    ):
        Segment.create(PAGE_BYTES + 1, "the heap")
    assert n_descriptors() == before


def test_more_than_the_machine_has_is_refused_before_it_is_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: Any) -> None:
        raise AssertionError("reserved")

    monkeypatch.setattr(os, "posix_fallocate", never)
    with pytest.raises(SharedMemoryError, match=f"wanted {1 << 60} bytes .* No space left on device"):
        Segment.create(1 << 60, "a test")


def test_a_folder_without_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIRING_SHM_DIR", str(folder))
    before = n_descriptors()
    with pytest.raises(
        SharedMemoryError, match=rf"wanted \d+ bytes of shared memory in {folder} \(MULTIRING_SHM_DIR\), \d+ are free"
    ):
        Segment.create(1 << 60, "a test")
    assert n_descriptors() == before


def test_a_folder_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIRING_SHM_DIR", "/nowhere/at/all")
    with pytest.raises(
        SharedMemoryError,
        match=r"in /nowhere/at/all \(MULTIRING_SHM_DIR\), 0 are free: No such file or directory",
    ):
        Segment.create(10, "a test")


def test_attaching_to_a_process_that_has_ended() -> None:
    pid = ended_process()
    with pytest.raises(
        SharedMemoryError,
        match=rf"an array: process {pid} gave /proc/{pid}/fd/5, opening it: No such file or directory; ranks of a node"
        r" must run as one user in one pid namespace",
    ):
        Segment.attach(pid, 5, PAGE_BYTES, "an array")


def test_attaching_to_what_is_too_short() -> None:
    segment = Segment.create(PAGE_BYTES, "a test")
    before = n_descriptors()
    with pytest.raises(SharedMemoryError, match=rf"an array: mapping {4 * PAGE_BYTES} bytes of /proc/\d+/fd/\d+"):
        Segment.attach(os.getpid(), segment.descriptor, 4 * PAGE_BYTES, "an array")
    assert n_descriptors() == before


def test_no_process_attaches_after_the_descriptor_is_closed() -> None:
    segment = Segment.create(PAGE_BYTES, "a test")
    descriptor = segment.descriptor
    segment.close_descriptor()
    segment.close_descriptor()
    with pytest.raises(SharedMemoryError, match="opening it"):
        Segment.attach(os.getpid(), descriptor, PAGE_BYTES, "an array")
    ctypes.memset(segment.address, 1, PAGE_BYTES)  # The mapping stays.


def test_another_processs_segment_is_told_by_its_nonce() -> None:
    """In another pid namespace rank 0's number names somebody else."""
    segment = Segment.create(Layout(2).n_bytes, "a test")
    rank = SharedMemory.__new__(SharedMemory)
    rank.rank, rank.ranks = 1, [0, 1]
    rank.facts = [{"pid": os.getpid()}]
    made = {"descriptor": segment.descriptor, "n_bytes": segment.n_bytes, "nonce": 7}
    with pytest.raises(
        SharedMemoryError,
        match=rf"rank 1 sees another process as {os.getpid()} than rank 0's: the ranks do not share a pid namespace",
    ):
        rank._attach(made)
    from multiring.kernels.records import CONTROL_NONCE

    words_at(segment.address + CONTROL_NONCE, 1)[0] = 7
    assert rank._attach(made).n_bytes == segment.n_bytes
