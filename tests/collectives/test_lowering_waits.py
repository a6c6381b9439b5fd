"""The waits of a program order everything that must be ordered, and each of them is needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiring.collectives.lowering import lower
from multiring.collectives.program import Lowered
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
from tests.collectives.program_model import (
    Deadlock,
    Machine,
    Program,
    Race,
    WrongValue,
    check,
    read_programs,
)
from tests.collectives.random_schedules import random_box, random_schedule, recursive_doubling, rotation

Flags = dict[str, Any]
VARIANTS: list[Flags] = [
    {},
    {"x_visible": True},
    {"out_visible": True},
    {"x_visible": True, "out_visible": True},
    {"through_slots": True},
    {"eager": True},
    {"eager": True, "through_slots": True},
]


def machines(schedule: Schedule, flags: Flags, n_slices: int, n_slots: int = 3) -> Iterator[Machine]:
    """Lower a schedule, and yield its machine for calls out of place and in place."""
    lowered: Lowered = lower(schedule, **flags, n_slots=n_slots)
    programs = read_programs(lowered, schedule.n_ranks)
    slices = 1 if flags.get("eager") else n_slices
    for in_place in (False, True):
        yield Machine(schedule, programs, slices, n_slots, **flags, in_place=in_place)


def prove(schedule: Schedule, n_slices: int = 5, n_slots: int = 3) -> None:
    verify(schedule)
    for flags in VARIANTS:
        for machine in machines(schedule, flags, n_slices, n_slots):
            check(machine)


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("name", list(COLLECTIVES))
def test_every_order_computes_the_same_for_built_schedules(name: str, n_ranks: int) -> None:
    for algorithm in algorithms_for(name):
        roots = range(n_ranks) if COLLECTIVES[name].rooted else (0,)
        for root in roots:
            prove(build(algorithm, Collective(name, root), n_ranks), n_slices=4 if n_ranks < 5 else 2)


@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 5), st.integers(3, 5))
def test_every_order_computes_the_same_for_random_schedules(
    seed: int, n_ranks: int, n_slices: int, n_slots: int
) -> None:
    prove(random_schedule(seed, n_ranks), n_slices, n_slots)


@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 3))
def test_every_order_computes_the_same_for_boxes(seed: int, rows: int, columns: int) -> None:
    prove(random_box(seed, rows, columns), 4)


@pytest.mark.parametrize("power", [1, 2, 3])
def test_partners_that_exchange_all_they_have(power: int) -> None:
    prove(recursive_doubling(power))


@pytest.mark.parametrize("n_steps", [1, 2, 3])
def test_a_copy_onto_what_is_being_read(n_steps: int) -> None:
    prove(rotation(3, n_steps))


def arrows(*texts: str) -> Step:
    """Make a step of one chunk: ``"3+0"`` adds rank 3's into rank 0's, ``"0=1"`` copies rank 0's onto rank 1's."""
    return Step.of([Transfer(int(t[0]), int(t[2]), 0, Op.REDUCE if t[1] == "+" else Op.COPY) for t in texts])


@pytest.mark.parametrize("read_at", [0, 1, 2])
def test_a_store_is_not_moved_before_a_read(read_at: int) -> None:
    """Rank 0's sum of step 0 goes to rank 1 in step 2, onto what rank 2 reads before or just then."""
    steps = [["3+0"], [], ["0=1"], ["2+1"], ["1=0", "1=2", "1=3"]]
    steps[read_at].append("1+2")
    prove(Schedule(Collective("all_reduce"), 4, 1, tuple(arrows(*step) for step in steps)))


@pytest.mark.parametrize("write_at", [0, 1])
def test_a_store_is_not_moved_before_a_write(write_at: int) -> None:
    """Rank 0's sum of step 0 goes to rank 1 in step 2; rank 1 holds something else in between."""
    steps = [["1+0", "2+0", "3+0"], [], ["0=1", "0=2", "0=3"]]
    steps[write_at].append("2=1")
    prove(Schedule(Collective("all_reduce"), 4, 1, tuple(arrows(*step) for step in steps)))


# --- each wait is needed ---------------------------------------------------------------------------------------------


