"""What prices count is what the executor does: every act against the programs that lowering makes."""

from __future__ import annotations

from collections import Counter

import pytest

from multiring.collectives.lowering import lower
from multiring.collectives.schedules.algorithms import algorithms_for, build
from multiring.collectives.schedules.collective import COLLECTIVES, Collective
from multiring.collectives.schedules.schedule import Schedule
from multiring.collectives.schedules.work import BEFORE, work
from multiring.errors import ScheduleError
from multiring.kernels.records import SPACE_SLOT


def counted(schedule: Schedule, symmetric: bool) -> tuple[Counter[tuple[int, str]], int]:
    """Count what the ranks' programs read and write, and where."""
    lowered = lower(schedule, x_visible=symmetric, out_visible=symmetric)
    counts: Counter[tuple[int, str]] = Counter()
    for program in lowered.programs:
        for act in program:
            for source in act.sources:
                own = "own" if source.rank == act.rank else "peer"
                counts[act.rank, "slot read" if source.space == SPACE_SLOT else f"{own} read"] += 1
            for destination in act.destinations:
                counts[act.rank, "slot write" if destination.space == SPACE_SLOT else "array write"] += 1
    return counts, lowered.n_places


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("n_ranks", [2, 3, 4, 6])
@pytest.mark.parametrize("collective", [name for name in COLLECTIVES if name != "barrier"])
def test_every_algorithm_reads_and_writes_as_it_is_lowered(collective: str, n_ranks: int, symmetric: bool) -> None:
    for name in algorithms_for(collective):
        try:
            schedule = build(name, Collective(collective), n_ranks)
        except ScheduleError:
            continue
        found = work(schedule, symmetric, in_place=False)
        columns = {
            "own read": found.own_reads,
            "peer read": found.peer_reads,
            "slot read": found.slot_reads,
            "array write": found.array_writes,
            "slot write": found.slot_writes,
        }
        mine: Counter[tuple[int, str]] = Counter()
        for what, column in columns.items():
            for rank, times in zip(found.rank.tolist(), column.tolist(), strict=True):
                mine[rank, what] += times
        wanted, n_places = counted(schedule, symmetric)
        assert +mine == wanted, name
        assert found.n_places == n_places, name


def test_direct_all_reduce_by_hand() -> None:
    schedule = build("direct", "all_reduce", 2)
    found = work(schedule, True, in_place=True)
    # Each rank adds its half from both arrays and writes the sum into both: no copies are left.
    assert found.rank.tolist() == [0, 1]
    assert found.step.tolist() == [0, 0]
    assert (found.own_reads.tolist(), found.peer_reads.tolist()) == ([1, 1], [1, 1])
    assert (found.array_writes.tolist(), found.slot_writes.tolist()) == ([2, 2], [0, 0])
    assert found.sums.all()
    assert found.arrays.tolist() == [2, 2]
    assert work(schedule, True, in_place=False).arrays.tolist() == [4, 4]


def test_the_own_part_of_an_all_gather_is_copied_out_of_place_only() -> None:
    schedule = build("direct", "all_gather", 2)
    out_of_place, in_place = (work(schedule, True, where) for where in (False, True))
    assert (out_of_place.step == BEFORE).sum() == 2
    assert (in_place.step == BEFORE).sum() == 0
    assert out_of_place.arrays.tolist() == [3, 3]  # the owner's input, and both outputs
    assert in_place.arrays.tolist() == [2, 2]


def test_answers_are_kept_for_the_same_object_alone() -> None:
    schedule, twin = build("ring", "all_reduce", 3), build("ring", "all_reduce", 3)
    assert work(schedule, True, False) is work(schedule, True, False)
    assert work(schedule, True, False) is not work(twin, True, False)
