"""What goes wrong in fused calls: seen by the watchdog while kernels wait, told by the next call.

Nothing of this runs on the way of a call that goes well, but for one look at the error words.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.drivers.control import Context
from multiring.collectives.drivers.cuda_ipc import CudaIpc
from multiring.collectives.drivers.faults import DEVICE_MARK, describe_signature, disagreement
from multiring.collectives.fused_line import FusedLine
from multiring.errors import DeviceError, MismatchError, MultiringError
from multiring.kernels.cuda.records import (
    ARRIVAL_BYTES,
    ARRIVAL_COUNT,
    ARRIVAL_OUT,
    ARRIVAL_SEQUENCE,
    ARRIVAL_SIGNATURE,
    ARRIVAL_X,
    ERROR_INSTRUCTION,
    ERROR_RECORD,
    ERROR_SLICE,
)
from multiring.kernels.records import (
    ABORT_CLOSED,
    ABORT_CULPRIT_SHIFT,
    ABORT_MISMATCH,
    ABORT_PEER_LOST,
    ABORT_RANK_MASK,
    ABORT_REASON_SHIFT,
    ABORT_TIMEOUT,
    PHASE_EXIT,
    PHASE_RUN,
    PHASE_START,
    REFERENCE_ORDINARY,
    REPORT_CHUNK,
    REPORT_COUNT,
    REPORT_INSTRUCTION,
    REPORT_N_STEPS,
    REPORT_PEER,
    REPORT_PHASE,
    REPORT_SIGNATURE,
    REPORT_SLICE,
    REPORT_STEP,
    REPORT_TIMEOUT_NS,
    SIGNATURE_REFUSED,
    VARIANT_OUT,
    VARIANT_X,
)

__all__ = ["Aborter", "FusedWatch"]

GRACE_S = 0.3
"""How long a kernel may still run when a peer's process has ended: what the peer had sent before is good."""

LINES_PATIENCE_S = 1.0
"""How long to wait for the lines of all ranks, to say what each called."""


class Aborter(Protocol):
    """The executor, as far as the watch needs it."""

    rank: int
    size: int

    def tell_abort(self, reason: int, culprit: int, text: str = "") -> None:
        """Set the communicator's ABORT word, unless somebody has."""