def without_each_wait(programs: list[Program]) -> Iterator[tuple[str, int, int | None, int, list[Program]]]:
    """Yield (where, rank, row or None for an exit, which, programs without that wait)."""
    for rank, program in enumerate(programs):
        for index, row in enumerate(program.rows):
            for k, wait in enumerate(row.waits):
                rows = list(program.rows)
                rows[index] = row._replace(waits=row.waits[:k] + row.waits[k + 1 :])
                poorer = list(programs)
                poorer[rank] = dataclasses.replace(program, rows=rows)
                yield f"rank {rank} instruction {index} {row} without {wait}", rank, index, k, poorer
        for k, wait in enumerate(program.exits):
            poorer = list(programs)
            poorer[rank] = dataclasses.replace(program, exits=program.exits[:k] + program.exits[k + 1 :])
            yield f"rank {rank} exit without {wait}", rank, None, k, poorer


def is_implied(whole: Machine, poorer: Machine, rank: int, index: int | None, k: int) -> bool:
    """Whether the other waits keep the order that a wait stands for, in every slice."""
    for _ in whole.run():
        pass
    for _ in poorer.run():
        pass
    for event in whole.events(rank):
        if event.leaves if index is None else event.row is whole.programs[rank].rows[index]:
            wait = (whole.programs[rank].exits if index is None else whole.programs[rank].rows[index].waits)[k]
            if index is not None and event.piece < wait.lag:
                continue
            piece = whole.n_slices - 1 if index is None else event.piece - wait.lag
            post = whole.first_post(wait.peer, piece * whole.programs[rank].stride + wait.position)
            assert post is not None
            if not poorer.is_before(wait.peer, post, rank, event.index):
                return False
    return True


def is_caught(machine: Machine) -> bool:
    try:
        check(machine)
    except (Race, WrongValue, Deadlock):
        return True
    return False


def useless_waits(schedule: Schedule, flags: Flags, n_slices: int, n_slots: int) -> list[str]:
    """List the waits that nothing implies and nothing misses."""
    out_of_place, in_place = machines(schedule, flags, n_slices, n_slots)
    useless = []
    for where, rank, index, k, programs in without_each_wait(out_of_place.programs):
        poorer = [dataclasses.replace(m, programs=programs, clocks={}, posts=[]) for m in (out_of_place, in_place)]
        if not any(map(is_caught, poorer)) and not is_implied(out_of_place, poorer[0], rank, index, k):
            useless.append(where)
    return useless


@pytest.mark.parametrize("flags", VARIANTS, ids=lambda f: "-".join(f) or "ordinary")
@pytest.mark.parametrize(
    ("name", "algorithm", "n_ranks"),
    [
        ("all_reduce", "direct", 3),
        ("all_reduce", "ring", 3),
        ("all_reduce", "chain:2", 3),
        ("all_reduce", "recursive_doubling", 4),
        ("all_to_all", "direct", 3),
        ("reduce_scatter", "ring", 3),
        ("broadcast", "chain:2", 3),
        ("reduce", "binomial", 4),
    ],
)
def test_a_wait_left_out_is_a_race_or_was_implied(name: str, algorithm: str, n_ranks: int, flags: Flags) -> None:
    assert not useless_waits(build(algorithm, name, n_ranks), flags, 5, 3)


@given(st.integers(0, 2**32), st.integers(2, 4))
def test_a_wait_left_out_of_a_random_program(seed: int, n_ranks: int) -> None:
    flags = VARIANTS[seed % len(VARIANTS)]
    assert not useless_waits(random_schedule(seed, n_ranks), flags, 4, 3)


def test_a_slot_is_not_reused_too_early() -> None:
    """K slots lag K slices: one slice less of waiting is a race."""
    schedule = build("direct", "broadcast", 3)
    programs = read_programs(lower(schedule, n_slots=4), 3)
    check(Machine(schedule, programs, 8, 4))
    early = [
        dataclasses.replace(
            p, rows=[row._replace(waits=tuple(w._replace(lag=5) if w.lag else w for w in row.waits)) for row in p.rows]
        )
        for p in programs
    ]
    assert any(w.lag == 4 for p in programs for row in p.rows for w in row.waits)
    with pytest.raises(Race, match="slot"):
        check(Machine(schedule, early, 8, 4))


def test_the_model_sees_a_deadlock() -> None:
    schedule = build("ring", "all_reduce", 3)
    programs = read_programs(lower(schedule), 3)
    stuck = [
        dataclasses.replace(
            p,
            rows=[
                row._replace(waits=tuple(w._replace(position=w.position + 100) for w in row.waits)) for row in p.rows
            ],
        )
        for p in programs
    ]
    with pytest.raises(Deadlock, match="ring"):
        check(Machine(schedule, stuck, 1, 4))
