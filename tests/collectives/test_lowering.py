"""What lowering makes of known schedules: how many instructions, sources, destinations and places."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiring.collectives.lowering import lower
from multiring.collectives.program import Instruction, Lowered, Operand
from multiring.collectives.schedules import (
    COLLECTIVES,
    Collective,
    Op,
    Schedule,
    Step,
    Transfer,
    algorithms_for,
    build,
    verify,
)
from multiring.kernels.records import (
    KIND_CAST_IN,
    KIND_CAST_OUT,
    KIND_COPY,
    KIND_FORWARD,
    KIND_REDUCE,
    KIND_REDUCE_FINAL,
    SPACE_OUT,
    SPACE_SLOT,
    SPACE_X,
)
from tests.collectives.random_schedules import random_schedule

N = 5


def kinds(program: list[Instruction]) -> Counter[int]:
    return Counter(instruction.kind for instruction in program)


def assert_places_are_read(lowered: Lowered) -> None:
    """Every place in a slot is written, and read, and they are numbered without gaps."""
    n_places = 0
    for rank in range(len(lowered.programs)):
        instructions = [i for program in lowered.programs for i in program]
        read = {o.place for i in instructions for o in i.sources if (o.space, o.rank) == (SPACE_SLOT, rank)}
        written = {o.place for i in instructions for o in i.destinations if (o.space, o.rank) == (SPACE_SLOT, rank)}
        assert read == written == set(range(len(read)))
        n_places = max(n_places, len(read))
    assert lowered.n_places == n_places


def test_a_registered_direct_all_reduce_is_one_instruction_for_each_rank() -> None:
    lowered = lower(build("direct", "all_reduce", N), x_visible=True, out_visible=True)
    for rank, program in enumerate(lowered.programs):
        (instruction,) = program
        assert instruction.kind == KIND_REDUCE_FINAL
        assert instruction.sources == [Operand(SPACE_X, peer, rank) for peer in range(N)]
        assert sorted(instruction.destinations, key=lambda o: o.rank) == [
            Operand(SPACE_OUT, peer, rank) for peer in range(N)
        ]
        assert not instruction.waits
        assert {wait.rank for wait in lowered.exits[rank]} == set(range(N)) - {rank}
    assert lowered.n_places == 0
    assert lowered.max_skew == 0


def test_a_staged_direct_all_reduce_copies_in_reduces_once_and_copies_out() -> None:
    lowered = lower(build("direct", "all_reduce", N))
    for rank, program in enumerate(lowered.programs):
        assert kinds(program) == {KIND_COPY: 2 * (N - 1), KIND_REDUCE_FINAL: 1}
        reduce = next(i for i in program if i.kind == KIND_REDUCE_FINAL)
        assert [(o.space, o.rank) for o in reduce.sources] == [
            (SPACE_X if peer == rank else SPACE_SLOT, peer) for peer in range(N)
        ]
        assert [(o.space, o.rank) for o in reduce.destinations] == [(SPACE_SLOT, rank), (SPACE_OUT, rank)]
        assert not lowered.exits[rank]
    assert lowered.n_places == N  # N - 1 chunks for the others, and the sum.


def test_a_staged_one_shot_reads_its_own_input_where_it_lies() -> None:
    lowered = lower(build("one_shot", "all_reduce", N))
    for program in lowered.programs:
        assert kinds(program) == {KIND_COPY: 1, KIND_REDUCE_FINAL: 1}
    assert lowered.n_places == 1


def test_a_registered_ring_stores_partial_sums_in_outputs() -> None:
    """A reduce_scatter has no room in its outputs for partial sums; an all_reduce has."""
    assert lower(build("ring", "all_reduce", N), x_visible=True, out_visible=True).n_places == 0
    assert lower(build("ring", "reduce_scatter", N), x_visible=True, out_visible=True).n_places == N - 2


def test_a_wire_type_casts_in_and_out_once() -> None:
    lowered = lower(build("direct", "all_reduce", N), through_slots=True)
    for program in lowered.programs:
        assert kinds(program) == {KIND_CAST_IN: N, KIND_REDUCE_FINAL: 1, KIND_CAST_OUT: N}
    forwarded = lower(build("chain:1", "broadcast", 3), through_slots=True)
    assert [dict(kinds(p)) for p in forwarded.programs] == [
        {KIND_CAST_IN: 1, KIND_CAST_OUT: 1},
        {KIND_FORWARD: 1, KIND_CAST_OUT: 1},
        {KIND_CAST_OUT: 1},
    ]


def test_an_eager_plan_copies_in_before_it_arrives() -> None:
    lowered = lower(build("one_shot", "all_reduce", N), eager=True)
    assert lowered.n_hoisted == [1] * N
    for program in lowered.programs:
        assert not any(instruction.waits for instruction in program)
        assert not any(instruction.awaited for instruction in program)


def test_partial_sums_are_not_final() -> None:
    lowered = lower(build("ring", "all_reduce", N))
    for program in lowered.programs:
        assert kinds(program)[KIND_REDUCE] == N - 2
        assert kinds(program)[KIND_REDUCE_FINAL] == 1


def test_reads_of_a_step_see_the_state_before_it() -> None:
    """Two ranks swap: each needs a place that the other's write does not touch."""
    steps = (
        Step.of([Transfer(0, 1, 0, Op.COPY)]),
        Step.of([Transfer(0, 1, 0, Op.COPY), Transfer(1, 0, 0, Op.COPY)]),
    )
    schedule = Schedule(Collective("broadcast"), 2, 1, steps)
    verify(schedule)
    lowered = lower(schedule, x_visible=True, out_visible=True)
    swaps = [i for program in lowered.programs for i in program if i.step == 1]
    assert {(o.space, o.rank) for i in swaps for o in i.sources} == {(SPACE_SLOT, 0), (SPACE_SLOT, 1)}
    assert_places_are_read(lowered)


