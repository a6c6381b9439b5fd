"""Ranks on several nodes: whatever the layout, schedule and variant of each node, the result is numpy's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiring.collectives.drivers.in_process import PythonHome
from multiring.kernels.dtypes import DTYPES
from multiring.kernels.operations import OPERATIONS
from tests.collectives.node_calls import COLLECTIVES, Case, layout_of, native_home, preempted, run, schedules_of
from tests.collectives.random_schedules import random_box, random_schedule, recursive_doubling, rotation

INTEGERS = st.integers(0, 2**32)
EVERY = [name for name in COLLECTIVES if name != "barrier"]


@st.composite
def layouts(draw: st.DrawFn, n_ranks: int) -> tuple[int, ...]:
    """Draw the node of each rank: any grouping, nodes numbered by their first ranks."""
    wished = draw(st.lists(st.integers(0, n_ranks - 1), min_size=n_ranks, max_size=n_ranks))
    number: dict[int, int] = {}
    return tuple(number.setdefault(node, len(number)) for node in wished)


@st.composite
def cases(draw: st.DrawFn, largest: int = 6) -> Case:
    """Draw a call of any collective by any algorithm, with ranks anywhere."""
    n = draw(st.integers(2, largest))
    name = draw(st.sampled_from(EVERY))
    pattern = COLLECTIVES[name]
    root = draw(st.integers(0, n - 1)) if pattern.rooted else 0
    schedule = draw(st.sampled_from(schedules_of(name, n, root)))
    dtype = DTYPES[draw(st.sampled_from(["float32", "bfloat16", "float16", "int32", "float64", "uint8"]))]
    wire = DTYPES["bfloat16"] if dtype.name == "float32" and draw(st.booleans()) else None
    count = draw(st.integers(0, 60))
    return Case(
        schedule,
        dtype,
        n * count if name == "all_to_all" else count,
        operation=OPERATIONS[draw(st.sampled_from(["sum", "max"]))] if pattern.reduces else None,
        wire=wire,
        in_place=tuple(draw(st.lists(st.booleans(), min_size=n, max_size=n))),
        visible=tuple(draw(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=n, max_size=n))),
        eager=draw(st.booleans()),
        data_seed=draw(INTEGERS),
        nodes=draw(layouts(n)),
    )


@given(st.data(), INTEGERS, st.sampled_from([1, 3, 64]), st.integers(3, 8))
def test_every_collective_by_every_algorithm(data: st.DataObject, seed: int, piece: int, n_slots: int) -> None:
    case = data.draw(cases())
    again = replace(case, data_seed=seed)
    run([case, again, case], native_home(), layout_of(case, piece, 256, n_slots), seed)


@given(st.data(), INTEGERS, st.sampled_from([1, 2]))
def test_in_plain_python_with_ranks_stopped_anywhere(data: st.DataObject, seed: int, piece: int) -> None:
    case = data.draw(cases(largest=4))
    case = replace(case, count=case.count // 8 * (case.n_ranks if case.request.collective == "all_to_all" else 1))
    with preempted(seed):
        run([case, case], PythonHome(), layout_of(case, piece, 128, 4), seed)


@given(st.data(), INTEGERS, st.integers(2, 8), st.integers(0, 40), st.sampled_from([1, 3, 64]), st.integers(3, 6))
def test_random_schedules(data: st.DataObject, seed: int, n_ranks: int, count: int, piece: int, n_slots: int) -> None:
    schedule = random_schedule(seed, n_ranks)
    visible = tuple(data.draw(st.tuples(st.booleans(), st.booleans())) for _ in range(n_ranks))
    case = Case(
        schedule,
        DTYPES["float32"],
        n_ranks * count if schedule.collective.name == "all_to_all" else count,
        operation=OPERATIONS["sum"] if schedule.collective.reduces else None,
        wire=DTYPES["bfloat16"] if seed & 8 else None,
        in_place=tuple(bool(seed >> (5 + rank) & 1) for rank in range(n_ranks)),
        visible=visible,
        eager=not seed & 3,
        data_seed=seed,
        nodes=data.draw(layouts(n_ranks)),
    )
    run([case], native_home(), layout_of(case, piece, 4096, n_slots), seed)


@given(st.data(), INTEGERS, st.integers(1, 4), st.integers(1, 4), st.integers(0, 60))
def test_boxes(data: st.DataObject, seed: int, rows: int, columns: int, count: int) -> None:
    schedule = random_box(seed, rows, columns)
    n = rows * columns
    case = Case(
        schedule,
        DTYPES["float32"],
        schedule.collective.n_parts(n) * count,
        operation=OPERATIONS["sum"] if schedule.collective.reduces else None,
        visible=((bool(seed & 1), bool(seed & 2)),) * n,
        data_seed=seed,
        nodes=tuple(rank // columns for rank in range(n)),
    )
    run([case], native_home(), layout_of(case, 4, 64, 8), seed)


@pytest.mark.parametrize("nodes", [(0, 0, 1, 1), (0, 1, 0, 1), (0, 0, 0, 1), (0, 1, 2, 3)])
@pytest.mark.parametrize("name", EVERY)
def test_calls_of_no_elements_still_end(name: str, nodes: tuple[int, ...]) -> None:
    for schedule in schedules_of(name, 4, 0):
        operation = OPERATIONS["sum"] if COLLECTIVES[name].reduces else None
        case = Case(schedule, DTYPES["float32"], 0, operation=operation, nodes=nodes, data_seed=1)
        run([case, case], native_home(), layout_of(case, 4, 64, 4), 7)


@pytest.mark.parametrize("visible", [(False, False), (True, True)])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("nodes", [tuple(range(8)), (0, 0, 1, 1, 2, 2, 3, 3), (0, 1, 0, 1, 0, 1, 0, 1)])
def test_what_is_sent_is_overwritten_soon_after(
    nodes: tuple[int, ...], in_place: bool, visible: tuple[bool, bool]
) -> None:
    for schedule in (recursive_doubling(3), rotation(8, 1), rotation(8, 5), *schedules_of("all_reduce", 8, 0)[:2]):
        case = Case(
            schedule,
            DTYPES["float32"],
            100 * schedule.collective.n_parts(8),
            operation=OPERATIONS["sum"] if schedule.collective.reduces else None,
            in_place=(in_place,) * 8,
            visible=(visible,) * 8,
            eager=False,
            data_seed=3,
            nodes=nodes,
        )
        for seed in range(8):
            run([case], native_home(), layout_of(case, 4, 64, 8), seed)
