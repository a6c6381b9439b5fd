"""The symmetric heap: whatever is allocated and freed, in any order, arrays stay apart and memory comes back."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from multiring.collectives.drivers import heap as heap_module
from multiring.collectives.drivers.heap import ALIGNMENT_BYTES, Heap, PeerHeap
from multiring.collectives.drivers.segment import PAGE_BYTES
from multiring.errors import ArgumentError, SharedMemoryError

FIRST_BYTES = 4 * PAGE_BYTES
LIMIT_BYTES = 32 * PAGE_BYTES


@pytest.fixture
def small_heap(monkeypatch: pytest.MonkeyPatch) -> Iterator[Heap]:
    monkeypatch.setenv("MULTIRING_HEAP_BYTES", str(LIMIT_BYTES))
    monkeypatch.setattr(heap_module, "FIRST_SEGMENT_BYTES", FIRST_BYTES)
    yield Heap()
    gc.collect()


def free_ranges(heap: Heap, segment: int = 0) -> list[tuple[int, int]]:
    heap._reclaim()
    free = heap._free[segment]
    assert sorted(free.sizes) == free.starts
    return [(start, free.sizes[start]) for start in free.starts]


def address(buffer: Any) -> int:
    return ctypes.addressof(buffer)


class HeapMachine(RuleBasedStateMachine):
    """Arrays of all sizes come and go; now and then an error retires what is lent."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setenv("MULTIRING_HEAP_BYTES", str(LIMIT_BYTES))
        self.patch.setattr(heap_module, "FIRST_SEGMENT_BYTES", FIRST_BYTES)
        self.heap = Heap()
        self.live: list[tuple[Any, int, int]] = []
        self.retired: list[tuple[int, int]] = []
        self.next_mark = 1

    def teardown(self) -> None:
        everything = sum(n for _, n in self.retired)
        retired_live = {address(buffer) for buffer, _, _ in self.live} & {start for start, _ in self.retired}
        self.live.clear()
        gc.collect()
        free = sum(size for k in range(len(self.heap._segments)) for _, size in free_ranges(self.heap, k))
        total = sum(s.n_bytes for s in self.heap._segments)
        assert free == total - everything, retired_live
        if not self.retired:
            for k, segment in enumerate(self.heap._segments):
                assert free_ranges(self.heap, k) == [(0, segment.n_bytes)]
        self.patch.undo()

    @rule(n_bytes=st.one_of(st.integers(1, 300), st.integers(1, 3 * PAGE_BYTES)))
    def allocate(self, n_bytes: int) -> None:
        try:
            buffer = self.heap.allocate(n_bytes)
        except SharedMemoryError as error:
            assert "MULTIRING_HEAP_BYTES" in str(error)  # noqa: PT017
            used = sum(s.n_bytes for s in self.heap._segments)
            assert used + n_bytes + ALIGNMENT_BYTES > LIMIT_BYTES
            return
        mark = self.next_mark = self.next_mark % 255 + 1
        ctypes.memset(address(buffer), mark, n_bytes)
        self.live.append((buffer, n_bytes, mark))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        del self.live[data.draw(st.integers(0, len(self.live) - 1))]

    @precondition(lambda self: self.live)
    @rule()
    def retire(self) -> None:
        self.heap.retire()
        known = {start for start, _ in self.retired}
        self.retired += [(address(b), rounded(n)) for b, n, _ in self.live if address(b) not in known]

    @invariant()
    def arrays_are_apart_and_aligned_and_whole(self) -> None:
        ranges = sorted((address(b), address(b) + n) for b, n, _ in self.live)
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(ranges))
        for buffer, n_bytes, mark in self.live:
            start = address(buffer)
            assert start % (PAGE_BYTES if rounded(n_bytes) >= PAGE_BYTES else ALIGNMENT_BYTES) == 0
            assert self.heap.holds(start, n_bytes)
            assert bytes(buffer) == bytes([mark]) * n_bytes

    @invariant()
    def nothing_retired_is_lent_again(self) -> None:
        held = {id(b) for b, _, _ in self.live}
        assert len(held) == len(self.live)
        starts = sorted(address(b) for b, _, _ in self.live)
        assert len(set(starts)) == len(starts)
        for k, segment in enumerate(self.heap._segments):
            for start, size in free_ranges(self.heap, k):
                low = segment.address + start
                assert not any(low < at + n and at < low + size for at, n in self.retired)

    @invariant()
    def free_neighbours_are_joined(self) -> None:
        for k in range(len(self.heap._segments)):
            ranges = free_ranges(self.heap, k)
            assert all(a + n < b for (a, n), (b, _) in itertools.pairwise(ranges))

    @invariant()
    def tables_name_every_segment(self) -> None:
        n = len(self.heap._segments)
        assert self.heap.table[0] == self.heap._directory[0] == n
        assert sum(s.n_bytes for s in self.heap._segments) <= LIMIT_BYTES
        for k, segment in enumerate(self.heap._segments):
            assert self.heap.table[1 + 2 * k : 3 + 2 * k].tolist() == [segment.address, segment.n_bytes]
            assert self.heap.bases[k] == segment.address


