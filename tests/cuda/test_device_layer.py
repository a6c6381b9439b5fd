"""How the device layer calls CUDA: one export for a segment, one open for a peer, closed before freed, nothing left."""

from __future__ import annotations

import gc
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from multiring.collectives.drivers import device_heap as device_heap_module
from multiring.collectives.drivers.cuda_ipc import CudaIpc
from multiring.collectives.drivers.device_heap import DeviceHeap
from multiring.collectives.drivers.device_peers import acquire, release
from multiring.errors import ArgumentError, DeviceError, SharedMemoryError
from tests.cuda.fake_cupy import Machine, Runtime, device

SLOT_BYTES = 64 << 10


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(device_heap_module, "FIRST_SEGMENT_BYTES", 2 << 20)
    monkeypatch.delenv("MULTIRING_CUDA_MODE", raising=False)
    yield
    gc.collect()


def peers(machine: Machine) -> tuple[Runtime, DeviceHeap, Runtime]:
    owner, other = Runtime(machine, 0), Runtime(machine, 1)
    return owner, DeviceHeap(device(owner)), other


def opened_by(runtime: Runtime, heap: DeviceHeap) -> Any:
    return acquire(device(runtime), heap_pid(), heap.directory.descriptor, heap.token)


def heap_pid() -> int:
    return os.getpid()


def test_one_export_for_all_arrays_of_a_segment() -> None:
    owner, heap, _ = peers(Machine(2))
    blocks = [heap.allocate(1000) for _ in range(20)]
    assert owner.calls["malloc"] == owner.calls["ipcGetMemHandle"] == 1
    assert len({b.address for b in blocks}) == 20
    assert [heap.place(b.address, 1000) for b in blocks[:3]] == [(0, 0), (0, 1024), (0, 2048)]
    heap.allocate(3 << 20)
    assert owner.calls["malloc"] == owner.calls["ipcGetMemHandle"] == 2


def test_one_open_for_all_communicators_and_closed_by_the_last() -> None:
    machine = Machine(2)
    owner, heap, other = peers(machine)
    block = heap.allocate(1000)
    gpu = device(other)
    first, second = (acquire(gpu, heap_pid(), heap.directory.descriptor, heap.token) for _ in range(2))
    for mapped in (first, second, first):
        mapped.attach(0)
        assert mapped.bases[0] == block.address
    assert other.calls["ipcOpenMemHandle"] == 1
    release(first)
    assert other.calls["ipcCloseMemHandle"] == 0
    release(second)
    assert other.calls["ipcCloseMemHandle"] == 1
    assert owner.calls["ipcCloseMemHandle"] == 0


def test_a_segment_is_freed_when_no_array_and_no_peer_is_left() -> None:
    machine = Machine(2)
    owner, heap, other = peers(machine)
    block = heap.allocate(1000)
    mapped = opened_by(other, heap)
    mapped.attach(0)
    heap.trim()
    del block
    gc.collect()
    heap.trim()
    assert owner.calls["free"] == 1, "only the call that makes a context"
    release(mapped)
    heap.trim()
    assert owner.calls["free"] == 2
    assert not machine.memory
    with pytest.raises(DeviceError, match=r"segment 0 of process [0-9]+ was freed"):
        opened_by(other, heap).attach(0)
    assert heap.allocate(10).address
    assert heap.n_segments == 2, "a number is used once"


def test_returned_memory_is_lent_again_after_its_kernels() -> None:
    owner, heap, _ = peers(Machine(2))
    block = heap.allocate(1 << 20)
    address = block.address
    kept = heap.allocate(900 << 10)
    del block
    gc.collect()
    assert owner.calls["deviceSynchronize"] == 0, "freeing waits for nothing"
    again = heap.allocate(1 << 20)
    assert again.address == address
    assert owner.calls["deviceSynchronize"] == 1
    assert kept.address != address


def test_after_an_error_nothing_is_lent_again() -> None:
    _, heap, _ = peers(Machine(2))
    block = heap.allocate(1 << 20)
    address = block.address
    heap.retire()
    del block
    gc.collect()
    assert heap.allocate(1 << 20).address != address


def test_the_heaps_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIRING_HEAP_BYTES", str(5 << 20))
    _, heap, _ = peers(Machine(2))
    kept = heap.allocate(3 << 20)
    with pytest.raises(SharedMemoryError, match=r"wanted 2097152 bytes more, .* raise MULTIRING_HEAP_BYTES=4194304"):
        heap.allocate(2 << 20)
    assert kept.n_bytes == 3 << 20


