"""All ranks in one thread: the same records, programs and interpreter, advanced in random order.

For tests: a rank runs until it has to wait, then any other may go on, repeatably by a seed; ranks may be in different
calls. In plain Python every access is checked.
"""

from __future__ import annotations

import dataclasses
import random
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.drivers.control import Context, Layout, Waiting
from multiring.collectives.drivers.heap import MAX_SEGMENTS
from multiring.collectives.drivers.in_memory import Ether, InMemory
from multiring.collectives.drivers.wire import Wire
from multiring.collectives.invocation import CallRecord
from multiring.collectives.plan import Plan
from multiring.collectives.request import Request
from multiring.collectives.schedules.choose import Choice
from multiring.errors import MultiringError
from multiring.kernels.records import ARRIVAL_INLINE_BYTES, CONTROL_HEADER_BYTES, DONE, LOWER, WAIT

__all__ = ["Call", "InProcess", "NativeHome", "PythonHome"]

MAX_CALLS = MAX_SEGMENTS // 2
"""Every array that is symmetric is a heap segment of its own."""


class NativeHome:
    """The interpreter as machine code."""

    def __init__(self) -> None:
        from multiring.kernels import interpreter
        from multiring.kernels.build import native, span_address

        self.run = native(interpreter.run, "int64(int64,int64,int64)")
        self.advance = native(interpreter.advance, "int64(int64)")
        self.span_address: Callable[..., int] = span_address

    def register(self, address: int, n_bytes: int) -> None:
        """Nothing to do: machine code checks no bounds."""

    def forget(self, address: int) -> None:
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

    def register(self, address: int, n_bytes: int) -> None:
        """Allow accesses to a range of memory."""
        from multiring.kernels import memory

        memory.register(address, n_bytes)

    def forget(self, address: int) -> None:
        """Disallow accesses again: the addresses will be another array's."""
        from multiring.kernels import memory

        memory.forget(address)


@dataclass(frozen=True)
class Call:
    """One call of all ranks.

    Attributes
    ----------
    request : Request
    choice : Choice
    arrays : sequence of (input, output)
        Of each rank, both contiguous; they may be the same array, or one a part of the other, for in place. What a rank
        does not have in this collective is ignored.
    count, counts
        See :func:`multiring.collectives.schedules.geometry.geometry`.
    visible : sequence of bool or of (bool, bool), optional
        Which ranks' arrays, or inputs and outputs, are in symmetric memory; all by default.
    eager : bool
        False keeps a small call out of the arrival lines.
    plans : sequence of Plan, optional
        Instead of plans from ``choice``; for tests that alter programs.
    """

    request: Request
    choice: Choice
    arrays: Sequence[tuple[NDArray[Any], NDArray[Any]]]
    count: int
    counts: tuple[int, ...] | None = None
    visible: Sequence[bool | tuple[bool, bool]] | None = None
    eager: bool = True
    plans: Sequence[Plan] | None = None

    def is_visible(self, rank: int) -> tuple[bool, bool]:
        """Whether a rank's input, and output, are in symmetric memory."""
        flags = True if self.visible is None else self.visible[rank]
        return flags if isinstance(flags, tuple) else (flags, flags)


