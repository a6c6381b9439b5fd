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

from multiring.collectives.drivers.device_records import (
    CallFields,
    ContextFields,
    Slicing,
    enter_variant,
    operand_words,
    spec_of,
)
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
from multiring.kernels.records import REFERENCE_SHIFT

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
            segments = new(size, np.int64)
            segments[:] = [words(self._segment()) for _ in range(size)]
            tables = []
            for areas in (inboxes, progress, slots):
                tables.append(new(size, np.int64))
                tables[-1][:] = [words(area) for area in areas]
            fields = ContextFields(
                rank=rank,
                size=size,
                blocks=blocks,
                limit_ns=limit_ms * 1_000_000,
                error=words(self.errors[rank]),
                abort=words(self.aborts[rank]),
                state=words(self.states[rank]),
                inbox=words(inboxes[rank]),
                inboxes=words(tables[0]),
                progress=words(progress[rank]),
                progresses=words(tables[1]),
                slots=words(tables[2]),
                slot_bytes=slot_bytes,
                n_slots=N_SLOTS,
                segments=words(segments),
            )
            context = self._copy(fields.words())
            self.calls.append(self._call(rank, context, where, visible, slot_bytes))

    def _segment(self) -> NDArray[Any]:
        """Return a table of one segment: all of the arena."""
        table = self.arena.array(1, np.int64)
        table[0] = self.arena.start
        return table

    def _call(self, rank: int, context: Any, where: Any, visible: tuple[bool, bool], slot_bytes: int) -> NDArray[Any]:
        new, size = self.arena.array, self.size
        references = [
            (words(a) - self.arena.start if seen else -1) if elements >= 0 else -2
            for a, seen, elements in (
                (self.x[rank], visible[0], where.x_elements[rank]),
                (self.out[rank], visible[1], where.out_elements[rank]),
            )
        ]
        assert all(reference < 1 << REFERENCE_SHIFT for reference in references)
        scale = self.request.operation.scale if self.request.operation else 1.0
        fields = CallFields(
            context=words(context),
            count=self.count,
            signature=77,
            x=words(self.x[rank]),
            out=words(self.out[rank]),
            x_reference=references[0],
            out_reference=references[1],
            chunks=words(self._copy(where.chunks.ravel())),
            scale=scale,
            n_ranks=size,
            bases=words(new(2 * size * self.blocks, np.int64)),
            operands=words(new(operand_words(size) * self.blocks, np.int64)),
        )
        call = self._copy(fields.words())
        table = self.plans[rank].program(self.variant)
        slicing = Slicing.of(table, where.longest, self.request.wire_type.itemsize, slot_bytes)
        enter_variant(call, self.variant, words(self._copy(table)), slicing)
        return call

    def _copy(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return a copy in the arena."""
        copied = self.arena.array(values.size, np.int64)
        copied[:] = values
        return copied

    @property
    def spec(self) -> StepSpec:
        return spec_of(self.plans[0])

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
