"""All ranks in one thread: the same records, programs and interpreter, advanced in random order.

For tests: every interleaving of the ranks' steps can come up, repeatably, and in plain Python every access is checked.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.drivers.control import Context, Layout, Waiting
from multiring.collectives.drivers.heap import MAX_SEGMENTS
from multiring.collectives.invocation import CallRecord
from multiring.collectives.plan import Plan
from multiring.collectives.request import Request
from multiring.collectives.schedules.choose import Choice
from multiring.errors import MultiringError
from multiring.kernels.records import CONTEXT_HEAP, DONE, LOWER, WAIT

__all__ = ["InProcess", "NativeHome", "PythonHome"]

SEGMENT_START = 8
WHOLE_ADDRESS_SPACE = 1 << 47
"""As one heap segment: every array is symmetric. It starts at 8, since a base of 0 means that it is not mapped."""


class NativeHome:
    """The interpreter as machine code."""

    def __init__(self) -> None:
        from multiring.kernels import interpreter
        from multiring.kernels.build import native, span_address

        self.run = native(interpreter.run, "int64(int64,int64,int64)")
        self.advance = native(interpreter.advance, "int64(int64)")
        self.span_address: Callable[..., int] = span_address

    def register(self, *arrays: NDArray[Any]) -> None:
        """Nothing to do: machine code checks no bounds."""

    def forget(self, *arrays: NDArray[Any]) -> None:
        """Nothing to do either."""


class PythonHome:
    """The interpreter as the Python functions that it is written as, with bounds and alignment checked."""

    def __init__(self) -> None:
        from multiring.kernels import interpreter

        self.run: Callable[..., int] = interpreter.run
        self.advance: Callable[..., int] = interpreter.advance

    def span_address(self, kind: str, **specification: Any) -> int:
        """Return a number for a span kernel in plain Python."""
        from multiring.kernels.kinds import span_function
        from multiring.kernels.memory import register_span

        return register_span(span_function(kind, **specification))

    def register(self, *arrays: NDArray[Any]) -> None:
        """Allow accesses to arrays."""
        from multiring.kernels import memory

        for array in arrays:
            memory.register(array.ctypes.data, max(array.nbytes, 1))

    def forget(self, *arrays: NDArray[Any]) -> None:
        """Disallow accesses again: the addresses will be another array's."""
        from multiring.kernels import memory

        for array in arrays:
            memory.forget(array.ctypes.data)


class InProcess:
    """A communicator whose ranks all live in this thread.

    Parameters
    ----------
    size : int
    layout : Layout, optional
    seed : int
        Of the order in which ranks advance.
    home : NativeHome or PythonHome
    """

    def __init__(
        self, size: int, home: NativeHome | PythonHome, *, layout: Layout | None = None, seed: int = 0
    ) -> None:
        self.size = size
        self.home = home
        self.layout = layout or Layout(size)
        self._random = random.Random(seed)
        self._control: NDArray[np.int64] = np.zeros(self.layout.n_bytes // 8, dtype=np.int64)
        self._tables = {visible: self._heap_table(visible) for visible in (False, True)}
        bases: NDArray[np.int64] = np.zeros(MAX_SEGMENTS, dtype=np.int64)
        bases[0] = SEGMENT_START
        self._bases = bases
        waiting = Waiting(spins=0, yields=0, patience_ms=0)
        self.contexts = [
            Context(
                rank, self.layout, self._control.ctypes.data, waiting, self._tables[True], [bases] * size, [-1] * size
            )
            for rank in range(size)
        ]
        home.register(self._control, bases, *self._tables.values())
        for context in self.contexts:
            home.register(*context.memory)

    @staticmethod
    def _heap_table(visible: bool) -> NDArray[np.int64]:
        table: NDArray[np.int64] = np.zeros(1 + 2 * MAX_SEGMENTS, dtype=np.int64)
        if visible:
            table[:3] = 1, SEGMENT_START, WHOLE_ADDRESS_SPACE
        return table

    def run(
        self,
        request: Request,
        choice: Choice,
        arrays: Sequence[tuple[NDArray[Any], NDArray[Any]]],
        count: int,
        *,
        counts: tuple[int, ...] | None = None,
        visible: Sequence[bool] | None = None,
        eager: bool | None = None,
        plans: Sequence[Plan] | None = None,
    ) -> int:
        """Run one call of all ranks.

        Parameters
        ----------
        request : Request
        choice : Choice
        arrays : sequence of (input, output)
            Of each rank; the same array for in place.
        count, counts
            See :func:`multiring.collectives.schedules.geometry.geometry`.
        visible : sequence of bool, optional
            Which ranks' arrays are in symmetric memory; all by default.
        eager : bool, optional
            False keeps a small call out of the arrival lines.
        plans : sequence of Plan, optional
            Instead of plans from ``choice``; for tests that alter programs.

        Returns
        -------
        int
            How many times some rank was advanced.

        Raises
        ------
        MultiringError
            If a rank's interpreter reports anything but progress.
        """
        made = plans or [Plan(request, choice, rank, self.layout.n_slots) for rank in range(self.size)]
        layout_room = self.layout.eager_bytes if eager is not False else -1
        records = []
        for rank, plan in enumerate(made):
            context = self.contexts[rank]
            context.words[CONTEXT_HEAP] = self._tables[True if visible is None else visible[rank]].ctypes.data
            records.append(
                CallRecord(plan, context, count, counts, 300.0, self.home.span_address, eager_bytes=layout_room)
            )
            self.home.register(*records[-1].memory, *arrays[rank])
        try:
            return self._advance(records, arrays)
        finally:
            for record, pair in zip(records, arrays, strict=True):
                self.home.forget(*record.memory, *pair)

    def _advance(self, records: list[CallRecord], arrays: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> int:
        started = [False] * self.size
        live = list(range(self.size))
        advances = 0
        while live:
            rank = self._random.choice(live)
            record = records[rank]
            if started[rank]:
                code = self.home.advance(record.address)
            else:
                x, out = arrays[rank]
                code = self.home.run(record.address, x.ctypes.data, out.ctypes.data)
                started[rank] = True
            advances += 1
            if code == DONE:
                live.remove(rank)
            elif code == LOWER:
                record.enter_variant()
                self.home.register(*record.memory)
            elif code != WAIT:
                raise MultiringError(f"rank {rank} returned code {code} after {advances} advances, wanted DONE")
        return advances
