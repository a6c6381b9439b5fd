"""Ranks as threads of one process, over plain numpy: an executor for testing what lies above it.

It is at least as strict as the real one: it reads through the addresses and counts that it is given (an address that
cannot be read is an error), wants them aligned, compares the ranks' calls, and lets a send wait for its receive.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from multiring.collectives.request import Request
from multiring.collectives.schedules.choose import choose
from multiring.collectives.schedules.collective import Collective
from multiring.collectives.schedules.explanation import Explanation, explain
from multiring.errors import CollectiveTimeout, CommunicatorClosed, MismatchError
from multiring.kernels.dtypes import DType, numpy_dtype

TIMEOUT_S = 20.0
_memory = os.open("/proc/self/mem", os.O_RDONLY)


def read(address: int, count: int, dtype: DType) -> np.ndarray:
    """Copy ``count`` elements; an address that is not mapped raises."""
    nbytes = count * dtype.itemsize
    if count == 0:
        return np.empty(0, numpy_dtype(dtype))
    assert address > 0
    assert address % min(dtype.itemsize, 8) == 0, f"address {address:#x} of {dtype.name}"
    data = b""
    while len(data) < nbytes:
        part = os.pread(_memory, nbytes - len(data), address + len(data))
        assert part, f"address {address + len(data):#x} cannot be read"
        data += part
    return np.frombuffer(bytearray(data), numpy_dtype(dtype))


def write(address: int, values: np.ndarray, dtype: DType) -> None:
    assert values.dtype == numpy_dtype(dtype)
    if values.size:
        read(address, values.size, dtype)
        data = np.ascontiguousarray(values).tobytes()
        ctypes.memmove(address, data, len(data))


def shard_counts(count: int, size: int) -> list[int]:
    return [count // size + (r < count % size) for r in range(size)]


def reduced(parts: list[np.ndarray], request: Request) -> np.ndarray:
    """Reduce in ascending rank; 16-bit floats in float32."""
    operation = request.operation
    assert operation is not None
    wide = numpy_dtype(request.accumulate) if request.accumulate else None
    if wide is None:
        wide = np.dtype(np.float32) if request.dtype.kind == "float" and request.dtype.itemsize == 2 else parts[0].dtype
    if request.wire is not None:
        parts = [p.astype(numpy_dtype(request.wire)) for p in parts]
    total = parts[0].astype(wide) * (operation.scale if operation.name == "premul_sum" else 1)
    total = total.astype(wide)
    functions: dict[str, Callable[[Any, Any], Any]] = {
        "sum": np.add,
        "avg": np.add,
        "prod": np.multiply,
        "max": np.maximum,
        "min": np.minimum,
        "band": np.bitwise_and,
        "bor": np.bitwise_or,
        "bxor": np.bitwise_xor,
        "premul_sum": np.add,
    }
    function = functions.get(operation.name) or np.vectorize(cast(Any, operation.function))
    for part in parts[1:]:
        value = part.astype(wide)
        if operation.name == "premul_sum":
            value = (value * operation.scale).astype(wide)
        total = function(total, value).astype(wide)
    if operation.name == "avg":
        total = total / len(parts)
    if request.wire is not None:
        total = total.astype(numpy_dtype(request.wire))
    return total.astype(numpy_dtype(request.dtype))


class World:
    """What the ranks of one communicator share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.condition = threading.Condition()
        self.rounds: dict[int, dict[int, Any]] = {}
        self.error: Exception | None = None
        self.left: set[int] = set()
        self.splits: dict[int, dict[int, World]] = {}
        self.messages: dict[tuple[int, int], list[list[Any]]] = {}
        self.blocks: list[tuple[int, int]] = []

    def fail(self, error: Exception) -> None:
        with self.condition:
            self.error = self.error or error
            self.condition.notify_all()

    def wait_for(self, ready: Callable[[], Any], timeout_s: float | None, what: str) -> None:
        """With the condition held."""
        limit = time.monotonic() + (timeout_s or TIMEOUT_S)
        while not ready():
            if self.error is not None:
                raise type(self.error)(*self.error.args)
            if self.left:
                self.error = CommunicatorClosed(f"rank {min(self.left)} closed while {what}")
                continue
            left = limit - time.monotonic()
            if left <= 0:
                self.error = CollectiveTimeout(f"{what}: late")
                continue
            self.condition.wait(left)


