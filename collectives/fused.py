"""Collectives on GPUs, each in one kernel that waits for its peers by itself.

The host prepares records in device memory, one for each pair of arrays, and launches; it does not wait. A record is
written once, so that a captured graph can be replayed. Errors are told later: see
:class:`multiring.collectives.fused_line.FusedLine`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.drivers.device_records import CallFields, Slicing, enter_variant, spec_of
from multiring.collectives.drivers.faults import DEVICE_MARK, signature_of
from multiring.collectives.plan import Plan
from multiring.kernels.cuda.catalog import fused_kernel
from multiring.kernels.records import (
    REFERENCE_ABSENT,
    REFERENCE_ORDINARY,
    VARIANT_OUT,
    VARIANT_X,
)

if TYPE_CHECKING:
    from multiring.collectives.fused_line import FusedLine

__all__ = ["Fused"]

CACHED_RECORDS = 64
"""Pairs of arrays remembered for a call."""


@dataclass(frozen=True)
class _Record:
    """A call record on the device, and its launch."""

    prepared: Any
    kept: list[Any]


class Fused:
    """What the communicator runs: a call on a GPU, in the order of a stream.

    Parameters
    ----------
    plan : Plan
    count : int
    counts : tuple of int or None
    line : FusedLine
        Of the communicator.
    telling : callable
        Returns a context that closes the communicator for all ranks when the device fails.
    """

    def __init__(
        self,
        plan: Plan,
        count: int,
        counts: tuple[int, ...] | None,
        line: FusedLine,
        telling: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.plan = plan
        self.count = count
        self.signature = signature_of(plan, counts) ^ DEVICE_MARK
        self._line = line
        self._telling = telling
        where = plan.geometry(count, counts)
        plan.check_slots(line.node.device_slot_bytes)
        self._longest = where.longest
        itemsize = plan.request.dtype.itemsize
        has_x, has_out = int(where.x_elements[plan.rank]), int(where.out_elements[plan.rank])
        self._x_bytes = has_x * itemsize if has_x >= 0 else -1
        self._out_bytes = has_out * itemsize if has_out >= 0 else -1
        self._kernel = fused_kernel(spec_of(plan))
        self._chunks, self._kept = line.table(np.ascontiguousarray(where.chunks).ravel())
        self._programs: dict[int, tuple[int, Slicing, Any]] = {}
        self._records: OrderedDict[tuple[int, ...], _Record] = OrderedDict()

    def run(
        self, x_address: int, out_address: int, timeout_s: float | None = None, streams: tuple[int, ...] = (0,)
    ) -> None:
        """Launch the call.

        Parameters
        ----------
        x_address, out_address : int
            In device memory; equal for an in-place call.
        timeout_s : float, optional
            How long the kernel waits for the peers' once it runs.
        streams : tuple of int
            The first one's it is launched in; what is in the others comes before.
        """
        with self._telling():
            self._run(x_address, out_address, timeout_s, streams)

    def _run(self, x_address: int, out_address: int, timeout_s: float | None, streams: tuple[int, ...]) -> None:
        line = self._line
        capturing = line.begin(streams)
        references = tuple(
            REFERENCE_ABSENT if n_bytes < 0 else line.reference(address, n_bytes)
            for address, n_bytes in ((x_address, self._x_bytes), (out_address, self._out_bytes))
        )
        limit_s = line.timeout_s if timeout_s is None else timeout_s
        key = (x_address, out_address, *references, int(limit_s * 1e9))
        record = self._records.get(key)
        if record is None:
            if capturing:
                line.refuse_unknown()
            record = self._make(x_address, out_address, references, limit_s)
            self._records[key] = record
            if len(self._records) > CACHED_RECORDS:
                line.retire(self._records.popitem(last=False)[1])
        line.launch(record.prepared, streams, self, limit_s, capturing)

    def _make(self, x: int, out: int, references: tuple[int, ...], limit_s: float) -> _Record:
        line, plan = self._line, self.plan
        operation = plan.request.operation
        fields = CallFields(
            context=line.contexts.of(limit_s),
            count=self.count,
            signature=self.signature,
            x=x,
            out=out,
            x_reference=references[0],
            out_reference=references[1],
            chunks=self._chunks,
            scale=operation.scale if operation is not None else 1.0,
            n_ranks=plan.schedule.n_ranks,
            bases=line.bases,
            operands=line.operands,
        )
        words = fields.words()
        for variant in range(4):
            # What is ordinary here cannot become symmetric by what the peers have.
            if variant & VARIANT_X and references[0] == REFERENCE_ORDINARY:
                continue
            if variant & VARIANT_OUT and references[1] == REFERENCE_ORDINARY:
                continue
            program, slicing = self._program(variant)
            enter_variant(words, variant, program, slicing)
        address, kept = line.table(words)
        return _Record(line.device.launcher.prepare(self._kernel, [address], line.node.blocks), [kept])

    def _program(self, variant: int) -> tuple[int, Slicing]:
        if variant not in self._programs:
            program: NDArray[np.int64] = self.plan.program(variant)
            slicing = Slicing.of(
                program, self._longest, self.plan.request.wire_type.itemsize, self._line.node.device_slot_bytes
            )
            address, kept = self._line.table(program)
            self._programs[variant] = address, slicing, kept
        return self._programs[variant][:2]
