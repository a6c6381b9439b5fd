"""Schedules from schedules keep their transfers, and refuse what does not fit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from multiring.collectives.schedules import Collective, Op, Schedule, Step, Transfer, build, merge, on, then, verify
from multiring.errors import ScheduleError

Execute = Callable[[Schedule, int, int], None]


def test_a_reduce_scatter_and_then_an_all_gather_is_an_all_reduce(execute: Execute) -> None:
    halves = build("ring", "reduce_scatter", 5), build("direct", "all_gather", 5)
    whole = then(*halves, collective=Collective("all_reduce"), algorithm="mixed")
    assert (whole.n_steps, whole.algorithm) == (5, "mixed")
    verify(whole)
    execute(whole, 13, 0)


def test_a_hierarchy_is_composed(execute: Execute) -> None:
    # 3 nodes of 2 ranks: reduce_scatter inside the nodes, all_reduce across them, all_gather inside.
    groups = [range(3), range(3, 6)]
    inside = [[2 * node, 2 * node + 1] for node in range(3)]
    first = merge(*(on(build("ring", "reduce_scatter", 2), ranks, groups, 6, 6) for ranks in inside))
    across = merge(
        *(on(build("ring", "all_reduce", 3), [i, 2 + i, 4 + i], [[c] for c in groups[i]], 6, 6) for i in range(2))
    )
    last = merge(*(on(build("ring", "all_gather", 2), ranks, groups, 6, 6) for ranks in inside))
    whole = then(first, across, last, collective=Collective("all_reduce"), algorithm="two levels")
    assert whole.n_steps == 1 + 4 + 1
    verify(whole)
    execute(whole, 31, 0)


def test_on_names_ranks_and_chunks_anew() -> None:
    small = Schedule(Collective("broadcast"), 2, 2, (Step([0, 0], [1, 1], [0, 1], False),))
    placed = on(small, [3, 1], [[5], [0, 2]], 4, 6)
    assert (placed.n_ranks, placed.n_chunks) == (4, 6)
    assert list(placed.steps[0]) == [Transfer(3, 1, chunk, Op.COPY) for chunk in (5, 0, 2)]


def test_merge_lets_the_shorter_run_out() -> None:
    long = on(build("ring", "all_gather", 3), [0, 1, 2], [[0], [1], [2]], 5, 3)
    short = on(build("direct", "broadcast", 2), [3, 4], [[0, 1, 2]], 5, 3)
    both = merge(long, short)
    assert [len(step) for step in both.steps] == [3 + 3, 3]


def test_what_does_not_fit_is_refused() -> None:
    ring = build("ring", "all_gather", 3)
    with pytest.raises(
        ScheduleError, match=r"on: got ranks \[0, 1\] for the 3 ranks of ring, wanted as many different"
    ):
        on(ring, [0, 1], [[0], [1], [2]], 4, 3)
    with pytest.raises(ScheduleError, match=r"on: got ranks \[0, 1, 1\]"):
        on(ring, [0, 1, 1], [[0], [1], [2]], 4, 3)
    with pytest.raises(ScheduleError, match=r"on: got 2 groups of chunks \[\[0\], \[1\]\] for the 3 chunks of ring"):
        on(ring, [0, 1, 2], [[0], [1]], 4, 3)
    with pytest.raises(ScheduleError, match=r"on: got 3 groups.*without a chunk in two of them"):
        on(ring, [0, 1, 2], [[0], [1], [1]], 4, 3)
    with pytest.raises(ScheduleError, match=r"step 0 transfer .→. =c. names a rank outside 0..3"):
        on(ring, [0, 4, 2], [[0], [1], [2]], 4, 3)
    with pytest.raises(
        ScheduleError, match=r"then: got ring of 3 ranks and 3 chunks with ring of 4 ranks and 4 chunks"
    ):
        then(ring, build("ring", "all_gather", 4))
    with pytest.raises(ScheduleError, match="merge: two schedules write rank 0 chunk 2 in step 0, wanted at most one"):
        merge(ring, ring)
    with pytest.raises(ScheduleError, match="merge: got no schedules, wanted at least one"):
        merge()


def test_a_piece_promises_nothing_by_itself() -> None:
    with pytest.raises(ScheduleError, match="is not there"):
        verify(on(build("ring", "all_gather", 3), [0, 1, 2], [[0], [1], [2]], 3, 3))
