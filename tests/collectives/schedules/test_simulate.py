"""Predictions for machines that are not here are the prices of the schedules that would run there."""

from __future__ import annotations

import pytest

from multiring.collectives.schedules import Collective, build, cost
from multiring.collectives.schedules.simulate import (
    box_names,
    explore_boxes,
    points,
    price,
    prices,
    quick_candidates,
)
from multiring.errors import ScheduleError
from multiring.topology import host_topology, load

ALL_REDUCE = Collective("all_reduce")


@pytest.mark.parametrize(("n_ranks", "n_boxes"), [(1, 1), (2, 1), (7, 1), (8, 4), (12, 8), (64, 32), (256, 128)])
def test_every_box_is_tried(n_ranks: int, n_boxes: int) -> None:
    # 2^k has 2^(k-1) compositions; 12 = 12, 2x6, 6x2, 3x4, 4x3, 2x2x3, 2x3x2, 3x2x2.
    names = box_names(n_ranks)
    assert len(set(names)) == len(names) == n_boxes
    assert names[0] == f"box:{n_ranks}"


def test_points_are_prices_and_sorted() -> None:
    topology = load("s822lc", 2)
    found, impossible = points(ALL_REDUCE, topology, [1000, 1 << 20], ["ring", "box:3x3", "direct"])
    assert [(point.nbytes, point.n_nodes, point.n_ranks) for point in found] == [(1000, 2, 8)] * 2 + [
        (1 << 20, 2, 8)
    ] * 2
    assert list(impossible) == ["box:3x3"]
    assert "got 8 ranks, wanted 9" in impossible["box:3x3"]
    for point in found:
        assert point.predicted_us == cost(build(point.algorithm, ALL_REDUCE, 8), topology, point.nbytes).total_us
    assert found[0].predicted_us <= found[1].predicted_us


def test_the_best_box_has_the_best_algorithm_in_each_stage() -> None:
    topology = load("dgx-a100", 2)
    found = explore_boxes(ALL_REDUCE, topology, 1 << 20)
    assert [point.predicted_us for point in found] == sorted(point.predicted_us for point in found)
    stages = ("ring", "halving_doubling", "direct", "bidirectional_ring", "bruck")
    every = [
        cost(build(f"box:8x2:{inner},{outer}", ALL_REDUCE, 16), topology, 1 << 20).total_us
        for inner in stages
        for outer in stages
    ]
    assert found[0].predicted_us <= min(every)
    assert found[0].algorithm.startswith("box:")


@pytest.mark.parametrize("name", ["ring", "halving_doubling", "double_tree", "box:2x4", "direct"])
def test_a_price_is_exact_where_chunks_are_equal(name: str) -> None:
    topology = load("s822lc", 2)
    line = price(name, ALL_REDUCE, topology)
    schedule = build(name, ALL_REDUCE, 8)
    for nbytes in (0, schedule.n_chunks * 8, schedule.n_chunks << 20):
        assert line.of(nbytes) == pytest.approx(cost(schedule, topology, nbytes).total_us)


def test_what_cannot_be_built_has_no_price() -> None:
    assert [line.algorithm for line in prices(ALL_REDUCE, host_topology(4), ["box:5x5", "ring"])] == ["ring"]
    with pytest.raises(ScheduleError, match="box 5x5: got 4 ranks, wanted 25"):
        prices(ALL_REDUCE, host_topology(4), ["box:5x5"])


def test_many_ranks_are_not_joined_all_with_all() -> None:
    assert "direct" in quick_candidates(ALL_REDUCE, load("s822lc", 16))
    many = quick_candidates(ALL_REDUCE, load("s822lc", 32))
    assert "direct" not in many
    assert {"ring", "halving_doubling", "multi_ring:topology"} <= set(many)
    assert "direct" in quick_candidates(Collective("barrier"), load("s822lc", 32))
