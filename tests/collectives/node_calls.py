"""Whole calls of all ranks in one thread: inputs, memory with canaries, and what numpy says must come out."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.drivers.control import Layout
from multiring.collectives.drivers.in_process import Call, InProcess, NativeHome, PythonHome
from multiring.collectives.plan import EAGER, Plan
from multiring.collectives.request import Request
from multiring.collectives.schedules import COLLECTIVES, Choice, Collective, Schedule, algorithms_for, build
from multiring.errors import ScheduleError
from multiring.kernels import interpreter
from multiring.kernels.dtypes import DTYPES, DType, numpy_dtype
from multiring.kernels.operations import Reduction
from multiring.kernels.records import CALL_PHASE, PHASE_RUN, WAIT
from multiring.kernels.waiting import get
from tests.kernels.span_harness import CANARY, expected

Array = NDArray[Any]
GUARD_BYTES = 64

native_home = cache(NativeHome)


@cache
def schedules_of(name: str, n_ranks: int, root: int) -> tuple[Schedule, ...]:
    """Return a schedule by every algorithm that serves a collective and can be built for this many ranks."""
    made = []
    for algorithm in algorithms_for(name):
        with contextlib.suppress(ScheduleError):
            made.append(build(algorithm, Collective(name, root), n_ranks))
    return tuple(made)


@contextlib.contextmanager
def preempted(seed: int) -> Iterator[None]:
    """Let ranks in plain Python stop before any instruction, not only where they must wait."""
    rng = random.Random(seed)
    names = interpreter.__dict__
    real = names["execute"]

    def execute(context: int, call: int, program: int, index: int, piece: int) -> int:
        if get(call, CALL_PHASE) == PHASE_RUN and rng.random() < 0.5:
            return WAIT
        return int(real(context, call, program, index, piece))

    names["execute"] = execute
    try:
        yield
    finally:
        names["execute"] = real


class Room:
    """Memory for an array between canaries, full of poison."""

    def __init__(self, count: int, dtype: DType, skip: int = 0) -> None:
        itemsize = dtype.itemsize
        n_bytes = count * itemsize
        self.memory = np.full(n_bytes + 3 * GUARD_BYTES + skip * itemsize, CANARY, dtype=np.uint8)
        self.start = GUARD_BYTES + -self.memory.ctypes.data % 64 + skip * itemsize
        self.stop = self.start + n_bytes
        self.memory[self.start : self.stop] = 0xFF
        self.array = self.memory[self.start : self.stop].view(numpy_dtype(dtype))

    def check(self) -> None:
        assert (self.memory[: self.start] == CANARY).all(), "bytes before the array were written"
        assert (self.memory[self.stop :] == CANARY).all(), "bytes after the array were written"


@dataclass
class Case:
    """One call of all ranks, but for where its arrays lie.

    Attributes
    ----------
    count, counts
        As the executor takes them.
    in_place : tuple of bool
        Of each rank; where the collective has no such form, the arrays lie apart.
    visible : tuple of (bool, bool)
        Whether the input, and the output, of each rank are symmetric.
    nodes : tuple of int
        The node of each rank; one for all if empty.
    """

    schedule: Schedule
    dtype: DType
    count: int
    counts: tuple[int, ...] | None = None
    operation: Reduction | None = None
    wire: DType | None = None
    accumulate: DType | None = None
    in_place: tuple[bool, ...] = ()
    visible: tuple[tuple[bool, bool], ...] = ()
    eager: bool = True
    data_seed: int = 0
    skip: int = 0
    nodes: tuple[int, ...] = ()
    request: Request = field(init=False)

    def __post_init__(self) -> None:
        collective = self.schedule.collective
        self.request = Request(
            collective.name,
            self.dtype,
            self.operation if collective.reduces else None,
            collective.root,
            self.wire,
            self.accumulate,
            schedule=self.schedule,
        )

    @property
    def n_ranks(self) -> int:
        return self.schedule.n_ranks

    @property
    def choice(self) -> Choice:
        return Choice(self.schedule, self.schedule.algorithm, "a test asks for it", ())

    def parts(self) -> list[int]:
        """Return the elements of each rank's part."""
        if self.counts is not None:
            return list(self.counts)
        return [len(part) for part in np.array_split(np.zeros(self.count, dtype=np.int8), self.n_ranks)]

    def matrix(self) -> Array:
        """Return the elements from each rank to each rank of an all_to_all."""
        n = self.n_ranks
        return np.array(self.counts if self.counts is not None else [self.count // n] * n * n).reshape(n, n)

    def n_places(self) -> int:
        return Plan(self.request, self.choice, 0, 4, self.nodes or None).lowered(EAGER).n_places

    def sizes(self) -> list[tuple[int, int]]:
        """Return the elements of each rank's input and output; -1 where it has none."""
        n, name, root = self.n_ranks, self.schedule.collective.name, self.schedule.collective.root
        if name == "all_to_all":
            matrix = self.matrix()
            return list(zip(matrix.sum(axis=1).tolist(), matrix.sum(axis=0).tolist(), strict=True))
        total = self.count
        whole, none = [total] * n, [-1] * n
        at_root = [total if rank == root else -1 for rank in range(n)]
        x, out = {
            "all_reduce": (whole, whole),
            "reduce": (whole, at_root),
            "broadcast": (at_root, whole),
            "reduce_scatter": (whole, self.parts()),
            "all_gather": (self.parts(), whole),
            "gather": (self.parts(), at_root),
            "scatter": (at_root, self.parts()),
            "barrier": (none, none),
        }[name]
        return list(zip(x, out, strict=True))


def values(rng: np.random.Generator, count: int, case: Case) -> Array:
    """Return inputs whose result is exact in any order; what a narrower wire drops is there to be dropped."""
    dtype, operation = case.dtype, case.operation
    if dtype.kind in ("int", "uint"):
        return rng.integers(0, 256, count * dtype.itemsize, dtype=np.uint8).view(numpy_dtype(dtype))
    if dtype.kind == "bool":
        return rng.random(count) < 0.5
    if dtype.kind == "complex":
        return (rng.integers(-9, 9, count) + 1j * rng.integers(-9, 9, count)).astype(numpy_dtype(dtype))
    if operation is not None and operation.name == "prod":
        return rng.choice([0.5, 1, 2, -1], count).astype(numpy_dtype(dtype))
    whole: Array = rng.integers(1, 5, count) * rng.choice([-1, 1], count).astype(np.float64)
    if case.wire is not None and case.wire.itemsize < dtype.itemsize:
        whole = whole + rng.choice([-1, 0, 1], count) * 2.0 ** (-14 if dtype.itemsize == 4 else -40)
        if case.wire.itemsize == 2:
            whole = np.round(whole * 2**14) / 2**14
    return whole.astype(numpy_dtype(dtype))


def through_wire(case: Case, x: Array) -> Array:
    return x.astype(numpy_dtype(case.wire)) if case.wire is not None else x


def combined(case: Case, inputs: list[Array]) -> Array:
    """Return the reduction of all ranks' inputs, as numpy computes it."""
    operation = case.operation
    assert operation is not None
    name = operation.name
    if name == "premul_sum":
        wide: Any = np.float64 if "float64" in (case.dtype.name, case.request.wire_type.name) else np.float32
        scale = wide(operation.scale)
        inputs = [(x.astype(wide) * scale).astype(x.dtype if case.wire is None else wide) for x in inputs]
        name = "sum"
    travels = [through_wire(case, x) for x in inputs]
    wide_name = case.accumulate.name if case.accumulate is not None else None
    result = travels[0] if len(travels) == 1 else expected(travels, name, wide_name)
    return result.astype(numpy_dtype(case.dtype))


def wanted_outputs(case: Case, inputs: list[Array | None]) -> list[Array | None]:
    """Return what each rank's output must hold."""
    n, name, root = case.n_ranks, case.schedule.collective.name, case.schedule.collective.root

    def back(x: Array) -> Array:
        return through_wire(case, x).astype(x.dtype)

    present = [x for x in inputs if x is not None]
    if name == "barrier":
        return [None] * n
    if name == "all_to_all":
        cuts = np.cumsum(case.matrix(), axis=1)[:, :-1]
        rows = [np.split(x, cut) for x, cut in zip(present, cuts, strict=True)]
        return [back(np.concatenate([row[rank] for row in rows])) for rank in range(n)]
    cuts = np.cumsum(case.parts())[:-1]
    if name in ("all_reduce", "reduce", "reduce_scatter"):
        whole = combined(case, present)
        if name == "reduce_scatter":
            return list(np.split(whole, cuts))
        return [whole if name == "all_reduce" or rank == root else None for rank in range(n)]
    if name in ("broadcast", "scatter"):
        sent = back(present[0])
        return [sent] * n if name == "broadcast" else list(np.split(sent, cuts))
    gathered = back(np.concatenate(present))
    return [gathered if name == "all_gather" or rank == root else None for rank in range(n)]


class Node:
    """The ranks of a case's call with their arrays, before and after."""

    def __init__(self, case: Case) -> None:
        self.case = case
        rng = np.random.default_rng(case.data_seed)
        self.rooms: list[Room] = []
        self.pairs: list[tuple[Array, Array]] = []
        self.inputs: list[Array | None] = []
        offsets = np.cumsum([0, *case.parts()]) if case.schedule.collective.name != "all_to_all" else None
        for rank, (n_x, n_out) in enumerate(case.sizes()):
            x, out = self._place(rank, n_x, n_out, offsets)
            given = values(rng, n_x, case) if n_x >= 0 else None
            if given is not None:
                x[:] = given
            self.pairs.append((x, out))
            self.inputs.append(given)
        self.wanted = wanted_outputs(case, self.inputs)

    def _room(self, count: int) -> Array:
        room = Room(count, self.case.dtype, self.case.skip)
        self.rooms.append(room)
        return room.array

    def _place(self, rank: int, n_x: int, n_out: int, offsets: Array | None) -> tuple[Array, Array]:
        in_place = bool(self.case.in_place) and self.case.in_place[rank]
        if not in_place or min(n_x, n_out) < 0 or offsets is None:
            return self._room(max(n_x, 0)), self._room(max(n_out, 0))
        larger = self._room(max(n_x, n_out))
        if n_x == n_out == len(larger) and self.case.schedule.collective.name in ("all_reduce", "reduce", "broadcast"):
            return larger, larger
        part = larger[int(offsets[rank]) : int(offsets[rank + 1])]
        return (larger, part) if self.case.schedule.collective.name in ("reduce_scatter", "scatter") else (part, larger)

    def call(self) -> Call:
        case = self.case
        return Call(
            case.request, case.choice, self.pairs, case.count, case.counts, case.visible or None, eager=case.eager
        )

    def check(self) -> None:
        """Compare every byte with what must be there."""
        case = self.case
        for room in self.rooms:
            room.check()
        for rank, ((x, out), wanted) in enumerate(zip(self.pairs, self.wanted, strict=True)):
            where = f"{case.schedule.algorithm} {case.schedule.collective} rank {rank} of {case.n_ranks}"
            if wanted is None:
                assert (out.view(np.uint8) == 0xFF).all() or np.shares_memory(x, out), f"{where}: wrote an output"
            else:
                np.testing.assert_array_equal(_bits(out), _bits(wanted.astype(out.dtype)), err_msg=where)
            given = self.inputs[rank]
            if given is not None and not _is_within(x, out):
                left = np.ones(len(x), dtype=bool)
                if _is_within(out, x):  # In place, a rank's own slice of the input becomes its output.
                    first = (out.ctypes.data - x.ctypes.data) // x.itemsize
                    left[first : first + len(out)] = False
                np.testing.assert_array_equal(_bits(x[left]), _bits(given[left]), err_msg=f"{where}: input")


def _is_within(inner: Array, outer: Array) -> bool:
    return bool(len(inner)) and np.shares_memory(inner, outer) and inner.nbytes <= outer.nbytes


def _bits(array: Array) -> Array:
    """Compare as bytes: -0.0 and 0.0 differ, and so do elements of bool that are neither 0 nor 1."""
    return np.ascontiguousarray(array).view(np.uint8).reshape(-1, array.itemsize)


def layout_of(case: Case, piece: int, eager_bytes: int, n_slots: int) -> Layout:
    """Return a layout in which a slice has about ``piece`` elements."""
    slot_bytes = max(case.n_places(), 1) * case.request.wire_type.itemsize * piece
    return Layout(case.n_ranks, n_slots=n_slots, slot_bytes=-(-slot_bytes // 64) * 64, eager_bytes=eager_bytes)


def run(cases: list[Case], home: NativeHome | PythonHome, layout: Layout, seed: int) -> None:
    """Run calls one after another, and compare everything with numpy."""
    nodes = [Node(case) for case in cases]
    ranks = InProcess(cases[0].n_ranks, home, layout=layout, seed=seed, nodes=cases[0].nodes or None)
    ranks.run_all([node.call() for node in nodes])
    assert ranks.ether.is_empty, "a message was left over"
    for node in nodes:
        node.check()


def dtype(name: str) -> DType:
    return DTYPES[name]


__all__ = [
    "COLLECTIVES",
    "Case",
    "Node",
    "Room",
    "dtype",
    "layout_of",
    "native_home",
    "preempted",
    "run",
    "schedules_of",
]
