"""Steps and bytes of every algorithm are the formulas that its papers give."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log2

import numpy as np
import pytest

from multiring.collectives.schedules import Collective, build, bytes_sent, chunk_bytes, verify

RANKS = [2, 3, 4, 5, 7, 8, 12, 16, 32, 33]


def up(p: int) -> int:
    return ceil(log2(p))


def down(p: int) -> int:
    return p.bit_length() - 1


def folds(p: int) -> int:
    """Two steps more where the number of ranks is not a power of two."""
    return 0 if p == 1 << down(p) else 2


STEPS: dict[tuple[str, str], Callable[[int], int]] = {
    ("ring", "all_reduce"): lambda p: 2 * (p - 1),
    ("ring", "reduce_scatter"): lambda p: p - 1,
    ("ring", "all_gather"): lambda p: p - 1,
    ("ring", "broadcast"): lambda p: 2 * p - 2,
    ("ring", "reduce"): lambda p: 2 * p - 2,
    ("bidirectional_ring", "all_reduce"): lambda p: 2 * (p - 1),
    ("multi_ring", "all_reduce"): lambda p: 2 * (p - 1),
    ("multi_ring", "all_gather"): lambda p: p - 1,
    ("direct", "barrier"): lambda _: 0,
    ("direct", "all_reduce"): lambda _: 2,
    ("direct", "reduce"): lambda _: 2,
    ("direct", "broadcast"): lambda _: 1,
    ("direct", "reduce_scatter"): lambda _: 1,
    ("direct", "all_gather"): lambda _: 1,
    ("direct", "all_to_all"): lambda _: 1,
    ("direct", "gather"): lambda _: 1,
    ("direct", "scatter"): lambda _: 1,
    ("one_shot", "all_reduce"): lambda _: 1,
    ("one_shot", "reduce"): lambda _: 1,
    ("recursive_doubling", "all_reduce"): lambda p: down(p) + folds(p),
    ("recursive_doubling", "all_gather"): lambda p: down(p) + folds(p),
    ("halving_doubling", "all_reduce"): lambda p: 2 * down(p) + folds(p),
    ("halving_doubling", "reduce_scatter"): lambda p: down(p) + folds(p),
    ("halving_doubling", "all_gather"): lambda p: down(p) + folds(p),
    ("bruck", "all_gather"): up,
    ("bruck", "reduce_scatter"): up,
    ("bruck", "all_reduce"): lambda p: 2 * up(p),
    ("bruck", "all_to_all"): up,
    ("pairwise", "all_to_all"): lambda p: p - 1,
    ("pairwise", "reduce_scatter"): lambda p: p - 1,
    ("binomial", "broadcast"): up,
    ("binomial", "reduce"): up,
    ("binomial", "scatter"): up,
    ("binomial", "gather"): up,
    ("binomial", "all_reduce"): lambda p: 2 * up(p),
    ("chain", "broadcast"): lambda p: p - 2 + 8,
    ("chain", "reduce"): lambda p: p - 2 + 8 + 1,  # and from the last rank to the root
    ("chain", "all_reduce"): lambda p: 2 * (p - 2 + 8),
    ("chain:3", "broadcast"): lambda p: p - 2 + 3,
    ("van_de_geijn", "broadcast"): lambda p: up(p) + p - 1,
    ("van_de_geijn", "reduce"): lambda p: up(p) + p - 1,
    ("van_de_geijn:bruck", "broadcast"): lambda p: 2 * up(p),
}


@pytest.mark.parametrize(("name", "collective"), STEPS)
def test_steps(name: str, collective: str) -> None:
    wanted = {p: STEPS[name, collective](p) for p in RANKS}
    assert {p: build(name, collective, p).n_steps for p in RANKS} == wanted


# Most bytes that a rank sends, in units of the vector n, as (numerator, denominator).
BYTES: dict[tuple[str, str], Callable[[int], tuple[int, int]]] = {
    ("ring", "all_reduce"): lambda p: (2 * (p - 1), p),
    ("ring", "reduce_scatter"): lambda p: (p - 1, p),
    ("ring", "all_gather"): lambda p: (p - 1, p),
    ("ring", "broadcast"): lambda _: (1, 1),
    ("bidirectional_ring", "all_reduce"): lambda p: (2 * (p - 1), p),
    ("multi_ring", "reduce_scatter"): lambda p: (p - 1, p),
    ("box", "all_reduce"): lambda p: (2 * (p - 1), p),
    ("box", "reduce_scatter"): lambda p: (p - 1, p),
    ("torus", "all_reduce"): lambda p: (2 * (p - 1), p),
    ("direct", "all_reduce"): lambda p: (2 * (p - 1), p),
    ("one_shot", "all_reduce"): lambda p: (p - 1, 1),
    ("bruck", "all_reduce"): lambda p: (2 * (p - 1), p),
    ("bruck", "all_gather"): lambda p: (p - 1, p),
    ("bruck", "reduce_scatter"): lambda p: (p - 1, p),
    ("pairwise", "reduce_scatter"): lambda p: (p - 1, p),
    ("pairwise", "all_to_all"): lambda p: (p - 1, p),
    ("direct", "all_to_all"): lambda p: (p - 1, p),
    # The largest subtree below the root.
    ("binomial", "gather"): lambda p: (max(p - (1 << up(p) - 1), (1 << up(p) - 1) // 2), p),
    ("binomial", "scatter"): lambda p: (p - 1, p),
    ("binomial", "broadcast"): lambda p: (up(p), 1),
    ("chain", "broadcast"): lambda _: (1, 1),
}
POWERS: dict[tuple[str, str], Callable[[int], tuple[int, int]]] = {
    ("halving_doubling", "all_reduce"): lambda p: (2 * (p - 1), p),
    ("halving_doubling", "reduce_scatter"): lambda p: (p - 1, p),
    ("recursive_doubling", "all_reduce"): lambda p: (up(p), 1),
    ("recursive_doubling", "all_gather"): lambda p: (p - 1, p),
    ("bruck", "all_to_all"): lambda p: (up(p), 2),
    ("van_de_geijn", "broadcast"): lambda p: (2 * (p - 1), p),
}


def most_sent(name: str, collective: str, p: int) -> tuple[int, int]:
    schedule = build(name, collective, p)
    nbytes = 840 * schedule.n_chunks * p
    return int(bytes_sent(schedule, nbytes).max()), nbytes


@pytest.mark.parametrize(("name", "collective"), BYTES)
@pytest.mark.parametrize("p", [2, 3, 6, 8, 16])
def test_bytes(name: str, collective: str, p: int) -> None:
    sent, nbytes = most_sent(name, collective, p)
    above, below = BYTES[name, collective](p)
    assert sent * below == nbytes * above


@pytest.mark.parametrize(("name", "collective"), POWERS)
@pytest.mark.parametrize("p", [2, 8, 32])
def test_bytes_of_powers_of_two(name: str, collective: str, p: int) -> None:
    sent, nbytes = most_sent(name, collective, p)
    above, below = POWERS[name, collective](p)
    assert sent * below == nbytes * above


@pytest.mark.parametrize(
    ("shape", "steps"),
    [("256", 510), ("4x64", 132), ("4x16x4", 42), ("4x8x8", 34), ("4x4x4x4", 24), ("2x2x2x2x2x2x2x2", 16)],
)
def test_every_box_of_256_ranks_moves_the_same_bytes_in_its_own_number_of_steps(shape: str, steps: int) -> None:
    schedule = build(f"box:{shape}", "all_reduce", 256)
    verify(schedule)
    assert schedule.n_steps == steps
    nbytes = 256 * 1024
    assert set(bytes_sent(schedule, nbytes).tolist()) == {2 * 255 * 1024}


def test_dimensions_of_a_box_carry_less_and_less() -> None:
    # 4x8x8 of 256 ranks: 1.5, 0.4375 and 0.0547 of the vector along its three dimensions.
    schedule = build("box:4x8x8", "all_reduce", 256)
    sizes = chunk_bytes(schedule, 256 * 256)
    along = np.zeros(3)
    for step in schedule.steps:
        there = step.src == 0
        distance = np.abs(step.dst[there] - step.src[there]).max()
        along[0 if distance < 4 else 1 if distance < 32 else 2] += sizes[step.chunk[there]].sum()
    assert (along / (256 * 256)).tolist() == [2 * 3 / 4, 2 * 7 / 8 / 4, 2 * 7 / 8 / 32]


def test_32_servers_take_10_steps_by_halving_and_doubling_and_62_in_a_ring() -> None:
    assert build("halving_doubling", "all_reduce", 32).n_steps == 10
    assert build("ring", "all_reduce", 32).n_steps == 62


@pytest.mark.parametrize(("n_rows", "n_columns"), [(2, 2), (2, 5), (4, 3)])
def test_a_mesh_takes_a_step_for_each_hop_of_its_sides(n_rows: int, n_columns: int) -> None:
    schedule = build(f"torus:{n_columns}x{n_rows}", "all_reduce", n_rows * n_columns)
    assert schedule.n_steps == 2 * (n_rows + n_columns - 2)


@pytest.mark.parametrize("p", [2, 3, 7, 8, 31, 32, 100])
def test_a_double_tree_sends_twice_the_vector_in_twice_its_depth(p: int) -> None:
    schedule = build("double_tree:6", "all_reduce", p)
    verify(schedule)
    depth = (schedule.n_steps - 6 + 1) // 2
    assert up(p + 1) - 1 <= depth <= up(p + 1)
    nbytes = 1200
    # Up once in each tree; down to two children where it passes on.
    assert bytes_sent(schedule, nbytes).max() <= 2 * nbytes


@pytest.mark.parametrize(("n_ranks", "group"), [(8, 4), (12, 4), (13, 4), (5, 1), (6, 6), (6, 9)])
def test_leaders_take_three_phases(n_ranks: int, group: int) -> None:
    for across in ("ring", "halving_doubling", "recursive_doubling", "bruck", "direct"):
        schedule = build(f"leaders:{group}:{across}", "all_reduce", n_ranks)
        verify(schedule)
        n_leaders = -(-n_ranks // group)
        inside = up(min(group, n_ranks)) if group > 1 else 0
        assert schedule.n_steps == 2 * inside + build(across, "all_reduce", n_leaders).n_steps


def test_chunks_are_cut_as_array_split_cuts() -> None:
    schedule = build("box:2x2", "reduce_scatter", 4)
    assert chunk_bytes(schedule, 10).tolist() == [3, 3, 2, 2]
    halves = build("bidirectional_ring", "reduce_scatter", 4)
    assert chunk_bytes(halves, 10).tolist() == [2, 1, 2, 1, 1, 1, 1, 1]
    assert chunk_bytes(build("direct", Collective("all_to_all"), 2), 4).tolist() == [2, 2, 2, 2]
