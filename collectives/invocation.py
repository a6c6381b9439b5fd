"""A request bound to a count: the call record that the interpreter runs, ready to be run many times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.drivers.control import Context
from multiring.collectives.drivers.faults import signature_of
from multiring.collectives.drivers.wire import WireRecord
from multiring.collectives.plan import EAGER, Plan
from multiring.kernels.dtypes import DType
from multiring.kernels.records import (
    CALL_BASES,
    CALL_BLOCK,
    CALL_CHUNKS,
    CALL_CONTEXT,
    CALL_COUNT,
    CALL_EAGER,
    CALL_KINDS,
    CALL_LONGEST_CHUNK,
    CALL_OPERANDS,
    CALL_OUT_BYTES,
    CALL_PARAMETERS,
    CALL_PHASE,
    CALL_PROGRAMS,
    CALL_SIGNATURE,
    CALL_STREAM,
    CALL_TIMEOUT_NS,
    CALL_VARIANT,
    CALL_WIRE,
    CALL_WIRE_BYTES,
    CALL_WORDS,
    CALL_X_BYTES,
    DONE,
    KIND_CAST_IN,
    KIND_CAST_OUT,
    KIND_COPY,
    KIND_FORWARD,
    KIND_REDUCE,
    KIND_REDUCE_FINAL,
    KIND_WORDS,
    N_KINDS,
    PHASE_IDLE,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CallRecord", "Invocation"]

BLOCK_BYTES = 64 << 10
"""The most that is written between two looks at ABORT."""

STREAM_BYTES = 16 << 20
"""From this chunk on, results apart from the inputs are written past the caches, which they would only sweep.

