"""Plans: tables that do not depend on the count, what tells two plans apart, and what a slot can hold."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiring.collectives.drivers.control import Layout
from multiring.collectives.drivers.in_process import InProcess, PythonHome
from multiring.collectives.invocation import CallRecord
from multiring.collectives.lowering import lower
from multiring.collectives.plan import EAGER, Plan, encode
from multiring.collectives.request import Request
from multiring.collectives.schedules import Choice, Collective, Op, Schedule, Step, Transfer, build
from multiring.errors import ScheduleError
from multiring.kernels.dtypes import DTYPES
from multiring.kernels.operations import OPERATIONS, Reduction, premul_sum, reduction
from multiring.kernels.records import PROGRAM_HOISTED, PROGRAM_N_PLACES, PROGRAM_N_STEPS, PROGRAM_STRIDE
from tests.collectives.program_model import read_program
from tests.collectives.random_schedules import random_schedule

SUM = OPERATIONS["sum"]


def plan_of(
    schedule: Schedule, dtype: str = "float32", operation: Reduction | None = SUM, wire: str | None = None
) -> Plan:
    request = Request(
        schedule.collective.name,
        DTYPES[dtype],
        operation if schedule.collective.reduces else None,
        schedule.collective.root,
        DTYPES[wire] if wire else None,
    )
    return Plan(request, Choice(schedule, schedule.algorithm, "a test asks for it", ()), 0, 4)


@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(0, 4))
def test_words_say_what_was_lowered(seed: int, n_ranks: int, flags: int) -> None:
    schedule = random_schedule(seed, n_ranks)
    lowered = lower(schedule, x_visible=bool(flags & 1), out_visible=bool(flags & 2), eager=flags == 4, n_slots=4)
    stride = max(map(len, lowered.programs))
    for rank, wanted in enumerate(lowered.programs):
        program = read_program(encode(lowered, rank, schedule.n_steps))
        assert (program.stride, program.n_places, program.hoisted) == (
            stride,
            lowered.n_places,
            lowered.n_hoisted[rank],
        )
        assert program.max_skew == lowered.max_skew
        for row, instruction in zip(program.rows, wanted, strict=True):
            assert row.kind == instruction.kind
            assert row.chunk == instruction.chunk
            assert row.step == instruction.step
            assert row.posts is instruction.awaited
            assert row.skew == instruction.skew
            assert row.sources == tuple((o.space, o.rank, o.place) for o in instruction.sources)
            assert row.destinations == tuple((o.space, o.rank, o.place) for o in instruction.destinations)
        for got, waits in [(program.exits, lowered.exits[rank])] + [
            (row.waits, i.waits) for row, i in zip(program.rows, wanted, strict=True)
        ]:
            for position, wait in zip(got, waits, strict=True):
                awaited = lowered.programs[wait.rank][wait.index]
                skew = awaited.skew
                assert position == (wait.rank, skew * stride + wait.index + 1, wait.lag)
                assert awaited.awaited is True


def test_programs_do_not_depend_on_the_count() -> None:
    plan = plan_of(build("ring", "all_reduce", 3))
    home = PythonHome()
    context = InProcess(3, home, layout=Layout(3, slot_bytes=1024)).contexts[0]
    small, large = (CallRecord(plan, context, count, None, 1.0, home.span_address) for count in (0, 10**12))
    assert not large.eager
    assert small.eager
    for variant in range(4):
        assert plan.program(variant) is plan.program(variant)
        assert "1000000000000" not in plan.program(variant).tolist().__repr__()
    assert sum(m.nbytes for m in large.memory) < 4096


def test_plans_of_other_ranks_share_what_was_lowered() -> None:
    plan = plan_of(build("ring", "all_reduce", 3))
    other = plan.seen_from(2)
    assert other.lowered(3) is plan.lowered(3)
    assert other.rank == 2
    assert not np.array_equal(other.program(3), plan.program(3))
    assert other.hash(None) == plan.hash(None)


def test_what_tells_two_plans_apart() -> None:
    schedule = build("ring", "all_reduce", 4)
    plans = [
        plan_of(schedule),
        plan_of(build("ring", "all_reduce", 4, order=[0, 2, 1, 3])),
        plan_of(build("chain", "all_reduce", 4)),
        plan_of(schedule, operation=premul_sum(2.0)),
        plan_of(schedule, operation=premul_sum(3.0)),
        plan_of(schedule, operation=reduction(lambda a, b: a + b)),
        plan_of(schedule, operation=reduction(lambda a, b: a - b)),
        plan_of(schedule, operation=reduction(lambda a, b: a + b + 1)),
        plan_of(Schedule(schedule.collective, 4, 4, (*schedule.steps, Step.of([])), "ring")),
    ]
    hashes = [plan.hash(None) for plan in plans]
    assert len(set(hashes[:-1])) == len(hashes) - 1
    assert all(0 <= value < 1 << 24 for value in hashes)
    gather = plan_of(build("direct", "all_gather", 2))
    assert len({gather.hash(counts) for counts in [None, (1, 2), (2, 1), (3, 0)]}) == 4


def test_the_same_steps_cut_otherwise_are_another_plan() -> None:
    """A schedule of 2 chunks and one of 4 may hold the same transfers; they move other bytes."""
    step = Step.of([Transfer(0, 1, 0, Op.COPY), Transfer(0, 1, 1, Op.COPY)])
    two = Schedule(Collective("broadcast"), 2, 2, (step,))
    four = Schedule(Collective("broadcast"), 2, 4, (step,))
    assert plan_of(two).hash(None) != plan_of(four).hash(None)


def test_transfers_in_one_step_or_in_two_are_two_plans() -> None:
    first, second = Transfer(0, 1, 0, Op.COPY), Transfer(0, 2, 0, Op.COPY)
    together = Schedule(Collective("broadcast"), 3, 1, (Step.of([first, second]),))
    apart = Schedule(Collective("broadcast"), 3, 1, (Step.of([first]), Step.of([second])))
    assert plan_of(together).hash(None) != plan_of(apart).hash(None)


@pytest.mark.parametrize(
    ("longest", "room_bytes", "fits"), [(0, 0, True), (1, 8, True), (2, 8, True), (3, 8, False), (3, 16, True)]
)
def test_eager_needs_room_for_whole_words(longest: int, room_bytes: int, fits: bool) -> None:
    plan = plan_of(build("one_shot", "all_reduce", 3))
    assert plan.fits_eager(longest, room_bytes) is fits


def test_nothing_is_lowered_to_find_out_that_a_long_call_is_not_eager() -> None:
    plan = plan_of(build("direct", "all_reduce", 3))
    assert not plan.fits_eager(10**6, 8192)
    assert not plan._lowered


def test_a_call_that_moves_nothing_is_eager_at_any_size() -> None:
    assert plan_of(build("direct", "all_reduce", 1)).fits_eager(10**9, 0)


def test_more_chunks_than_a_slot_has_room_for_are_refused() -> None:
    schedule = build("chain:40", "broadcast", 3)
    plan = plan_of(schedule, "complex128")
    assert plan.lowered(EAGER).n_places == 40
    plan.check_slots(640)
    with pytest.raises(
        ScheduleError,
        match=r"chain broadcast: 40 chunks of at least 16 bytes are under way at once on one rank, a slot has"
        r" 639 bytes; use fewer chunks",
    ):
        plan.check_slots(639)
    home = PythonHome()
    context = InProcess(3, home, layout=Layout(3, slot_bytes=512)).contexts[0]
    with pytest.raises(ScheduleError, match="use fewer chunks"):
        CallRecord(plan, context, 100, None, 1.0, home.span_address)


def test_a_wide_layout_needs_no_lowering_to_hold_the_chunks() -> None:
    plan = plan_of(build("chain:40", "broadcast", 3))
    plan.check_slots(128 << 10)
    assert not plan._lowered


def test_header_words() -> None:
    plan = plan_of(build("one_shot", "all_reduce", 3))
    words = plan.program(EAGER)
    assert words[PROGRAM_HOISTED] == 1
    assert words[PROGRAM_N_PLACES] == 1
    assert words[PROGRAM_N_STEPS] == 1
    assert words[PROGRAM_STRIDE] == 2
    assert words.dtype == np.int64


def test_a_wire_or_a_scale_sends_everything_through_slots() -> None:
    schedule = build("direct", "all_reduce", 2)
    assert not plan_of(schedule).through_slots
    assert not plan_of(schedule, wire="float32").through_slots
    assert plan_of(schedule, wire="bfloat16").through_slots
    assert plan_of(schedule, operation=premul_sum(1.0)).through_slots


def test_an_instruction_for_messages() -> None:
    plan = plan_of(build("direct", "all_reduce", 2))
    assert plan.instruction(3, 1, 0) is plan.lowered(3).programs[1][0]
    assert plan.instruction(3, 1, 99) is None
    assert plan.instruction(3, 1, -1) is None
    assert dataclasses.is_dataclass(plan.instruction(3, 0, 0))
