"""Random calls for the stress program: what every rank calls, and what it must get.

All ranks draw the same calls from the same seed. Values are small integers in every element type, so that any order of
adding gives one exact answer, computed here with numpy alone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.drivers.control import Layout
from multiring.collectives.schedules.algorithms import algorithms_for, build
from multiring.collectives.schedules.collective import Collective
from multiring.collectives.schedules.ordering import is_rank_ordered
from multiring.errors import MultiringError
from multiring.kernels.dtypes import DTYPES, numpy_dtype
from multiring.kernels.operations import OPERATIONS, Reduction, premul_sum, reduction

MAX_BYTES = 192 << 10
PERIOD = 4096
REDUCING = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_v", "all_reduce_many")
MOVING = ("broadcast", "all_gather", "all_gather_v", "all_to_all", "all_to_all_v", "gather", "scatter")
KINDS = (*REDUCING, *MOVING, "send_recv", "group", "barrier")
PAIRS = (
    ("float32", "sum"), ("float32", "avg"), ("float32", "max"), ("float32", "premul_sum"), ("float64", "sum"),
    ("bfloat16", "sum"), ("bfloat16", "avg"), ("float16", "sum"), ("int32", "sum"), ("int32", "min"),
    ("int64", "prod"), ("int64", "custom"), ("int8", "bxor"), ("uint8", "bor"), ("complex64", "sum"), ("bool", "max"),
)  # fmt: skip
"""(element type, reduction): every width and kind, few enough to compile in a test."""


def left_fold(a: Any, b: Any) -> Any:
    """Neither commutative nor associative: only a fold in ascending rank gives the right answer."""
    return a * 3 + b


OPERATION: dict[str, Reduction] = {**OPERATIONS, "premul_sum": premul_sum(0.5), "custom": reduction(left_fold)}


@dataclass(frozen=True)
class Template:
    """What decides a call's plan."""

    kind: str
    dtype: str
    op: str
    root: int
    algorithm: str | None
    order: str | None
    wire: str | None


@dataclass(frozen=True)
class Call:
    """One call of all ranks.

    Attributes
    ----------
    count : int
        Elements of the whole vector; of one array for the rest.
    counts : tuple of int
        Of the v-forms, and of the arrays of all_reduce_many.
    shift : int
        How far send_recv and group go around the ring.
    places : tuple of (bool, bool, bool, bool)
        For each rank: whether its input, and its output, is symmetric; in place; newly allocated.
    """

    index: int
    template: Template
    communicator: int
    count: int
    counts: tuple[int, ...]
    shift: int
    places: tuple[tuple[bool, bool, bool, bool], ...]


def base_collective(kind: str) -> str:
    """Return the collective that a kind of call runs."""
    return {"all_reduce_many": "all_reduce"}.get(kind, kind.removesuffix("_v"))


@cache
def algorithms(kind: str, n_ranks: int, root: int, ordered: bool) -> tuple[str, ...]:
    """Return the algorithms that can be built for a kind of call."""
    found = []
    collective = Collective(base_collective(kind), root)
    for name in algorithms_for(collective.name):
        try:
            schedule = build(name, collective, n_ranks)
        except MultiringError:
            continue  # Such as a torus of five ranks.
        if not ordered or is_rank_ordered(schedule):
            found.append(name)
    return tuple(found)


def draw_template(source: random.Random, n_ranks: int, kinds: tuple[str, ...]) -> Template:
    """Draw what decides a plan."""
    kind = source.choice(kinds)
    dtype, op = source.choice(PAIRS)
    if kind not in REDUCING:
        op = ""
    order = "rank" if op and (op == "custom" or source.random() < 0.2) else None
    rooted = kind in ("reduce", "broadcast", "gather", "scatter")
    root = source.randrange(n_ranks) if rooted else 0
    names = algorithms(kind, n_ranks, root, order is not None) if kind in REDUCING + MOVING else ()
    algorithm = source.choice(names) if names and source.random() < 0.6 else None
    wire = "bfloat16" if dtype == "float32" and op in ("sum", "") and names and source.random() < 0.2 else None
    return Template(kind, dtype, op, root, algorithm, order, wire)