def rounded(n_bytes: int) -> int:
    return -(-n_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


TestHeapMachine = HeapMachine.TestCase
TestHeapMachine.settings = settings(stateful_step_count=40)


def test_memory_comes_back_through_numpy(small_heap: Heap) -> None:
    """Views keep an array; the last one gives it back."""
    buffer = small_heap.allocate(1000)
    start = address(buffer)
    view = np.frombuffer(buffer, dtype=np.uint8)[10:20].reshape(2, 5)
    del buffer
    assert address(small_heap.allocate(1000)) != start
    del view
    assert address(small_heap.allocate(1000)) == start


def test_a_cycle_gives_its_memory_back_when_it_is_collected(small_heap: Heap) -> None:
    class Holder:
        def __init__(self, buffer: Any) -> None:
            self.buffer, self.me = buffer, self

    start = address(Holder(small_heap.allocate(64)).buffer)
    gc.collect()
    assert address(small_heap.allocate(64)) == start


def test_a_joined_hole_serves_a_larger_array(small_heap: Heap) -> None:
    parts = [small_heap.allocate(PAGE_BYTES) for _ in range(4)]
    first = address(parts[0])
    for index in (2, 0, 3, 1):
        parts[index] = None
    assert address(small_heap.allocate(4 * PAGE_BYTES)) == first
    assert len(small_heap._segments) == 1


def test_an_empty_array_has_an_address_of_its_own(small_heap: Heap) -> None:
    a, b = small_heap.allocate(0), small_heap.allocate(0)
    assert address(a) != address(b)
    assert small_heap.holds(address(a), 0)


def test_growth_is_capped_and_says_so(small_heap: Heap) -> None:
    kept = small_heap.allocate(FIRST_BYTES)
    wanted = LIMIT_BYTES - FIRST_BYTES + 64
    with pytest.raises(
        SharedMemoryError,
        match=re.escape(
            f"symmetric heap: wanted {wanted} bytes more, {FIRST_BYTES} are mapped in 1 segments of at most 64, the"
            f" limit is {LIMIT_BYTES}; delete arrays, or raise MULTIRING_HEAP_BYTES"
        ),
    ):
        small_heap.allocate(wanted)
    rest = small_heap.allocate(LIMIT_BYTES - FIRST_BYTES)
    assert len(small_heap._segments) == 2
    del kept, rest
    assert small_heap.allocate(FIRST_BYTES)  # The error cost nothing.


def test_a_limit_between_pages_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments are whole pages: they must not take the heap past its limit."""
    monkeypatch.setenv("MULTIRING_HEAP_BYTES", str(3 * PAGE_BYTES - 1))
    heap = Heap()
    kept = heap.allocate(100)
    assert sum(s.n_bytes for s in heap._segments) <= 3 * PAGE_BYTES - 1
    del kept


def test_segments_are_limited_in_number(small_heap: Heap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap_module, "MAX_SEGMENTS", 2)
    kept = [small_heap.allocate(FIRST_BYTES) for _ in range(2)]
    with pytest.raises(SharedMemoryError, match="in 2 segments of at most 2"):
        small_heap.allocate(FIRST_BYTES)
    del kept


@pytest.mark.parametrize("text", ["", "1e9", "-5", "12 GiB"])
def test_a_limit_that_is_no_number(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIRING_HEAP_BYTES", text)
    with pytest.raises(ArgumentError, match=re.escape(f"MULTIRING_HEAP_BYTES: got {text!r}, wanted a number of bytes")):
        Heap()


def test_what_was_lent_before_an_error_never_comes_back(small_heap: Heap) -> None:
    lent, returned = small_heap.allocate(64), small_heap.allocate(64)
    at, free_again = address(lent), address(returned)
    del returned
    small_heap.retire()
    del lent
    later = [small_heap.allocate(64) for _ in range(10)]
    assert at not in map(address, later)
    assert free_again in map(address, later)


def test_a_peer_maps_what_the_directory_names(small_heap: Heap) -> None:
    """This process stands for the peer: it has the same memory at two addresses."""
    mine = small_heap.allocate(100)
    peer = PeerHeap(os.getpid(), small_heap.directory.descriptor)
    peer.attach(0)
    offset = address(mine) - int(small_heap.bases[0])
    ctypes.memset(address(mine), 7, 100)
    assert int(peer.bases[0]) != int(small_heap.bases[0])
    assert ctypes.string_at(int(peer.bases[0]) + offset, 100) == b"\7" * 100


def test_a_peer_that_has_ended_before_it_was_mapped(small_heap: Heap) -> None:
    kept = small_heap.allocate(100)
    peer = PeerHeap(os.getpid(), small_heap.directory.descriptor)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    peer.pid = child
    with pytest.raises(SharedMemoryError, match=f"a peer's symmetric array: process {child} gave /proc/{child}/fd/"):
        peer.attach(0)
    del kept


def test_a_child_has_a_heap_of_its_own() -> None:
    mine = heap_module.heap()
    assert heap_module.heap() is mine
    child = os.fork()
    if child == 0:
        os._exit(int(heap_module.heap() is mine or heap_module.heap().token == mine.token))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