class FakeInvocation:
    def __init__(self, executor: FakeExecutor, request: Request, count: int, counts: tuple[int, ...] | None) -> None:
        self.executor, self.request, self.count, self.counts = executor, request, count, counts
        name, size, rank = request.collective, executor.size, executor.rank
        shards = list(counts) if counts is not None else shard_counts(count, size)
        if name == "all_to_all":
            if counts is None:
                assert count % size == 0
                table = np.full((size, size), count // size)
            else:
                assert len(counts) == size * size
                assert sum(counts) == count
                table = np.array(counts).reshape(size, size)
            self.table = table
            self.n_in, self.n_out = int(table[rank].sum()), int(table[:, rank].sum())
        else:
            assert counts is None or (len(counts) == size and sum(counts) == count), (counts, count)
            self.shards = shards
            root = rank == request.root
            mine = shards[rank]
            self.n_in, self.n_out = {
                "barrier": (0, 0),
                "all_reduce": (count, count),
                "reduce": (count, count if root else 0),
                "broadcast": (count if root else 0, count),
                "reduce_scatter": (count, mine),
                "all_gather": (mine, count),
                "gather": (mine, count if root else 0),
                "scatter": (count if root else 0, mine),
            }[name]

    def run(self, x_address: int, out_address: int, timeout_s: float | None = None) -> None:
        executor = self.executor
        request = self.request
        executor.enter()
        try:
            x = read(x_address, self.n_in, request.dtype)
            self._check_places(x_address, out_address)
            call = (request, self.count, self.counts)
            entries = executor.round((call, x), timeout_s, f"rank {executor.rank} in {request.collective}")
            executor.calls.append(request.collective)
            result = self._result([entries[r][1] for r in range(executor.size)])
            # Nobody writes before all have read: as entries hold copies, this holds already.
            if result is not None and self.n_out:
                write(out_address, result, request.dtype)
        finally:
            executor.leave()

    def _check_places(self, x: int, out: int) -> None:
        """In place forms only."""
        item = self.request.dtype.itemsize
        if not self.n_in or not self.n_out or x == out:
            assert x != out or not self.n_in or self.n_in == self.n_out or self.executor.rank in (0, self.request.root)
            return
        if x + self.n_in * item <= out or out + self.n_out * item <= x:
            return
        start = sum(self.shards[: self.executor.rank]) * item
        allowed = {
            "reduce_scatter": out - x == start,
            "scatter": out - x == start,
            "all_gather": x - out == start,
            "gather": x - out == start,
        }
        assert allowed.get(self.request.collective, False), "overlapping arrays reached the executor"

    def _result(self, parts: list[np.ndarray]) -> np.ndarray | None:
        request, rank, size = self.request, self.executor.rank, self.executor.size
        name = request.collective
        if name == "barrier" or (name in ("reduce", "gather") and rank != request.root):
            return None
        if name in ("all_reduce", "reduce"):
            return reduced(parts, request)
        if name == "broadcast":
            return parts[request.root]
        if name in ("all_gather", "gather"):
            return np.concatenate(parts)
        if name == "all_to_all":
            blocks = []
            for source in range(size):
                start = int(self.table[source, :rank].sum())
                blocks.append(parts[source][start : start + int(self.table[source, rank])])
            return np.concatenate(blocks)
        whole = reduced(parts, request) if name == "reduce_scatter" else parts[request.root]
        start = sum(self.shards[:rank])
        return whole[start : start + self.shards[rank]]


class FakeExecutor:
    """One rank's end of a :class:`World`."""

    on_device = None

    def __init__(self, world: World, rank: int) -> None:
        self.world, self.rank, self.size = world, rank, world.size
        self.local_rank, self.local_size, self.node, self.n_nodes = rank, world.size, 0, 1
        self.device, self.topology = "host", None
        self.sequence = 0
        self.own_close = False
        self.busy = threading.Lock()
        self.calls: list[str] = []
        self.cache: dict[Any, FakeInvocation] = {}

    @property
    def closed(self) -> bool:
        return self.own_close or self.world.error is not None

    def enter(self) -> None:
        assert self.busy.acquire(blocking=False), "two calls at once reached the executor"
        if self.own_close:
            self.busy.release()
            raise CommunicatorClosed(f"rank {self.rank}: closed")

    def leave(self) -> None:
        self.busy.release()

    def round(self, entry: Any, timeout_s: float | None, what: str) -> dict[int, Any]:
        world = self.world
        with world.condition:
            if world.error is not None:
                raise type(world.error)(*world.error.args)
            entries = world.rounds.setdefault(self.sequence, {})
            self.sequence += 1
            entries[self.rank] = entry
            world.condition.notify_all()
            if entry is None:
                return entries
            world.wait_for(lambda: len(entries) == self.size, timeout_s, what)
            calls = {r: e and e[0] for r, e in sorted(entries.items())}
            if any(c != entry[0] for c in calls.values()):
                world.error = world.error or MismatchError(f"the ranks' calls differ: {calls}")
                world.condition.notify_all()
                raise MismatchError(*world.error.args)
        return entries

    def prepare(self, request: Request, count: int, counts: tuple[int, ...] | None = None) -> FakeInvocation:
        hash(request)
        assert type(count) is int
        assert counts is None or all(type(c) is int for c in counts)
        key = (request, count, counts)
        if key not in self.cache:
            self.cache[key] = FakeInvocation(self, request, count, counts)
        return self.cache[key]

    def refuse(self) -> None:
        self.enter()
        try:
            self.calls.append("refused")
            self.round(None, None, "refused")
        finally:
            self.leave()

    def empty(self, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        block = np.full(nbytes + 64, 0xA5, np.uint8)
        start = -block.ctypes.data % 64
        self.world.blocks.append((block.ctypes.data + start, nbytes))
        return block[start : start + nbytes].view(numpy_dtype(dtype)).reshape(shape)

    def is_symmetric(self, address: int, nbytes: int) -> bool:
        return any(start <= address and address + nbytes <= start + size for start, size in self.world.blocks)

    def send(self, address: int, count: int, dtype: DType, peer: int, timeout_s: float | None) -> None:
        self.exchange([(address, count, dtype, peer)], [], timeout_s)

    def recv(self, address: int, count: int, dtype: DType, peer: int, timeout_s: float | None) -> None:
        self.exchange([], [(address, count, dtype, peer)], timeout_s)

    def exchange(self, sends: list[Any], receives: list[Any], timeout_s: float | None) -> None:
        self.enter()
        try:
            world, rank = self.world, self.rank
            with world.condition:
                posted = []
                for address, count, dtype, peer in sends:
                    assert peer != rank
                    message = [read(address, count, dtype), count, dtype, False]
                    world.messages.setdefault((rank, peer), []).append(message)
                    posted.append(message)
                world.condition.notify_all()
                for address, count, dtype, peer in receives:
                    assert peer != rank
                    box = world.messages.setdefault((peer, rank), [])
                    world.wait_for(box.__len__, timeout_s, f"rank {rank} receives from {peer}")
                    message = box.pop(0)
                    if (message[1], message[2]) != (count, dtype):
                        world.error = MismatchError(
                            f"rank {peer} sends {message[1]} {message[2].name}, rank {rank} receives {count} "
                            f"{dtype.name}"
                        )
                        world.condition.notify_all()
                        raise world.error
                    write(address, message[0], dtype)
                    message[3] = True
                    world.condition.notify_all()
                world.wait_for(lambda: all(m[3] for m in posted), timeout_s, f"rank {rank} sends")
            self.calls.append("exchange")
        finally:
            self.leave()

    def split(self, color: int | None, key: int) -> FakeExecutor | None:
        self.enter()
        try:
            entries = self.round(("split", (color, key)), None, "split")
        finally:
            self.leave()
        with self.world.condition:
            worlds = self.world.splits.setdefault(self.sequence, {})
            if color is None:
                return None
            members = sorted((entries[r][1][1], r) for r in range(self.size) if entries[r][1][0] == color)
            world = worlds.setdefault(color, World(len(members)))
        return FakeExecutor(world, [r for _, r in members].index(self.rank))

    def explain(self, request: Request, count: int, *, symmetric: bool = True, in_place: bool = False) -> Explanation:
        choice = choose(Collective(request.collective, request.root), self.size, count * request.dtype.itemsize)
        return explain(choice, count * request.dtype.itemsize, dtype=request.dtype.name)

    def describe(self, request: Request, count: int) -> str:
        return f"{request.collective} of {count} {request.dtype.name} on {self.size} ranks: fake"

    def check(self) -> None:
        self.calls.append("check")
        if self.world.error is not None:
            raise type(self.world.error)(*self.world.error.args)

    def abort(self, reason: str) -> None:
        self.world.fail(CommunicatorClosed(f"rank {self.rank} aborted: {reason}"))

    def close(self) -> None:
        self.own_close = True
        with self.world.condition:
            self.world.left.add(self.rank)
            self.world.condition.notify_all()


def run_ranks(size: int, function: Callable[[Any], Any], limit_s: float = 60.0) -> list[Any]:
    """Call ``function(communicator)`` on every rank, each in a thread, and return the results, or the exceptions."""
    from multiring import Communicator

    world = World(size)
    results: list[Any] = [None] * size

    def body(rank: int) -> None:
        comm = Communicator(FakeExecutor(world, rank))
        try:
            results[rank] = function(comm)
        except BaseException as error:
            results[rank] = error
            if not isinstance(error, Exception) or isinstance(error, AssertionError):
                world.fail(CommunicatorClosed(f"rank {rank} failed its test: {error}"))

    threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit_s)
        assert not thread.is_alive(), "a rank hangs"
    return results


def on_ranks(size: int, function: Callable[[Any], Any]) -> list[Any]:
    """As :func:`run_ranks`; the first exception is raised."""
    results = run_ranks(size, function)
    for result in results:
        if isinstance(result, AssertionError):
            raise result
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