@pytest.mark.parametrize("visible", [False, True])
def test_what_nobody_uses_is_left_out(visible: bool) -> None:
    """A value that is overwritten unread is not written, nor is what only it needed."""
    steps = (
        Step.of([Transfer(0, 1, 0, Op.COPY)]),
        Step.of([Transfer(1, 2, 0, Op.COPY)]),
        Step.of([Transfer(0, 1, 0, Op.COPY), Transfer(0, 2, 0, Op.COPY)]),
    )
    schedule = Schedule(Collective("broadcast"), 3, 1, steps)
    verify(schedule)
    lowered = lower(schedule, x_visible=visible, out_visible=visible)
    assert_places_are_read(lowered)
    assert [{i.step for i in program} for program in lowered.programs] == [{-1}, {2}, {2}]


def test_a_contribution_that_is_overwritten_does_not_travel() -> None:
    """Rank 1 drops its copy of rank 0's part before anybody wants it."""
    steps = (Step.of([Transfer(0, 1, 0, Op.COPY)]), Step.of([Transfer(0, 2, 0, Op.COPY), Transfer(1, 2, 1, Op.COPY)]))
    schedule = Schedule(Collective("gather", 2), 3, 3, steps)
    verify(schedule)
    for through_slots in (False, True):
        lowered = lower(schedule, through_slots=through_slots)
        assert_places_are_read(lowered)
        assert [i.chunk for i in lowered.programs[1]] == [1]


@pytest.mark.parametrize("name", list(COLLECTIVES))
@pytest.mark.parametrize("n_ranks", [1, 2, 5, 8])
def test_no_place_is_wasted_by_any_algorithm(name: str, n_ranks: int) -> None:
    for algorithm in algorithms_for(name):
        schedule = build(algorithm, name, n_ranks)
        for through_slots in (False, True):
            for eager in (False, True):
                assert_places_are_read(lower(schedule, through_slots=through_slots, eager=eager))
        for x_visible in (False, True):
            for out_visible in (False, True):
                assert_places_are_read(lower(schedule, x_visible=x_visible, out_visible=out_visible))


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(0, 7))
def test_no_place_is_wasted_by_random_schedules(seed: int, n_ranks: int, flags: int) -> None:
    assert_places_are_read(
        lower(
            random_schedule(seed, n_ranks),
            x_visible=bool(flags & 1),
            out_visible=bool(flags & 2),
            through_slots=bool(flags & 4),
        )
    )


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(3, 9))
def test_skews_rise_with_the_step_and_leave_two_slots(seed: int, n_ranks: int, n_slots: int) -> None:
    lowered = lower(random_schedule(seed, n_ranks), n_slots=n_slots)
    by_step = sorted({(i.step, i.skew) for program in lowered.programs for i in program})
    skews = [skew for _, skew in by_step]
    assert len({step for step, _ in by_step}) == len(by_step)
    assert skews == sorted(skews)
    assert all(0 <= skew <= n_slots - 2 for skew in skews)
    for program in lowered.programs:
        assert [i.index for i in program] == list(range(len(program)))
        assert [i.step for i in program] == sorted(i.step for i in program)


def test_many_ranks_lower_to_as_many_instructions_as_transfers_need() -> None:
    n = 64
    staged = lower(build("direct", "all_to_all", n))
    assert {len(program) for program in staged.programs} == {2 * (n - 1) + 1}
    ring = lower(build("ring", "all_reduce", n), x_visible=True, out_visible=True)
    assert {len(program) for program in ring.programs} == {
        2 * (n - 1) - 1
    }  # One copy is a store of the last reduction.