def draw_count(source: random.Random, itemsize: int, n_ranks: int, layout: Layout) -> int:
    """Draw a number of elements, most often within one of where something changes."""
    draw = source.random()
    largest = MAX_BYTES // itemsize
    if draw < 0.05:
        return source.randrange(4)
    if draw < 0.07:
        return source.randrange(largest)
    if draw < 0.3:
        return source.randrange(min(16 << 10, MAX_BYTES) // itemsize)
    threshold = source.choice((24, layout.eager_bytes, layout.slot_bytes, layout.box_bytes - 64, 8192))
    parts = source.randint(1, 2 * n_ranks)
    whole = threshold // (itemsize * parts) * source.randint(1, 4) * source.choice((1, n_ranks, parts))
    return min(max(whole + source.choice((-1, 0, 0, 1)), 0), largest)


def draw_call(source: random.Random, index: int, template: Template, layouts: list[Layout], symmetric: float) -> Call:
    """Draw one call of a template."""
    communicator = source.randrange(len(layouts))
    layout = layouts[communicator]
    n_ranks = layout.n_ranks
    kind = template.kind
    count = draw_count(source, DTYPES[template.dtype].itemsize, n_ranks, layout)
    counts: tuple[int, ...] = ()
    if kind == "all_to_all":
        count -= count % n_ranks
    elif kind.endswith("_v"):
        n_parts = n_ranks * n_ranks if kind == "all_to_all_v" else n_ranks
        cuts = sorted(source.choice((0, count, source.randint(0, count))) for _ in range(n_parts - 1))
        counts = tuple(b - a for a, b in zip([0, *cuts], [*cuts, count], strict=True))
    elif kind == "all_reduce_many":
        counts = tuple(source.randint(0, count // 3) for _ in range(3))
        count = sum(counts)
    elif kind == "barrier":
        count = 0
    if source.random() < 0.5:
        alike = source.random() < symmetric, source.random() < symmetric
        chosen = [alike] * n_ranks
    else:
        chosen = [(source.random() < symmetric, source.random() < symmetric) for _ in range(n_ranks)]
    places = tuple((x, out, source.random() < 0.4, source.random() < 0.06) for x, out in chosen)
    return Call(index, template, communicator, count, counts, source.randint(1, n_ranks - 1), places)


# --- values ----------------------------------------------------------------------------------------------------------


@cache
def wide_table(dtype: str, op: str) -> NDArray[Any]:
    """Return the values that all inputs are slices of, in a type that is exact for all sums."""
    generator = np.random.default_rng(20170808)
    n = MAX_BYTES // DTYPES[dtype].itemsize + PERIOD + 8
    if dtype == "bool":
        return generator.integers(0, 2, n).astype(np.int64)
    if op == "prod":
        return np.array([1, 2, 1, -1])[generator.integers(0, 4, n)]
    low = 0 if dtype.startswith("u") else -8
    values: NDArray[Any] = generator.integers(low, low + 17, n)
    if dtype.startswith("complex"):
        values = values + 1j * generator.integers(-8, 9, n)
    elif DTYPES[dtype].kind == "float":
        values = values.astype(np.float64)
    return values


@cache
def table(dtype: str, op: str) -> NDArray[Any]:
    """Return :func:`wide_table` in the element type."""
    values: NDArray[Any] = wide_table(dtype, op).astype(numpy_dtype(DTYPES[dtype]))
    return values


def start(index: int, rank: int) -> int:
    """Return where in the table a rank's input of a call begins."""
    return (index * 131 + rank * 977) % PERIOD


def input_of(call: Call, rank: int, count: int) -> NDArray[Any]:
    """Return a rank's input."""
    first = start(call.index, rank)
    return table(call.template.dtype, call.template.op)[first : first + count]


def reduced(call: Call, n_ranks: int) -> NDArray[Any]:
    """Return the reduction of all ranks' inputs."""
    dtype, op = call.template.dtype, call.template.op
    wide = wide_table(dtype, op)
    parts = [wide[first : first + call.count] for first in (start(call.index, r) for r in range(n_ranks))]
    target = numpy_dtype(DTYPES[dtype])
    if op == "custom":
        total = parts[0].copy()
        for part in parts[1:]:
            total = total * 3 + part
    elif op in ("sum", "avg", "premul_sum"):
        total = parts[0].copy()
        for part in parts[1:]:
            total += part
        if op == "premul_sum":
            total = total * 0.5
        elif op == "avg":
            if dtype == "float64":
                total = total / n_ranks
            else:
                total = total.astype(np.float32) / np.float32(n_ranks)
    else:
        function = {
            "prod": np.multiply, "max": np.maximum, "min": np.minimum,
            "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
        }[op]  # fmt: skip
        total = parts[0].copy()
        for part in parts[1:]:
            total = function(total, part)
    result: NDArray[Any] = total.astype(target)
    return result


def shares(count: int, n_ranks: int) -> list[int]:
    """Return the elements of each rank's share, as ``numpy.array_split`` cuts."""
    return [count // n_ranks + (r < count % n_ranks) for r in range(n_ranks)]
