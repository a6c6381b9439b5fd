"""Runs the step kernels of several ranks in the simulator, each rank a process, on memory that they share.

The simulator runs one block at a time and one kernel per process. All records and arrays lie in one shared mapping
that is made before the processes are forked, so that an address means the same in each.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.plan import Plan
from multiring.collectives.request import Request
from multiring.collectives.schedules.algorithms import build
from multiring.collectives.schedules.choose import Choice
from multiring.kernels import memory
from multiring.kernels.cuda import records as r
from multiring.kernels.cuda.catalog import fused_kernel, stepped_kernel
from multiring.kernels.cuda.launch import Simulator
from multiring.kernels.cuda.parts import StepSpec
from multiring.kernels.dtypes import DTYPES, numpy_dtype
from multiring.kernels.records import PROGRAM_N_PLACES, REFERENCE_SHIFT

N_SLOTS = 4
POISON = 0xEE


class Arena:
    """Shared memory that is handed out from its start; what was not handed out may not be touched."""

    def __init__(self, n_bytes: int = 8 << 20) -> None:
        self._map = mmap.mmap(-1, n_bytes)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._at = 0
        self._spans: list[tuple[int, int]] = []

    def array(self, count: int, dtype: Any, fill: int = 0) -> NDArray[Any]:
        n_bytes = count * np.dtype(dtype).itemsize
        begin = self._at
        self._at += -(-(n_bytes + 1) // 64) * 64
        found = np.frombuffer(self._map, np.uint8, n_bytes, begin)
        found[:] = fill
        self._spans.append((self.start + begin, n_bytes))
        return found.view(dtype)

    @contextlib.contextmanager
    def registered(self) -> Iterator[None]:
        """Let kernels touch what was handed out."""
        for address, n_bytes in self._spans:
            if n_bytes:
                memory.register(address, n_bytes)
        try:
            yield
        finally:
            for address, _ in self._spans:
                memory.forget(address)


def words(values: NDArray[Any]) -> int:
    return int(values.ctypes.data)


class Ranks:
    """A node of simulated GPUs, and one call.

    Parameters
    ----------
    size, blocks : int
        Ranks, and channels of each.
    request : Request
    algorithm : str
    count : int
    visible : (bool, bool)
        Whether inputs, and outputs, are symmetric.
    slot_bytes, limit_ms : int
    """

    def __init__(
        self,
        size: int,
        request: Request,
        algorithm: str,
        count: int,
        *,
        blocks: int = 2,
        visible: tuple[bool, bool] = (True, True),
        slot_bytes: int = 2048,
        limit_ms: int = 20_000,
    ) -> None:
        self.size, self.request, self.count, self.blocks = size, request, count, blocks
        self.arena = Arena()
        schedule = build(algorithm, request.collective, size)
        self.plans = [Plan(request, Choice(schedule, algorithm, "a test", ()), rank, N_SLOTS) for rank in range(size)]
        self.variant = visible[0] + 2 * visible[1]
        where = self.plans[0].geometry(count, None)
        dtype = numpy_dtype(request.dtype)
        self.x = [self.arena.array(max(int(n), 0), dtype, POISON) for n in where.x_elements]
        self.out = [self.arena.array(max(int(n), 0), dtype, POISON) for n in where.out_elements]
        new = self.arena.array
        inboxes = [new(2 * blocks * size * r.ARRIVAL_BYTES // 8, np.int64) for _ in range(size)]
        progress = [new(blocks * size * r.LINE_BYTES // 8, np.int64) for _ in range(size)]
        slots = [new(N_SLOTS * slot_bytes, np.uint8, POISON) for _ in range(size)]
        self.errors = [new(r.ERROR_WORDS, np.int64) for _ in range(size)]
        self.aborts = [new(1, np.int64) for _ in range(size)]
        self.states = [new(blocks * r.LINE_BYTES // 8, np.int64) for _ in range(size)]
        self.calls: list[NDArray[Any]] = []
        for rank in range(size):
            context = new(r.DEVICE_WORDS, np.int64)
            segments = new(size, np.int64)
            segments[:] = [words(self._segment()) for _ in range(size)]
            tables = []
            for areas in (inboxes, progress, slots):
                tables.append(new(size, np.int64))
                tables[-1][:] = [words(area) for area in areas]
            for field, value in (
                (r.DEVICE_RANK, rank),
                (r.DEVICE_SIZE, size),
                (r.DEVICE_BLOCKS, blocks),
                (r.DEVICE_BLOCK_SHIFT, blocks.bit_length() - 1),
                (r.DEVICE_LIMIT_NS, limit_ms * 1_000_000),
                (r.DEVICE_ERROR, words(self.errors[rank])),
                (r.DEVICE_ABORT, words(self.aborts[rank])),
                (r.DEVICE_STATE, words(self.states[rank])),
                (r.DEVICE_INBOX, words(inboxes[rank])),
                (r.DEVICE_INBOXES, words(tables[0])),
                (r.DEVICE_PROGRESS, words(progress[rank])),
                (r.DEVICE_PROGRESSES, words(tables[1])),
                (r.DEVICE_SLOTS, words(tables[2])),
                (r.DEVICE_SLOT_BYTES, slot_bytes),
                (r.DEVICE_SLOT_MASK, N_SLOTS - 1),
                (r.DEVICE_SEGMENTS, words(segments)),
            ):
                context[field] = value
            self.calls.append(self._call(rank, context, where, visible, slot_bytes))

    def _segment(self) -> NDArray[Any]:
        """Return a table of one segment: all of the arena."""
        table = self.arena.array(1, np.int64)
        table[0] = self.arena.start
        return table

    def _call(self, rank: int, context: Any, where: Any, visible: tuple[bool, bool], slot_bytes: int) -> NDArray[Any]:
        new, size = self.arena.array, self.size
        chunks = new(where.chunks.size, np.int64)
        chunks[:] = where.chunks.ravel()
        operand_words = 2 * size + 2
        references = [
            (words(a) - self.arena.start if seen else -1) if elements >= 0 else -2
            for a, seen, elements in (
                (self.x[rank], visible[0], where.x_elements[rank]),
                (self.out[rank], visible[1], where.out_elements[rank]),
            )
        ]
        assert all(reference < 1 << REFERENCE_SHIFT for reference in references)
        call = new(r.CALL_WORDS, np.int64)
        scale = self.request.operation.scale if self.request.operation else 1.0
        for field, value in (
            (r.CALL_CONTEXT, words(context)),
            (r.CALL_COUNT, self.count),
            (r.CALL_SIGNATURE, 77),
            (r.CALL_X, words(self.x[rank])),
            (r.CALL_OUT, words(self.out[rank])),
            (r.CALL_X_REFERENCE, references[0]),
            (r.CALL_OUT_REFERENCE, references[1]),
            (r.CALL_CHUNKS, words(chunks)),
            (r.CALL_SCALE, int(np.float64(scale).view(np.int64))),
            (r.CALL_RANKS, int(np.float64(size).view(np.int64))),
            (r.CALL_BASES, words(new(2 * size * self.blocks, np.int64))),
            (r.CALL_OPERANDS, words(new(operand_words * self.blocks, np.int64))),
            (r.CALL_OPERAND_WORDS, operand_words),
        ):
            call[field] = value
        table = self.plans[rank].program(self.variant)
        program = new(table.size, np.int64)
        program[:] = table
        places, wire = int(table[PROGRAM_N_PLACES]), self.request.wire_type.itemsize
        piece = slot_bytes // (places * wire) & ~63 if places else max(where.longest, 1)
        assert piece > 0, "the slots are too small"
        at = r.CALL_VARIANTS + self.variant * r.VARIANT_WORDS
        call[at + r.VARIANT_PROGRAM] = words(program)
        call[at + r.VARIANT_SLICE] = piece
        call[at + r.VARIANT_PLACE_BYTES] = piece * wire if places else 0
        call[at + r.VARIANT_N_SLICES] = -(-where.longest // piece) if where.longest else 0
        return call

    @property
    def spec(self) -> StepSpec:
        return StepSpec(self.request.dtype, self.request.wire_type, self.request.operation, self.request.accumulate)

    def fused(self, rank: int, times: int = 1) -> None:
        """Run a rank's kernel; in a process of its own."""
        launch = Simulator().prepare(fused_kernel(self.spec), [words(self.calls[rank])], self.blocks)
        for _ in range(times):
            launch()

    def run(self, of_rank: Callable[[int], None]) -> None:
        """Run every rank in a process of its own, and wait for all."""
        with self.arena.registered():
            children = [self._fork(of_rank, rank) for rank in range(self.size)]
            codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        assert codes == [0] * self.size, f"exit codes {codes}"

    @staticmethod
    def _fork(of_rank: Callable[[int], None], rank: int) -> int:
        child = os.fork()
        if child:
            return child
        code = 1
        try:
            of_rank(rank)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def stepped(self) -> None:
        """Run all ranks in this process, one launch for each instruction and slice, as a host that waits would."""
        with self.arena.registered():
            self._stepped()

    def _stepped(self) -> None:
        simulator = Simulator()
        launches = [
            simulator.prepare(stepped_kernel(self.spec), [words(call), self.variant, 0, 0], self.blocks)
            for call in self.calls
        ]
        addresses = [words(a) for a in (*self.x, *self.out)]
        for call in self.calls:
            ctypes.memmove(int(call[r.CALL_BASES]), np.array(addresses, np.int64).ctypes.data, 8 * len(addresses))
        at = r.CALL_VARIANTS + self.variant * r.VARIANT_WORDS
        n_slices = int(self.calls[0][at + r.VARIANT_N_SLICES])
        lowered = self.plans[0].lowered(self.variant)
        done: set[tuple[int, int, int]] = set()
        for piece in range(n_slices):
            # In ascending steps, as the proof that programs do not deadlock orders them.
            for instruction in sorted((i for p in lowered.programs for i in p), key=lambda i: (i.step, i.index)):
                for wait in instruction.waits:
                    assert piece < wait.lag or (wait.rank, wait.index, piece - wait.lag) in done
                launches[instruction.rank].arguments[2:] = instruction.index, piece
                launches[instruction.rank]()
                done.add((instruction.rank, instruction.index, piece))


def request(collective: str, dtype: str, operation: Any = None, wire: str | None = None, **options: Any) -> Request:
    return Request(collective, DTYPES[dtype], operation, wire=DTYPES[wire] if wire else None, **options)