def test_a_driver_without_memory_is_an_error_that_names_it() -> None:
    owner, heap, _ = peers(Machine(2))
    owner.refused.add("malloc")
    with pytest.raises(
        SharedMemoryError,
        match=r"on GPU 0 \(Fake GPU\): wanted 256 bytes more, .* malloc: invalid argument",
    ):
        heap.allocate(100)


def test_a_handle_is_not_opened_where_it_was_made() -> None:
    machine = Machine(1)
    gpu = device(Runtime(machine, 0))
    address = gpu.allocate(10)
    with pytest.raises(DeviceError, match="invalid device context"):
        gpu.open(gpu.export(address))


def test_no_gpu() -> None:
    with pytest.raises(DeviceError, match="no CUDA-capable device"):
        device(Runtime(Machine(0), 0))


def test_a_forked_child_may_not_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = device(Runtime(Machine(1), 0))
    gpu.use()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with pytest.raises(ArgumentError, match=r"device: process 1 was forked from [0-9]+, which used GPU 0 \(Fake GPU\)"):
        gpu.use()


def test_gpus_are_told_apart() -> None:
    machine = Machine(2)
    uuids = [device(Runtime(machine, k)).uuid for k in (0, 1, 0)]
    assert uuids[0] == uuids[2] != uuids[1]


def test_an_array_on_another_gpu() -> None:
    machine = Machine(2)
    here, there = (device(Runtime(machine, k)) for k in range(2))
    here.check_here("x", here.allocate(1))
    with pytest.raises(ArgumentError, match="x: got an array on GPU 1, wanted one on GPU 0, this communicator's"):
        here.check_here("x", there.allocate(1))


def test_events_and_captures() -> None:
    runtime = Runtime(Machine(1), 0)
    gpu = device(runtime)
    event = gpu.mark(5)
    assert not gpu.reached(event)
    runtime.events[event] = 0
    assert gpu.reached(event)
    gpu.follow(6, event)
    gpu.forget(event)
    assert not runtime.events
    assert not gpu.is_capturing(5)
    runtime.capturing.add(5)
    assert gpu.is_capturing(5)
    assert gpu.is_capturing(0), "asking the default stream is an error then"


# --- ranks that join ------------------------------------------------------------------------------------------------


class Table:
    """An exchange among threads."""

    def __init__(self, size: int) -> None:
        self.size, self.answers, self.barrier = size, [b""] * size, threading.Barrier(size, timeout=30)

    def exchange(self, rank: int) -> Callable[[bytes], list[bytes]]:
        def exchange(payload: bytes) -> list[bytes]:
            self.answers[rank] = payload
            self.barrier.wait()
            found = list(self.answers)
            self.barrier.wait()
            return found

        return exchange


def joined(machine: Machine, gpus: list[int], refused: dict[int, str] | None = None) -> tuple[list[Any], list[Runtime]]:
    """Join ranks in threads; return what each became, an error or its end."""
    runtimes = [Runtime(machine, gpu) for gpu in gpus]
    for rank, call in (refused or {}).items():
        runtimes[rank].refused.add(call)
    table = Table(len(gpus))
    found: list[Any] = [None] * len(gpus)

    def body(rank: int) -> None:
        try:
            found[rank] = CudaIpc(rank, len(gpus), table.exchange(rank), device(runtimes[rank]), slot_bytes=SLOT_BYTES)
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(len(gpus))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found, runtimes


def close(nodes: list[Any]) -> None:
    for node in nodes:
        node.close()


def test_ranks_that_reach_each_other() -> None:
    machine = Machine(3)
    nodes, runtimes = joined(machine, [0, 1, 2])
    for rank, (node, runtime) in enumerate(zip(nodes, runtimes, strict=True)):
        assert (node.mode, node.broken) == ("fused", {})
        assert runtime.calls["ipcGetMemHandle"] == 1
        assert runtime.calls["ipcOpenMemHandle"] == 2
        assert node.slots == node.block_addresses == [n.block_addresses[r] for r, n in enumerate(nodes)]
        assert node.rank == rank
    close(nodes)
    close(nodes)  # a second time is nothing
    gc.collect()
    for runtime in runtimes:
        assert runtime.calls["ipcCloseMemHandle"] == 2
    assert machine.opened.total() == 0


