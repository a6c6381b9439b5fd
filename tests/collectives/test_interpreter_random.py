"""Schedules that nobody would write, executed: the analysis of hazards holds for any right schedule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiring.collectives.drivers.in_process import PythonHome
from multiring.collectives.schedules import Schedule, verify
from multiring.kernels.dtypes import DTYPES
from multiring.kernels.operations import OPERATIONS
from tests.collectives.node_calls import Case, layout_of, native_home, preempted, run
from tests.collectives.random_schedules import random_box, random_schedule, recursive_doubling, rotation

INTEGERS = st.integers(0, 2**32)
FLAGS = st.tuples(st.booleans(), st.booleans())


def case_of(schedule: Schedule, count: int, visible: tuple[bool, bool], how: int) -> Case:
    """Make a call of a schedule; the low bits of ``how`` say how."""
    n = schedule.n_ranks
    parts = schedule.collective.n_parts(n)
    name = schedule.collective.name
    return Case(
        schedule,
        DTYPES["float32"],
        n * count if name == "all_to_all" else parts * count + how % 3,
        operation=OPERATIONS["avg" if how & 16 else "sum"] if schedule.collective.reduces else None,
        wire=DTYPES["bfloat16"] if how & 8 and not how & 16 else None,
        in_place=tuple(bool(how >> (5 + rank) & 1) for rank in range(n)),
        visible=(visible,) * n,
        eager=not how & 3,
        data_seed=how,
    )


@given(INTEGERS, st.integers(2, 9), st.integers(0, 40), FLAGS, st.sampled_from([1, 3, 64]), st.integers(3, 6))
def test_random_schedules(seed: int, n_ranks: int, count: int, visible: tuple[bool, bool], piece: int, k: int) -> None:
    schedule = random_schedule(seed, n_ranks)
    verify(schedule)
    case = case_of(schedule, count, visible, seed)
    run([case], native_home(), layout_of(case, piece, 4096, k), seed)


@given(INTEGERS, st.integers(2, 4), st.integers(0, 4), FLAGS, st.sampled_from([1, 2]))
def test_random_schedules_in_plain_python(
    seed: int, n_ranks: int, count: int, visible: tuple[bool, bool], piece: int
) -> None:
    case = case_of(random_schedule(seed, n_ranks), count, visible, seed)
    with preempted(seed):
        run([case], PythonHome(), layout_of(case, piece, 128, 3), seed)


@given(INTEGERS, st.integers(1, 4), st.integers(1, 4), st.integers(0, 30), FLAGS, st.sampled_from([1, 4]))
def test_boxes_of_ranks(seed: int, rows: int, columns: int, count: int, visible: tuple[bool, bool], piece: int) -> None:
    schedule = random_box(seed, rows, columns)
    verify(schedule)
    case = case_of(schedule, count, visible, seed)
    run([case], native_home(), layout_of(case, piece, 1024, 4), seed)


@pytest.mark.parametrize("visible", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("power", [1, 2, 3, 4])
def test_partners_exchange_all_they_have(power: int, in_place: bool, visible: tuple[bool, bool]) -> None:
    schedule = recursive_doubling(power)
    case = case_of(schedule, 100, visible, 3 + (0xFFFFE0 if in_place else 0))
    for seed in range(5):
        run([case], native_home(), layout_of(case, 4, 64, 3), seed)


@pytest.mark.parametrize("visible", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("n_steps", [1, 2, 5])
def test_a_copy_lands_where_the_old_value_is_being_read(
    n_steps: int, in_place: bool, visible: tuple[bool, bool]
) -> None:
    schedule = rotation(4, n_steps)
    verify(schedule)
    case = case_of(schedule, 100, visible, 3 + (0xFFFFE0 if in_place else 0))
    for seed in range(5):
        run([case], native_home(), layout_of(case, 4, 64, 3), seed)
