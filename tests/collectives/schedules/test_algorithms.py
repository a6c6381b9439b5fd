"""Every algorithm does every collective that it names, for any number of ranks, root, order and size."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiring.collectives.schedules import (
    ALGORITHMS,
    COLLECTIVES,
    Collective,
    Schedule,
    Step,
    algorithms_for,
    build,
    is_rank_ordered,
    n_roundings,
    same_on_every_rank,
    verify,
)
from multiring.errors import ArgumentError, ScheduleError

Execute = Callable[[Schedule, int, int], None]
PAIRS = [(name, collective) for name, algorithm in ALGORITHMS.items() for collective in algorithm.collectives]
ROOTED = [name for name, pattern in COLLECTIVES.items() if pattern.rooted]


@pytest.mark.parametrize(("name", "collective"), PAIRS)
@given(data=st.data())
def test_every_builder_does_what_its_collective_promises(
    execute: Execute, name: str, collective: str, data: st.DataObject
) -> None:
    n_ranks = data.draw(st.integers(1, 17), "ranks")
    root = data.draw(st.integers(0, n_ranks - 1), "root") if collective in ROOTED else 0
    count = data.draw(st.integers(0, 3 * n_ranks), "count")
    schedule = build(name, Collective(collective, root), n_ranks)
    assert schedule.algorithm == name
    assert schedule.collective == Collective(collective, root)
    verify(schedule)
    execute(schedule, count, n_ranks)


@pytest.mark.parametrize(("name", "collective"), PAIRS)
def test_one_rank_has_nothing_to_do(name: str, collective: str) -> None:
    schedule = build(name, collective, 1)
    verify(schedule)
    assert schedule.n_steps == 0


@pytest.mark.parametrize(("name", "collective"), PAIRS)
@given(data=st.data())
def test_order_is_that_of_the_written_sum_and_all_ranks_agree_on_it(
    left_folds: Callable[[Schedule], list[str]], name: str, collective: str, data: st.DataObject
) -> None:
    n_ranks = data.draw(st.integers(1, 9), "ranks")
    root = data.draw(st.integers(0, n_ranks - 1), "root") if collective in ROOTED else 0
    schedule = build(name, Collective(collective, root), n_ranks)
    if not schedule.collective.reduces:
        assert is_rank_ordered(schedule)
        assert n_roundings(schedule) == 0
        return
    ascending = reduce(lambda total, rank: f"({total}+{rank})", map(str, range(n_ranks)))
    folds = left_folds(schedule)
    assert is_rank_ordered(schedule) == (set(folds) == {ascending})
    if collective == "all_reduce":
        per_chunk = {tuple(folds[chunk :: schedule.n_chunks]) for chunk in range(schedule.n_chunks)}
        assert all(len(set(texts)) == 1 for texts in per_chunk)
    assert same_on_every_rank(schedule)


@pytest.mark.parametrize("collective", ALGORITHMS["ring"].collectives)
@given(data=st.data())
def test_a_ring_may_have_any_order(execute: Execute, collective: str, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(data.draw(st.integers(1, 9), "ranks"))), "order")
    n_ranks = len(order)
    root = data.draw(st.integers(0, n_ranks - 1), "root") if collective in ROOTED else 0
    schedule = build("ring", Collective(collective, root), n_ranks, order=order)
    verify(schedule)
    execute(schedule, 2 * n_ranks + 1, n_ranks)
    used = {(transfer.src, transfer.dst) for step in schedule.steps for transfer in step}
    assert used <= {(order[i - 1], order[i]) for i in range(n_ranks)}


def test_a_bidirectional_ring_goes_both_ways_and_strides_share_no_link() -> None:
    both = build("bidirectional_ring", "all_reduce", 5)
    for step in both.steps:
        ways = ((step.dst - step.src) % 5).tolist()
        assert sorted(ways) == [1] * 5 + [4] * 5
    strides = build("multi_ring:4", "all_gather", 5)
    for step in strides.steps:
        links = set(zip(step.src.tolist(), step.dst.tolist(), strict=True))
        assert len(links) == len(step) == 20


@pytest.mark.parametrize("n_ranks", [2, 5, 8])
def test_sums_round_once_where_nothing_partial_travels(n_ranks: int) -> None:
    assert n_roundings(build("direct", "all_reduce", n_ranks)) == 1
    assert n_roundings(build("one_shot", "all_reduce", n_ranks)) == 1
    assert n_roundings(build("direct", "reduce", n_ranks)) == 1
    assert n_roundings(build("ring", "all_reduce", n_ranks)) == n_ranks - 1
    assert n_roundings(build("chain", "reduce", n_ranks)) == n_ranks - 1
    # Here the sum stays where it is, and is rounded with each rank that is added.
    assert n_roundings(build("pairwise", "reduce_scatter", n_ranks)) == n_ranks - 1


def test_direct_and_chain_add_in_rank_order_and_a_ring_does_not() -> None:
    assert is_rank_ordered(build("direct", "all_reduce", 5))
    assert is_rank_ordered(build("one_shot", "reduce", 5))
    assert is_rank_ordered(build("chain", Collective("reduce", 2), 5))
    assert is_rank_ordered(build("chain", "all_reduce", 5))
    assert not is_rank_ordered(build("ring", "all_reduce", 5))
    assert not is_rank_ordered(build("chain", "all_reduce", 4, order=[3, 2, 1, 0]))


def test_reduce_scatter_leaves_chunk_r_on_rank_r_for_any_order() -> None:
    schedule = build("ring", "reduce_scatter", 4, order=[2, 0, 3, 1])
    last = schedule.steps[-1]
    assert sorted(zip(last.dst.tolist(), last.chunk.tolist(), strict=True)) == [(r, r) for r in range(4)]


def test_an_unknown_algorithm_names_those_that_serve_the_collective() -> None:
    with pytest.raises(ArgumentError, match=r"'rnig' is not known, wanted one that serves all_gather: direct, ring"):
        build("rnig", "all_gather", 4)
    with pytest.raises(ArgumentError, match=r"'ring' does not serve gather, wanted one that serves gather: direct"):
        build("ring", "gather", 4)
    with pytest.raises(ArgumentError, match=r"algorithm 'ring': got '3' after its colon, wanted nothing"):
        build("ring:3", "all_reduce", 4)
    assert "one_shot" in algorithms_for("reduce")
    assert "one_shot" not in algorithms_for("all_gather")


def test_a_wrong_order_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"ring: got order \[0, 0, 1\], wanted each of the ranks 0 to 2 once"):
        build("ring", "all_reduce", 3, order=[0, 0, 1])
    with pytest.raises(ScheduleError, match=r"chain broadcast: got order \[0, 1, 2\].*with the root 1 first"):
        build("chain", Collective("broadcast", 1), 3, order=[0, 1, 2])


def test_a_schedule_whose_ranks_add_differently_is_seen(left_folds: Callable[[Schedule], list[str]]) -> None:
    steps = (
        Step([1, 2, 3, 0, 3], [0, 0, 0, 1, 2], [0] * 5, True),
        Step([2], [1], [0], True),
        Step([0, 0], [2, 3], [0, 0], False),
    )
    schedule = Schedule(Collective("all_reduce"), 4, 1, steps)
    verify(schedule)
    one, other = "(((0+1)+2)+3)", "((0+1)+(2+3))"
    assert left_folds(schedule) == [one, other, one, one]
    assert not same_on_every_rank(schedule)
    assert not is_rank_ordered(schedule)


def test_one_fold_and_the_same_in_two_steps_are_one_order(left_folds: Callable[[Schedule], list[str]]) -> None:
    steps = (
        Step([1, 2, 0], [0, 0, 1], [0] * 3, True),
        Step([1], [2], [0], True),
        Step([2], [1], [0], False),
    )
    schedule = Schedule(Collective("all_reduce"), 3, 1, steps)
    verify(schedule)
    assert left_folds(schedule) == ["((0+1)+2)"] * 3
    assert same_on_every_rank(schedule)
    assert is_rank_ordered(schedule)


def test_halving_goes_to_near_partners_first_and_to_far_ones_where_chunks_have_owners() -> None:
    def distances(collective: str) -> list[int]:
        return [int(abs(step.src - step.dst).max()) for step in build("halving_doubling", collective, 8).steps]

    assert distances("all_reduce") == [1, 2, 4, 4, 2, 1]
    assert distances("reduce_scatter") == [4, 2, 1]
    assert distances("all_gather") == [1, 2, 4]
