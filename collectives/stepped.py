"""Collectives on a GPU, step by step: the host waits and compares, a kernel moves each step's data.

The interpreter is the host's, and so is everything but the data: arrival, waits, time limits, a peer's end. Where it
would move a slice it returns LAUNCH instead, and goes on when the kernel's work may be told to the peers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.drivers.device_records import (
    CallFields,
    Slicing,
    enter_variant,
    operand_words,
    spec_of,
)
from multiring.collectives.drivers.faults import DEVICE_MARK
from multiring.collectives.invocation import CallRecord, Invocation
from multiring.errors import ArgumentError
from multiring.kernels.cuda.catalog import stepped_kernel
from multiring.kernels.records import (
    CALL_DEVICE,
    CALL_INSTRUCTION,
    CALL_LAUNCHED,
    CALL_LONGEST_CHUNK,
    CALL_LOOP,
    CALL_N_SLICES,
    CALL_PLACE_BYTES,
    CALL_SIGNATURE,
    CALL_SLICE,
    CALL_VARIANT,
    INSTRUCTION_KIND,
    INSTRUCTION_POST,
    INSTRUCTION_SKEW,
    INSTRUCTION_WORDS,
    LAUNCHED_PENDING,
    N_KINDS,
    PROGRAM_INSTRUCTIONS,
)

if TYPE_CHECKING:
    from multiring.collectives.drivers.device import Device

__all__ = ["Stepped", "Steps", "refuse_capture"]


def refuse_capture(device: Device, streams: tuple[int, ...], why: str) -> None:
    """Refuse a stream that records a graph.

    Raises
    ------
    ArgumentError
    """
    for stream in streams:
        if device.is_capturing(stream):
            raise ArgumentError(
                f"stream: got {stream:#x}, which is capturing a graph, wanted one that is not: {why}; end the capture"
                " before the call"
            )


class Steps(Invocation):
    """An invocation whose data a GPU moves.

    Parameters
    ----------
    record : CallRecord
        With no eager plan.
    device : Device
    context : int
        Address of the rank's device context.
    slot_bytes : int
    run_native, finish, broken
        See :class:`multiring.collectives.invocation.Invocation`.
    """

    __slots__ = (
        "_bases",
        "_call",
        "_call_address",
        "_device",
        "_device_bases",
        "_kept",
        "_plan",
        "_prepared",
        "_uploaded",
        "_variants",
        "pending",
        "stream",
    )

    def __init__(
        self,
        record: CallRecord,
        device: Device,
        context: int,
        slot_bytes: int,
        run_native: Callable[[int, int, int], int],
        finish: Callable[[Invocation, int], None],
        broken: Callable[[Invocation, BaseException], None],
    ) -> None:
        super().__init__(record, run_native, finish, broken)
        words, plan = record.words, record.plan
        self._device, self._plan = device, plan
        words[CALL_DEVICE] = slot_bytes
        words[CALL_SIGNATURE] ^= DEVICE_MARK
        self.stream, self.pending = 0, False
        launcher = device.launcher
        kernel = stepped_kernel(spec_of(plan))
        longest, n_ranks = int(words[CALL_LONGEST_CHUNK]), plan.schedule.n_ranks
        # A slice is a slot at most, or a whole chunk where nothing goes through slots.
        blocks = max(min(-(-longest // kernel.tile), launcher.processors * kernel.blocks_per_processor), 1)
        self._kept: list[Any] = []
        self._bases: NDArray[np.int64] = record.bases
        self._uploaded: NDArray[np.int64] = np.full_like(record.bases, -1)
        self._device_bases = self._table(self._uploaded)
        scale = plan.request.operation.scale if plan.request.operation is not None else 1.0
        fields = CallFields(
            context=context,
            count=0,
            signature=0,
            x=0,
            out=0,
            x_reference=-1,
            out_reference=-1,
            chunks=self._table(record.chunks.ravel()),
            scale=scale,
            n_ranks=n_ranks,
            bases=self._device_bases,
            operands=self._table(np.zeros(blocks * operand_words(n_ranks), np.int64)),
        )
        self._call = fields.words()
        self._call_address = self._table(self._call)
        self._variants: set[int] = set()
        self._prepared = launcher.prepare(kernel, [self._call_address, 0, 0, 0], blocks)

    def _table(self, words: NDArray[np.int64]) -> int:
        address, kept = self._device.launcher.table(words if words.size else np.zeros(1, np.int64))
        self._kept.append(kept)
        return int(address)

    def launch(self) -> None:
        """Launch the instruction that the call stands at, and wait for it if peers do."""
        words = self.record.words
        variant = int(words[CALL_VARIANT])
        program = self._plan.program(variant)
        index = int(words[CALL_INSTRUCTION])
        at = int(program[PROGRAM_INSTRUCTIONS]) + index * INSTRUCTION_WORDS
        if program[at + INSTRUCTION_KIND] >= N_KINDS:
            self.settle()
            return
        piece = int(words[CALL_LOOP]) - int(program[at + INSTRUCTION_SKEW])
        if variant not in self._variants:
            self._enter(variant, program)
        if not np.array_equal(self._bases, self._uploaded):
            self._uploaded[:] = self._bases
            self._device.copy(self._device_bases, self._uploaded.ctypes.data, self._uploaded.nbytes, self.stream)
        self._prepared.arguments[1:] = variant, index, piece
        self._prepared(self.stream)
        self.pending = True
        # In the stream's order a rank needs no waits for itself.
        if program[at + INSTRUCTION_POST]:
            self.settle()

    def _enter(self, variant: int, program: NDArray[np.int64]) -> None:
        # The interpreter has cut the chunks, and gives messages addresses by that.
        slicing = Slicing(*(int(self.record.words[field]) for field in (CALL_SLICE, CALL_PLACE_BYTES, CALL_N_SLICES)))
        enter_variant(self._call, variant, self._table(program), slicing)
        self._device.launcher.upload(self._call_address, self._call)
        self._variants.add(variant)

    def settle(self) -> None:
        """Wait for what was launched."""
        if self.pending:
            self._device.synchronize(self.stream)
            self.pending = False
            self.record.words[CALL_LAUNCHED] &= ~LAUNCHED_PENDING


class Stepped:
    """What the communicator runs: a call on a GPU, in the order of a stream.

    Parameters
    ----------
    steps : Steps
    device : Device
    telling : callable
        Returns a context that closes the communicator for all ranks when the device fails.
    finished : callable
        Called after each call that went well.
    """

    def __init__(
        self,
        steps: Steps,
        device: Device,
        telling: Callable[[], AbstractContextManager[None]],
        finished: Callable[[], None],
    ) -> None:
        self.steps = steps
        self._device = device
        self._telling = telling
        self._finished = finished

    def run(
        self, x_address: int, out_address: int, timeout_s: float | None = None, streams: tuple[int, ...] = (0,)
    ) -> None:
        """Run the call, and return when it is done.

        Parameters
        ----------
        x_address, out_address : int
            In device memory; equal for an in-place call.
        timeout_s : float, optional
        streams : tuple of int
            The first one's kernels run; what is in the others comes before.
        """
        with self._telling():
            self._run(x_address, out_address, timeout_s, streams)

    def _run(self, x_address: int, out_address: int, timeout_s: float | None, streams: tuple[int, ...]) -> None:
        device, steps = self._device, self.steps
        device.use()
        refuse_capture(device, streams, "in stepped mode the host waits between steps, which a graph cannot")
        # Peers read and write these arrays as soon as this rank has arrived.
        for stream in streams:
            device.synchronize(stream)
        steps.stream = streams[0]
        try:
            steps.run(x_address, out_address, timeout_s)
        finally:
            # After an error too: the caller may free the arrays.
            steps.settle()
        self._finished()
