"""Every algorithm of every collective, executed by the interpreter, against numpy."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiring.collectives.drivers.control import Layout
from multiring.collectives.drivers.in_process import InProcess, PythonHome
from multiring.collectives.plan import Plan
from multiring.collectives.request import Request
from multiring.collectives.schedules import COLLECTIVES, Choice, build
from multiring.errors import MultiringError
from multiring.kernels import memory
from multiring.kernels.dtypes import DTYPES
from multiring.kernels.loops import SCRATCH_BYTES, scratch
from multiring.kernels.operations import OPERATIONS, Reduction, premul_sum
from multiring.kernels.records import PROGRAM_EXIT_END, PROGRAM_WAITS, WAIT_POSITION
from tests.collectives.node_calls import Case, layout_of, native_home, preempted, run, schedules_of
from tests.kernels.span_harness import PAIRS

DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
MOST_RANKS = 17 if DEEP else 9

# What machine code is made for: each costs a second of compiling.
NATIVE: list[tuple[str, Reduction, str | None, str | None]] = [
    ("float32", OPERATIONS["sum"], None, None),
    ("float32", OPERATIONS["avg"], None, None),
    ("int64", OPERATIONS["sum"], None, None),
    ("uint8", OPERATIONS["bxor"], None, None),
    ("bfloat16", OPERATIONS["sum"], None, None),
    ("float32", OPERATIONS["sum"], "bfloat16", None),
    ("bfloat16", OPERATIONS["sum"], "float32", None),
    ("float32", premul_sum(-0.5), None, None),
    ("float32", premul_sum(3), "bfloat16", None),
]
PLAIN: list[tuple[str, Reduction, str | None, str | None]] = [
    *((name, OPERATIONS[op], None, None) for name, op in PAIRS),
    ("float32", OPERATIONS["sum"], "bfloat16", None),
    ("float32", OPERATIONS["avg"], "float16", None),
    ("float64", OPERATIONS["sum"], "float32", None),
    ("float64", OPERATIONS["sum"], "bfloat16", None),
    ("bfloat16", OPERATIONS["max"], "float32", None),
    ("float16", OPERATIONS["sum"], None, "float64"),
    ("bfloat16", OPERATIONS["avg"], None, "float64"),
    ("float32", OPERATIONS["sum"], None, "float64"),
    ("float32", premul_sum(0.25), None, None),
    ("float64", premul_sum(-3), "float16", None),
    ("bfloat16", premul_sum(2), None, None),
]


@st.composite
def counts(draw: Any, name: str, n_ranks: int, most: int) -> tuple[int, tuple[int, ...] | None]:
    """Draw a count: none, one, fewer than ranks, indivisible, many; or explicit counts with zeros."""
    few = st.sampled_from([0, 0, 1, 2, 3, 7, max(most // (4 * n_ranks), 1)])
    if name in ("all_gather", "reduce_scatter", "gather", "scatter") and draw(st.booleans()):
        chosen = tuple(draw(st.lists(few, min_size=n_ranks, max_size=n_ranks)))
        return sum(chosen), chosen
    if name == "all_to_all":
        if draw(st.booleans()):
            table = tuple(draw(st.lists(few, min_size=n_ranks**2, max_size=n_ranks**2)))
            return sum(table), table
        return n_ranks * draw(few), None
    return draw(st.one_of(st.sampled_from([0, 1, n_ranks - 1, n_ranks, 5 * n_ranks + 1]), st.integers(0, most))), None


@st.composite
def cases(draw: Any, table: Any, most_ranks: int, most: int, n_ranks: int | None = None) -> Case:
    n = n_ranks or draw(st.integers(1, most_ranks))
    name = draw(st.sampled_from(list(COLLECTIVES)))
    root = draw(st.integers(0, n - 1)) if COLLECTIVES[name].rooted else 0
    schedule = draw(st.sampled_from(schedules_of(name, n, root)))
    dtype, operation, wire, accumulate = draw(st.sampled_from(table))
    count, explicit = draw(counts(name, n, most))
    flags = st.sampled_from([True, True, False])
    return Case(
        schedule,
        DTYPES[dtype],
        count,
        explicit,
        operation=operation if COLLECTIVES[name].reduces else None,
        wire=DTYPES[wire] if wire else None,
        accumulate=DTYPES[accumulate] if accumulate and COLLECTIVES[name].reduces else None,
        in_place=draw(st.one_of(st.just((False,) * n), st.just((True,) * n), st.tuples(*[st.booleans()] * n))),
        visible=draw(
            st.one_of(
                st.tuples(st.booleans(), st.booleans()).map(lambda pair: (pair,) * n),
                st.tuples(*[st.tuples(flags, flags)] * n),
            )
        ),
        eager=draw(st.booleans()),
        data_seed=draw(st.integers(0, 2**16)),
        skip=draw(st.integers(0, 3)),
    )


@st.composite
def layouts(draw: Any, case: Case) -> Layout:
    piece = draw(st.sampled_from([1, 2, 5, 64, 1000]))
    return layout_of(case, piece, draw(st.sampled_from([24, 64, 4096])), draw(st.sampled_from([3, 4, 7])))


@given(st.data(), st.integers(0, 2**16))
def test_machine_code_agrees_with_numpy(data: st.DataObject, seed: int) -> None:
    case = data.draw(cases(NATIVE, MOST_RANKS, 700))
    run([case], native_home(), data.draw(layouts(case)), seed)


@given(st.data(), st.integers(0, 2**16))
def test_plain_python_agrees_with_numpy(data: st.DataObject, seed: int) -> None:
    """Every access lies in an array and on its alignment, and ranks stop anywhere."""
    case = data.draw(cases(PLAIN, 5, 24))
    with preempted(seed):
        run([case], PythonHome(), data.draw(layouts(case)), seed)


@pytest.mark.parametrize("scale", [-3.0, 0.5, -0.0])
def test_a_scale_may_be_negative(scale: float) -> None:
    """Its bits are then a negative word."""
    for n_ranks in (1, 3):
        schedule = build("direct", "all_reduce", n_ranks)
        case = Case(schedule, DTYPES["float32"], 9, operation=premul_sum(scale), eager=False)
        for home in (native_home(), PythonHome()):
            run([case], home, layout_of(case, 2, 64, 3), 0)


@pytest.mark.parametrize("name", list(COLLECTIVES))
@given(st.data(), st.integers(0, 2**16))
def test_every_algorithm_of_a_collective(name: str, data: st.DataObject, seed: int) -> None:
    n_ranks = data.draw(st.integers(1, MOST_RANKS))
    roots = range(n_ranks) if COLLECTIVES[name].rooted else (0,)
    layout_seed = data.draw(st.randoms(use_true_random=False))
    for schedule in schedules_of(name, n_ranks, layout_seed.choice(roots)):
        count = layout_seed.choice(
            [0, n_ranks * 3, n_ranks * 17, *([] if name == "all_to_all" else [1, n_ranks * 5 - 1])]
        )
        case = Case(
            schedule,
            DTYPES["float32"],
            count,
            operation=OPERATIONS["sum"] if COLLECTIVES[name].reduces else None,
            in_place=(layout_seed.random() < 0.5,) * n_ranks,
            visible=((layout_seed.random() < 0.5, layout_seed.random() < 0.5),) * n_ranks,
            eager=layout_seed.random() < 0.3,
        )
        run([case], native_home(), layout_of(case, layout_seed.choice([1, 4, 64]), 1024, 4), seed)


@given(st.data(), st.integers(0, 2**16), st.integers(1, 5))
def test_calls_in_a_row(data: st.DataObject, seed: int, n_ranks: int) -> None:
    """A rank may be a call ahead of another: what the next call writes must not disturb the last."""
    row = [data.draw(cases(NATIVE[:2], n_ranks, 60, n_ranks)) for _ in range(data.draw(st.integers(2, 6)))]
    slot_bytes = max(layout_of(case, 8, 64, 4).slot_bytes for case in row)
    run(row, native_home(), Layout(n_ranks, n_slots=4, slot_bytes=slot_bytes, eager_bytes=256), seed)


@given(st.data(), st.integers(0, 2**16), st.integers(2, 4))
def test_calls_in_a_row_in_plain_python(data: st.DataObject, seed: int, n_ranks: int) -> None:
    row = [data.draw(cases(PLAIN[:3], n_ranks, 9, n_ranks)) for _ in range(data.draw(st.integers(2, 4)))]
    slot_bytes = max(layout_of(case, 2, 64, 3).slot_bytes for case in row)
    with preempted(seed):
        run(row, PythonHome(), Layout(n_ranks, n_slots=3, slot_bytes=slot_bytes, eager_bytes=128), seed)


def test_a_node_forgets_its_memory() -> None:
    """Else a stale range would lie in the middle of a later array, and legal accesses be refused."""
    memory.register(scratch(), SCRATCH_BYTES)
    before = list(memory._buffers[0])
    node = InProcess(3, PythonHome(), layout=Layout(3, slot_bytes=256, eager_bytes=64))
    assert len(memory._buffers[0]) > len(before)
    del node
    assert memory._buffers[0] == before


def test_ranks_that_wait_for_ever_are_reported() -> None:
    """The root leaves when rank 1 has read its input; here it waits for what rank 1 never does."""
    schedule = build("chain:1", "broadcast", 2)
    request = Request("broadcast", DTYPES["int64"])
    choice = Choice(schedule, "chain", "a test asks for it", ())
    plans = [Plan(request, choice, rank, 4) for rank in range(2)]
    table = plans[0].program(3)
    assert table[PROGRAM_EXIT_END] == 1
    table[int(table[PROGRAM_WAITS]) + WAIT_POSITION] += 100
    arrays = [(np.zeros(3, np.int64), np.zeros(3, np.int64)) for _ in range(2)]
    with pytest.raises(MultiringError, match=r"rank 0 in call 0 after [0-9]+ advances: no progress"):
        InProcess(2, PythonHome()).run(request, choice, arrays, 3, eager=False, plans=plans)