class InProcess:
    """A communicator whose ranks all live in this thread.

    Parameters
    ----------
    size : int
    home : NativeHome or PythonHome
    layout : Layout, optional
        Of one node, for ``layout.n_ranks`` ranks.
    seed : int
        Of the order in which ranks advance, and messages between nodes move.
    nodes : sequence of int, optional
        The node of each rank; by default all are on one.
    """

    def __init__(
        self,
        size: int,
        home: NativeHome | PythonHome,
        *,
        layout: Layout | None = None,
        seed: int = 0,
        nodes: Sequence[int] | None = None,
    ) -> None:
        self.size = size
        self.home = home
        self.nodes = tuple(nodes or (0,) * size)
        self._random = random.Random(seed)
        self.ether = Ether(seed)
        self._wires = [Wire(InMemory(self.ether, rank), rank) for rank in range(size)]
        self._tables: list[NDArray[np.int64]] = [np.zeros(1 + 2 * MAX_SEGMENTS, dtype=np.int64) for _ in range(size)]
        self._bases: list[NDArray[np.int64]] = [np.zeros(MAX_SEGMENTS, dtype=np.int64) for _ in range(size)]
        waiting = Waiting(spins=0, yields=0, patience_ms=0)
        sample = layout or Layout(1)
        self.n_slots = sample.n_slots
        self.eager_bytes = sample.eager_bytes
        self._controls: list[NDArray[np.int64]] = []
        contexts: dict[int, Context] = {}
        for node in sorted(set(self.nodes)):
            members = [rank for rank, its in enumerate(self.nodes) if its == node]
            ranks = members + [rank for rank in range(size) if rank not in members]
            mine = dataclasses.replace(sample, n_ranks=len(members))
            self._controls.append(np.zeros(mine.n_bytes // 8, dtype=np.int64))
            _poison(self._controls[-1], mine)
            for member, rank in enumerate(members):
                contexts[rank] = Context(
                    member,
                    mine,
                    self._controls[-1].ctypes.data,
                    waiting,
                    self._tables[rank],
                    [self._bases[r] for r in members],
                    [-1] * len(members),
                    ranks,
                )
        self.contexts = [contexts[rank] for rank in range(size)]
        own = [*self._controls, *self._bases, *self._tables, *(m for c in self.contexts for m in c.memory)]
        for array in own:
            home.register(array.ctypes.data, array.nbytes)
        # What is freed must be forgotten: its addresses will be in the middle of other arrays.
        weakref.finalize(self, _forget, home, [array.ctypes.data for array in own])

    def run(
        self,
        request: Request,
        choice: Choice,
        arrays: Sequence[tuple[NDArray[Any], NDArray[Any]]],
        count: int,
        *,
        counts: tuple[int, ...] | None = None,
        visible: Sequence[bool | tuple[bool, bool]] | None = None,
        eager: bool = True,
        plans: Sequence[Plan] | None = None,
    ) -> int:
        """Run one call of all ranks; see :class:`Call` and :meth:`run_all`."""
        return self.run_all([Call(request, choice, arrays, count, counts, visible, eager, plans)])

    def run_all(self, calls: Sequence[Call]) -> int:
        """Run calls one after another on each rank: a rank that is done with one begins the next.

        Parameters
        ----------
        calls : sequence of Call
            At most :data:`MAX_CALLS`.

        Returns
        -------
        int
            How many times some rank was advanced.

        Raises
        ------
        MultiringError
            If a rank's interpreter reports anything but progress, or no rank makes any.
        """
        if len(calls) > MAX_CALLS:
            raise MultiringError(f"InProcess: got {len(calls)} calls, wanted at most {MAX_CALLS} at a time")
        records = [self._records(call) for call in calls]
        allowed: list[int] = []
        for rank in range(self.size):
            self._map_arrays(rank, calls)
            for call, record in zip(calls, records, strict=True):
                for address, n_bytes in (
                    *((m.ctypes.data, m.nbytes) for m in record[rank].memory),
                    *_ranges(*call.arrays[rank]),
                ):
                    self.home.register(address, max(n_bytes, 1))
                    allowed.append(address)
        try:
            return self._advance(calls, records, allowed)
        finally:
            for address in allowed:
                self.home.forget(address)

    def _records(self, call: Call) -> list[CallRecord]:
        room = self.eager_bytes if call.eager else -1
        plans = call.plans
        if plans is None:
            first = Plan(call.request, call.choice, 0, self.n_slots, self.nodes)
            plans = [first.seen_from(rank) for rank in range(self.size)]
        return [
            CallRecord(plan, context, call.count, call.counts, 300.0, self.home.span_address, eager_bytes=room)
            for plan, context in zip(plans, self.contexts, strict=True)
        ]

    def _map_arrays(self, rank: int, calls: Sequence[Call]) -> None:
        """Make every symmetric array of a rank a heap segment."""
        table, bases = self._tables[rank], self._bases[rank]
        table[:] = 0
        bases[:] = 0
        for call in calls:
            for array, visible in zip(call.arrays[rank], call.is_visible(rank), strict=True):
                if visible:
                    segment = int(table[0])
                    table[1 + 2 * segment : 3 + 2 * segment] = array.ctypes.data, array.nbytes
                    bases[segment] = array.ctypes.data
                    table[0] = segment + 1

    def _advance(self, calls: Sequence[Call], records: list[list[CallRecord]], allowed: list[int]) -> int:
        at = [0] * self.size
        started = [False] * self.size
        live = list(range(self.size)) if calls else []
        advances = waits = 0
        while live:
            rank = self._random.choice(live)
            record = records[at[rank]][rank]
            if started[rank]:
                code = self.home.advance(record.address)
            else:
                x, out = calls[at[rank]].arrays[rank]
                code = self.home.run(record.address, x.ctypes.data, out.ctypes.data)
                started[rank] = True
            advances += 1
            wire = record.wire
            moved = code == WAIT and wire is not None and self._wires[rank].progress(wire, record.words, record.plan)
            # Ranks are picked at random, so a long row of waits is no proof; one this long does not come up by chance.
            waits = waits + 1 if code == WAIT and not moved else 0
            if code == DONE:
                at[rank] += 1
                started[rank] = False
                if at[rank] == len(calls):
                    live.remove(rank)
            elif code == LOWER:
                record.enter_variant()
                for table in record.memory:
                    self.home.register(table.ctypes.data, table.nbytes)
                    allowed.append(table.ctypes.data)
            elif code != WAIT or waits > PATIENCE * self.size:
                what = "no progress" if code == WAIT else f"code {code}, wanted DONE"
                raise MultiringError(f"InProcess: rank {rank} in call {at[rank]} after {advances} advances: {what}")
        return advances


def _poison(control: NDArray[np.int64], layout: Layout) -> None:
    """Fill slots and payload areas with NaN, so that what is read before it is written shows in the result."""
    data = control.view(np.uint8)
    data[layout.slots : layout.mail] = 0xFF
    for line in range(2 * layout.n_ranks):
        start = CONTROL_HEADER_BYTES + line * layout.arrival_stride
        data[start + ARRIVAL_INLINE_BYTES : start + layout.arrival_stride] = 0xFF


def _forget(home: NativeHome | PythonHome, addresses: list[int]) -> None:
    for address in addresses:
        home.forget(address)


PATIENCE = 1000
"""Waits in a row, for each rank, that count as a deadlock."""


def _ranges(x: NDArray[Any], out: NDArray[Any]) -> list[tuple[int, int]]:
    """Return the memory of two arrays as (address, bytes): one range where they overlap."""
    low, high = sorted((a.ctypes.data, a.ctypes.data + a.nbytes) for a in (x, out))
    if high[0] < low[1] or high[0] == low[0]:
        return [(low[0], max(low[1], high[1]) - low[0])]
    return [(first, last - first) for first, last in (low, high)]