def test_memory_is_freed_by_the_last_to_close() -> None:
    machine = Machine(2)
    nodes, runtimes = joined(machine, [0, 1])
    close(nodes)
    # Rank 0 closed first, while rank 1 had its memory open; it goes with rank 0's next communicator, or its process.
    assert [len(r.mine) for r in runtimes] == [1, 0]
    nodes[0].device_heap.trim()
    assert not machine.memory


def test_several_ranks_on_one_gpu() -> None:
    nodes, _ = joined(Machine(1), [0, 0])
    assert {(n.mode, n.why) for n in nodes} == {("stepped", "several ranks share a GPU")}
    close(nodes)


def pairs_of(nodes: list[Any]) -> Any:
    assert all(n.broken == nodes[0].broken and n.mode == "stepped" for n in nodes)
    return nodes[0].broken


def test_a_pair_without_peer_access_goes_through_the_host() -> None:
    with pytest.warns(RuntimeWarning, match="the GPUs of ranks 0 and 2 .* do not reach each other's memory") as warned:
        nodes, runtimes = joined(Machine(3, unreachable={(0, 2)}), [0, 1, 2])
    assert len(warned) == 1, "one rank warns"
    assert pairs_of(nodes) == {(0, 2): "the driver reports no peer access"}
    for node, runtime in zip(nodes, runtimes, strict=True):
        start, n_bytes = next((a, n) for a, n in runtime.pinned.items() if n > 4096)
        assert n_bytes == 3 * node.slots_bytes
        assert node.slots == [start, node.block_addresses[1], start + 2 * node.slots_bytes]
    block = nodes[1].device_heap.allocate(10)
    assert nodes[1].reaches(block.address, 10)
    assert not nodes[0].reaches(nodes[0].device_heap.allocate(10).address, 10)
    close(nodes)
    assert not any(r.pinned for r in runtimes)


def test_copies_that_bring_other_bytes_are_found_out() -> None:
    with pytest.warns(RuntimeWarning, match="ranks 0 and 1"):
        nodes, _ = joined(Machine(2, lying={(0, 1)}), [0, 1])
    assert pairs_of(nodes) == {(0, 1): "its memory reads as other bytes than were written"}
    close(nodes)


def test_memory_that_cannot_be_exported_or_opened() -> None:
    for call, who, wanted in (
        ("ipcGetMemHandle", 1, {(0, 1), (1, 2)}),
        ("ipcOpenMemHandle", 2, {(0, 2), (1, 2)}),
    ):
        with pytest.warns(RuntimeWarning, match="do not reach each other's memory"):
            nodes, _ = joined(Machine(3), [0, 1, 2], {who: call})
        assert set(pairs_of(nodes)) == wanted
        close(nodes)


def test_a_rank_that_cannot_join_tells_all() -> None:
    for call, text in (("malloc", "rank 1: SharedMemoryError: symmetric heap on GPU 1"),):
        found, _ = joined(Machine(2), [0, 1], {1: call})
        assert all(isinstance(f, SharedMemoryError) and text in str(f) for f in found)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, _ = joined(Machine(2, unreachable={(0, 1)}), [0, 1], {0: "hostRegister"})
    assert all("rank 0: DeviceError: cudaErrorInvalidValue: hostRegister" in str(f) for f in found)


def test_the_mode_that_the_environment_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIRING_CUDA_MODE", "stepped")
    nodes, _ = joined(Machine(2), [0, 1])
    assert {n.mode for n in nodes} == {"stepped"}
    close(nodes)
    monkeypatch.setenv("MULTIRING_CUDA_MODE", "fused")
    nodes, _ = joined(Machine(1), [0, 0])
    assert {n.mode for n in nodes} == {"fused"}
    close(nodes)
    found, _ = joined(Machine(2, unreachable={(0, 1)}), [0, 1])
    assert all("MULTIRING_CUDA_MODE: got 'fused', wanted 'stepped' or nothing" in str(f) for f in found)
    monkeypatch.setenv("MULTIRING_CUDA_MODE", "quick")
    found, _ = joined(Machine(2), [0, 1])
    assert all("MULTIRING_CUDA_MODE: got 'quick', wanted fused or stepped" in str(f) for f in found)