Measured on two cores that share 32 MiB: chunks of 8 MiB and less are slower past the caches, chunks of 32 MiB two to
three times as quick."""


class CallRecord:
    """A call record in plain memory, with everything that it points to.

    Parameters
    ----------
    plan : Plan
    context : Context
    count : int
        See :func:`multiring.collectives.schedules.geometry.geometry`.
    counts : tuple of int or None
    timeout_s : float
    span_address : callable
        ``span_address(kind, **specification)``, as :func:`multiring.kernels.build.span_address`.
    eager_bytes : int, optional
        Room for an eager plan's slots, instead of the layout's; negative: never eager.
    """

    def __init__(
        self,
        plan: Plan,
        context: Context,
        count: int,
        counts: tuple[int, ...] | None,
        timeout_s: float,
        span_address: Callable[..., int],
        *,
        eager_bytes: int | None = None,
    ) -> None:
        request, schedule, rank = plan.request, plan.schedule, plan.rank
        where = plan.geometry(count, counts)
        plan.check_slots(context.layout.slot_bytes)
        n_ranks, n_members = schedule.n_ranks, context.layout.n_ranks
        self.plan = plan
        self.words: NDArray[np.int64] = np.zeros(CALL_WORDS, dtype=np.int64)
        self.address = self.words.ctypes.data
        self._chunks = np.ascontiguousarray(where.chunks)
        self._bases: NDArray[np.int64] = np.zeros(2 * n_members, dtype=np.int64)
        self._operands: NDArray[np.int64] = np.zeros(2 * n_ranks + 2, dtype=np.int64)
        self._parameters: NDArray[np.int64] = np.zeros(8, dtype=np.int64)
        self._programs: list[NDArray[np.int64]] = []
        if request.operation is not None:
            self._parameters[0] = np.float64(request.operation.scale).view(np.int64)
        self._parameters[1] = n_ranks
        itemsize, wire_bytes = request.dtype.itemsize, request.wire_type.itemsize
        room = context.layout.eager_bytes if eager_bytes is None else eager_bytes
        self.eager = plan.fits_eager(where.longest, room)
        has_x = int(where.x_elements[rank])
        has_out = int(where.out_elements[rank])
        for field, value in (
            (CALL_CONTEXT, context.address),
            (CALL_PHASE, PHASE_IDLE),
            (CALL_COUNT, count),
            (CALL_SIGNATURE, signature_of(plan, counts)),
            (CALL_TIMEOUT_NS, int(timeout_s * 1e9)),
            (CALL_X_BYTES, has_x * itemsize if has_x >= 0 else -1),
            (CALL_OUT_BYTES, has_out * itemsize if has_out >= 0 else -1),
            (CALL_EAGER, int(self.eager)),
            (CALL_CHUNKS, self._chunks.ctypes.data),
            (CALL_LONGEST_CHUNK, where.longest),
            (CALL_BASES, self._bases.ctypes.data),
            (CALL_OPERANDS, self._operands.ctypes.data),
            (CALL_PARAMETERS, self._parameters.ctypes.data),
            (CALL_WIRE_BYTES, wire_bytes),
            (CALL_STREAM, int(where.longest * itemsize >= STREAM_BYTES)),
            (CALL_BLOCK, max(BLOCK_BYTES // max(itemsize, wire_bytes), 1)),
        ):
            self.words[field] = value
        self._enter_kinds(span_address)
        lowered = plan.lowered(EAGER if self.eager else 0) if plan.spans_nodes else None
        self.wire: WireRecord | None = None
        if lowered is not None and lowered.is_wired:
            self.wire = WireRecord(lowered.lanes[rank], rank, plan.n_slots)
            self.words[CALL_WIRE] = self.wire.words.ctypes.data
        if self.eager:
            self._enter_program(0, EAGER)

    @property
    def memory(self) -> list[NDArray[np.int64]]:
        """The arrays that the record consists of."""
        own = [self.words, self._chunks, self._bases, self._operands, self._parameters, *self._programs]
        return own + (self.wire.memory if self.wire is not None else [])

    def _enter_kinds(self, span_address: Callable[..., int]) -> None:
        request = self.plan.request
        dtype, wire = request.dtype, request.wire_type
        kinds = self.words[CALL_KINDS : CALL_KINDS + KIND_WORDS * N_KINDS].reshape(N_KINDS, KIND_WORDS)
        streams = bool(self.words[CALL_STREAM])
        past = span_address("copy", itemsize=dtype.itemsize, stream=True) if streams else 0
        kinds[KIND_COPY] = 0, dtype.itemsize, dtype.itemsize, past
        kinds[KIND_FORWARD] = 0, wire.itemsize, wire.itemsize, 0
        if request.operation is not None and self.plan.schedule.n_ranks > 1:
            for kind, final in ((KIND_REDUCE, False), (KIND_REDUCE_FINAL, True)):
                specification = {
                    "dtype": wire,
                    "operation": request.operation,
                    "accumulate": request.accumulate,
                    "final": final,
                }
                past = span_address("reduce", **specification, stream=True) if streams else 0
                kinds[kind] = span_address("reduce", **specification), wire.itemsize, wire.itemsize, past
        if self.plan.through_slots:
            scale = request.operation is not None and request.operation.name == "premul_sum"
            kinds[KIND_CAST_IN] = _cast(span_address, dtype, wire, scale), dtype.itemsize, wire.itemsize, 0
            kinds[KIND_CAST_OUT] = _cast(span_address, wire, dtype, False), wire.itemsize, dtype.itemsize, 0

    def _enter_program(self, index: int, variant: int) -> None:
        program = self.plan.program(variant)
        self._programs.append(program)
        self.words[CALL_PROGRAMS + index] = program.ctypes.data

    def enter_variant(self) -> None:
        """Enter the program that the interpreter asked for."""
        variant = int(self.words[CALL_VARIANT])
        self._enter_program(variant, variant)


def _cast(span_address: Callable[..., int], source: DType, destination: DType, scale: bool) -> int:
    if source == destination and not scale:
        return 0
    return span_address("cast", source=source, destination=destination, scale=scale)


class Invocation:
    """A call that can be run many times on arrays of one size.

    Parameters
    ----------
    record : CallRecord
    run_native : callable
        The interpreter's entry, ``run(record, x, out) -> code``.
    finish : callable
        ``finish(invocation, code)``: carries on until the call is done, or raises.
    broken : callable
        ``broken(invocation, error)``: told of whatever ends a call, before it is raised.
    """

    __slots__ = ("__weakref__", "_address", "_broken", "_finish", "_run", "record")

    def __init__(
        self,
        record: CallRecord,
        run_native: Callable[[int, int, int], int],
        finish: Callable[[Invocation, int], None],
        broken: Callable[[Invocation, BaseException], None],
    ) -> None:
        self.record = record
        self._address = record.address
        self._run = run_native
        self._finish = finish
        self._broken = broken

    def run(self, x_address: int, out_address: int, timeout_s: float | None = None) -> None:
        """Run the call on two C-contiguous arrays, and return when this rank may use them again.

        Parameters
        ----------
        x_address, out_address : int
            Equal for an in-place call; ignored where the rank has no such array.
        timeout_s : float, optional
            How long to wait for the others, instead of the communicator's limit.

        Raises
        ------
        MismatchError, PeerLostError, CollectiveTimeout, CommunicatorClosed
        """
        if timeout_s is not None:
            self._run_within(x_address, out_address, timeout_s)
            return
        # Ctrl-C strikes as soon as machine code returns to Python: here, before anything else can run.
        try:
            code = self._run(self._address, x_address, out_address)
            if code != DONE:
                self._finish(self, code)
        except BaseException as error:
            self._broken(self, error)
            raise

    def _run_within(self, x_address: int, out_address: int, timeout_s: float) -> None:
        words = self.record.words
        usual = int(words[CALL_TIMEOUT_NS])
        words[CALL_TIMEOUT_NS] = int(timeout_s * 1e9)
        try:
            self.run(x_address, out_address)
        finally:
            words[CALL_TIMEOUT_NS] = usual

    def disable(self, run_native: Callable[[int, int, int], int]) -> None:
        """Replace the interpreter's entry, for a closed communicator."""
        self._run = run_native
