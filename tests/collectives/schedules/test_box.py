"""Boxes of any factorisation and stages, with the caller's order kept."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiring.collectives.schedules import Box, Schedule, build, verify
from multiring.collectives.schedules.algorithms.box import STAGES, factorisations
from multiring.errors import ArgumentError, ScheduleError

Execute = Callable[[Schedule, int, int], None]


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather"])
@given(data=st.data())
def test_any_factorisation_and_stages(execute: Execute, collective: str, data: st.DataObject) -> None:
    dims = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4).filter(lambda d: prod(d) <= 40), "sizes")
    stages = data.draw(st.lists(st.sampled_from(sorted(STAGES)), min_size=len(dims), max_size=len(dims)), "stages")
    schedule = build("box:" + "x".join(map(str, dims)) + ":" + ",".join(stages), collective, prod(dims))
    verify(schedule)
    execute(schedule, data.draw(st.integers(0, 100), "count"), 0)


@given(rows=st.integers(1, 5), columns=st.integers(1, 5), stage=st.sampled_from(sorted(STAGES)))
def test_any_torus(execute: Execute, rows: int, columns: int, stage: str) -> None:
    for collective in ("all_reduce", "reduce_scatter", "all_gather"):
        schedule = build(f"torus:{columns}x{rows}:{stage}", collective, rows * columns)
        verify(schedule)
        execute(schedule, 3 * rows * columns + 1, 0)


def test_the_first_dimension_is_that_of_neighbours_and_goes_first() -> None:
    schedule = build("box:2x3", "all_reduce", 6)
    assert {(t.src, t.dst) for t in schedule.steps[0]} == {(0, 1), (1, 0), (2, 3), (3, 2), (4, 5), (5, 4)}
    assert {(t.src, t.dst) for t in schedule.steps[1]} == {(0, 2), (2, 4), (4, 0), (1, 3), (3, 5), (5, 1)}


def test_an_all_reduce_sends_pieces_that_lie_together() -> None:
    for name, ranks in (("box:2x3x4", 24), ("box:4x8", 32), ("halving_doubling", 16)):
        for step in build(name, "all_reduce", ranks).steps:
            for src in range(ranks):
                chunks = step.chunk[step.src == src].tolist()
                assert chunks == list(range(chunks[0], chunks[0] + len(chunks)))


def test_a_torus_uses_rows_and_columns_in_every_step() -> None:
    for step in build("torus:3x3", "all_reduce", 9).steps:
        along_rows = step.src // 3 == step.dst // 3
        assert along_rows.sum() == (~along_rows).sum()


def test_all_factorisations() -> None:
    assert sorted(factorisations(12)) == [(2, 2, 3), (2, 3, 2), (2, 6), (3, 2, 2), (3, 4), (4, 3), (6, 2), (12,)]
    assert list(factorisations(7)) == [(7,)]
    assert list(factorisations(1)) == [(1,)]


def test_boxes_read_and_print_themselves() -> None:
    assert Box.parse("4x8x8") == Box((4, 8, 8), ("ring", "ring", "ring"))
    assert str(Box.parse("4x8x8")) == "4x8x8"
    assert str(Box.parse("4x8:bruck")) == "4x8:bruck"
    text = "4x8x8:ring,ring,halving_doubling"
    assert str(Box.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("4x", r"box: got '4x', wanted sizes such as 4x8x8 or 4x8x8:ring,ring,halving_doubling"),
        ("0x4", r"box: got sizes \(0, 4\), wanted at least one, each at least 1"),
        ("4x4:rnig", r"box 4x4:rnig: got stage algorithm 'rnig', wanted one of ring, halving_doubling"),
        ("4x4:ring,ring,ring", "got 3 stage algorithms for 2 dimensions, wanted one, or one for each"),
    ],
)
def test_a_wrong_box_is_named(text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        build(f"box:{text}", "all_reduce", 16)


def test_a_box_of_another_size_is_refused_with_what_would_fit() -> None:
    with pytest.raises(
        ScheduleError, match=r"box 4x8: got 12 ranks, wanted 32, the product of its sizes \(12, 3x4 would"
    ):
        build("box:4x8", "all_reduce", 12)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("torus:2x2x2", "'torus': got '2x2x2' after its colon, wanted two sizes such as 4x8"),
        ("multi_ring:x", "'multi_ring': got 'x' after its colon, wanted a number of rings"),
        ("double_tree:0", "'double_tree': got '0' after its colon, wanted a number of slices"),
        ("chain:", "'chain': got '' after its colon, wanted a number of chunks"),
        ("leaders:4:rnig", "'leaders': got '4:rnig' after its colon, wanted ranks in a group, or that and one of"),
        ("bruck:2", "'bruck': got '2' after its colon, wanted nothing"),
    ],
)
def test_wrong_arguments_are_named(name: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        build(name, "all_reduce", 8)


def test_other_wrong_options_are_named() -> None:
    with pytest.raises(ArgumentError, match="'van_de_geijn': got 'direct' after its colon, wanted one of ring, bruck"):
        build("van_de_geijn:direct", "broadcast", 8)
    with pytest.raises(ArgumentError, match="van_de_geijn: got 'direct', wanted one of ring, bruck"):
        build("van_de_geijn", "broadcast", 8, gather="direct")
    with pytest.raises(ArgumentError, match="leaders: got groups of 0 and 'ring', wanted groups of at least 1"):
        build("leaders", "all_reduce", 8, group=0, across="ring")
    with pytest.raises(ScheduleError, match="multi_ring: got 5 rings, wanted at most 4: 8 ranks have no more"):
        build("multi_ring:5", "all_reduce", 8)
    with pytest.raises(ScheduleError, match="multi_ring: got no ring orders, wanted at least one"):
        build("multi_ring", "all_reduce", 8, orders=[])