class FusedWatch:
    """Looks after the fused calls of a communicator; see :class:`multiring.collectives.drivers.watchdog.Watchdog`.

    Parameters
    ----------
    aborter : Aborter
    line : FusedLine
    node : CudaIpc
    """

    def __init__(self, aborter: Aborter, line: FusedLine, node: CudaIpc) -> None:
        self._aborter, self._line, self._node = aborter, line, node
        self._context: Context = node.context
        self._ended_at: dict[int, float] = {}
        self._stopped = False
        self._lock = threading.Lock()
        self.finding: MultiringError | None = None
        """An error that is not in the ABORT word."""

    @property
    def active(self) -> threading.Event:
        """Set while kernels are in flight."""
        return self._line.active

    # --- while kernels are in flight ---------------------------------------------------------------------------------

    def look(self) -> bool:
        """Look once; see :class:`multiring.collectives.drivers.watchdog.Watched`."""
        line = self._line
        # A device that fails is told of by the calls; a thread could only print it.
        with contextlib.suppress(DeviceError, MultiringError):
            line.device.use()
            line.active.clear()
            if line.idle():
                return True
            line.active.set()
            line.map_new()
            self.read_error()
            for rank in range(self._node.size):
                if rank != self._node.rank and int(self._node.board.done[rank]) < line.launched:
                    self._look_at(rank)
            if self._context.abort_word and not self._stopped:
                self._stopped = True
                line.stop_kernels(self._context.abort_word)
        return True

    def _look_at(self, rank: int) -> None:
        node, line = self._node, self._line
        if node.board.left[rank]:
            self._report(rank, line.launched)
            self._aborter.tell_abort(ABORT_CLOSED, rank)
        elif node.has_ended(rank, 0):
            now = time.monotonic()
            if now - self._ended_at.setdefault(rank, now) > GRACE_S:
                self._report(rank, line.launched)
                self._aborter.tell_abort(ABORT_PEER_LOST, rank)
        elif int(node.board.launched[rank]) < line.launched and self._has_refused(rank):
            with self._lock:
                call = line.call(int(node.board.launched[rank]) + 1)
                what = describe_signature(call[0].signature ^ DEVICE_MARK, call[0].count) if call else "a call"
                text = f"rank {rank} refused for a bad argument what rank {node.rank} called: {what}"
                self.finding = self.finding or MismatchError(
                    f"the ranks disagree: {text}; the communicator is closed; make the same calls on all ranks"
                )
            self._aborter.tell_abort(0, rank, text)

    def _has_refused(self, rank: int) -> bool:
        """Whether a rank's newest line on the host, ahead of this rank's, is a refusal."""
        epoch = self._context.epoch + 1
        host = self._context.arrival(epoch, rank)
        return int(host[ARRIVAL_SEQUENCE]) == epoch and int(host[ARRIVAL_SIGNATURE]) == SIGNATURE_REFUSED

    # --- what a kernel says ------------------------------------------------------------------------------------------

    def read_error(self) -> None:
        """Turn the error words into the ABORT word, or into :attr:`finding`."""
        error = self._line.contexts.error
        record = int(error[ERROR_RECORD])
        if record == 0:
            return
        with self._lock:
            if self.finding is not None or self._context.abort_word:
                return
            reason = (record >> ABORT_REASON_SHIFT) & 0xFF
            culprit = (record >> ABORT_CULPRIT_SHIFT) & ABORT_RANK_MASK
            number = self._number_of(record)
            if reason == ABORT_TIMEOUT:
                self._report(culprit, number, int(error[ERROR_INSTRUCTION]), int(error[ERROR_SLICE]))
                self._aborter.tell_abort(ABORT_TIMEOUT, culprit)
            elif reason == ABORT_MISMATCH:
                self.finding = self._mismatch(number)
            else:
                text = f"a kernel of rank {self._node.rank} met what cannot be: reason {reason}, about {culprit}"
                self._aborter.tell_abort(0, culprit, text)

    def _number_of(self, record: int) -> int:
        low = record & 0xFFFFFF
        launched = self._line.launched
        return launched - ((launched - low) & 0xFFFFFF)

    def _lines(self, number: int) -> list[NDArray[np.int64] | None]:
        """Return every rank's arrival line of a call, as its first block wrote it; None where none came."""
        line, node = self._line, self._node
        found: NDArray[np.int64] = np.zeros((node.size, ARRIVAL_BYTES // 8), np.int64)
        row = (number & 1) * node.blocks * node.size
        address = node.block_addresses[node.rank] + node.inbox_offset() + row * ARRIVAL_BYTES
        end = time.monotonic() + LINES_PATIENCE_S
        while True:
            line.device.use()
            line.read(found, address)
            here = found[:, ARRIVAL_SEQUENCE] == number
            if here.all() or time.monotonic() > end:
                return [found[r] if here[r] else None for r in range(node.size)]
            time.sleep(0.001)

    def _mismatch(self, number: int) -> MultiringError:
        call = self._line.call(number)
        calls = {
            rank: (int(found[ARRIVAL_SIGNATURE]) ^ DEVICE_MARK, int(found[ARRIVAL_COUNT]))
            for rank, found in enumerate(self._lines(number))
            if found is not None
        }
        return disagreement(calls, number, self._node.rank, call[0].plan if call else None)

    def _report(self, peer: int, number: int, instruction: int = -1, piece: int = 0) -> None:
        """Write down where this rank stands, for the errors of all ranks."""
        report = self._context.report(self._node.rank)
        entry = self._line.call(number)
        report[REPORT_PHASE], report[REPORT_PEER] = PHASE_START, peer
        if entry is None:
            return
        call, limit_s = entry
        report[REPORT_SIGNATURE], report[REPORT_COUNT] = call.signature ^ DEVICE_MARK, call.count
        report[REPORT_TIMEOUT_NS] = int(limit_s * 1e9)
        if instruction < 0:
            return
        variant = VARIANT_X | VARIANT_OUT
        for found in self._lines(number):
            if found is not None and found[ARRIVAL_X] == REFERENCE_ORDINARY:
                variant &= ~VARIANT_X
            if found is not None and found[ARRIVAL_OUT] == REFERENCE_ORDINARY:
                variant &= ~VARIANT_OUT
        at = call.plan.instruction(variant, self._node.rank, instruction)
        if at is None:
            report[REPORT_PHASE] = PHASE_EXIT
            return
        fields: tuple[tuple[int, Any], ...] = (
            (REPORT_PHASE, PHASE_RUN),
            (REPORT_INSTRUCTION, instruction),
            (REPORT_SLICE, piece),
            (REPORT_STEP, at.step),
            (REPORT_CHUNK, at.chunk),
            (REPORT_N_STEPS, call.plan.schedule.n_steps),
        )
        for field, value in fields:
            report[field] = value
