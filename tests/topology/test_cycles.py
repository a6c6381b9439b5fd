"""Sets of Hamiltonian cycles: as many as there can be, and never a link more than there is."""

from __future__ import annotations

from itertools import pairwise, permutations
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiring.topology.canonical import canonical_order
from multiring.topology.cycles import hamiltonian_path, pack_cycles, ring_bound
from multiring.topology.walks import find_cycle, split_four_regular
from tests.topology.machines import DGX1_V100, Counts, arcs, counts_of


def most_cycles(counts: Counts) -> int:
    """Return the most directed cycles there are, by trying every set: for up to five vertices."""
    size = len(counts)
    rows: list[Counts] = []
    for rest in permutations(range(1, size)):
        used = np.zeros_like(counts)
        order = (0, *rest)
        for a, b in zip(order, (*rest, 0), strict=True):
            used[a, b] = 1
        if (used <= counts).all():
            rows.append(used)

    def best(left: Counts, at: int, bound: int) -> int:
        if at == len(rows) or bound == 0:
            return 0
        most = 0
        for times in range(int(left[rows[at] > 0].min()), -1, -1):
            most = max(most, times + best(left - times * rows[at], at + 1, bound - times))
            if most == bound:
                break
        return most

    return best(counts, 0, int(counts.sum(axis=1).min()))


def check(counts: Counts) -> int:
    packing = pack_cycles(counts)
    for cycle in packing.cycles:
        assert sorted(cycle) == list(range(len(counts)))
    for (a, b), times in arcs(packing.cycles).items():
        assert times <= counts[a, b]
    assert len(packing.cycles) <= packing.bound
    return len(packing.cycles)


@st.composite
def graphs(draw: st.DrawFn, least: int, most: int, links: int) -> Counts:
    size = draw(st.integers(least, most))
    counts = np.zeros((size, size), dtype=np.int64)
    for a in range(size):
        for b in range(a):
            counts[a, b] = counts[b, a] = draw(st.integers(0, links))
    return counts


@given(graphs(3, 4, 3))
def test_no_set_of_cycles_is_larger(counts: Counts) -> None:
    assert check(counts) == most_cycles(counts)


@given(graphs(5, 5, 1))
def test_no_set_of_cycles_on_five_vertices_is_larger(counts: Counts) -> None:
    assert check(counts) == most_cycles(counts)


@given(graphs(2, 12, 2))
def test_no_link_is_used_twice(counts: Counts) -> None:
    check(counts)


# A complete graph of n splits into n - 1 directed cycles, but for n = 4 and 6 (Tillson 1980).
@pytest.mark.parametrize(("size", "cycles"), [(3, 2), (4, 2), (5, 4), (6, 4), (7, 6), (8, 7)])
def test_complete_graphs(size: int, cycles: int) -> None:
    counts = np.ones((size, size), dtype=np.int64) - np.eye(size, dtype=np.int64)
    assert check(counts) == cycles


def test_bundles_count() -> None:
    counts = 4 * (np.ones((4, 4), dtype=np.int64) - np.eye(4, dtype=np.int64))
    assert check(counts) == 12
    assert check(np.array([[0, 12], [12, 0]])) == 12


def test_a_dgx1_v100_splits_into_six() -> None:
    counts = counts_of(DGX1_V100)
    packing = pack_cycles(counts)
    assert len(packing.cycles) == 6
    assert arcs(packing.cycles) == {(int(a), int(b)): counts[a, b] for a, b in np.argwhere(counts)}


def test_graphs_without_a_cycle() -> None:
    star = np.zeros((4, 4), dtype=np.int64)
    star[0, 1:] = star[1:, 0] = 3
    assert check(star) == 0
    islands = np.kron(np.eye(2, dtype=np.int64), np.ones((3, 3), dtype=np.int64) - np.eye(3, dtype=np.int64))
    assert check(islands) == 0
    assert ring_bound(islands) == 0
    alone = counts_of(DGX1_V100)
    alone[7] = alone[:, 7] = 0
    assert check(alone) == 0


def torus(rows: int, columns: int) -> Counts:
    counts = np.zeros((rows * columns,) * 2, dtype=np.int64)
    for row in range(rows):
        for column in range(columns):
            for there in (((row + 1) % rows, column), (row, (column + 1) % columns)):
                a, b = row * columns + column, there[0] * columns + there[1]
                counts[a, b] += 1
                counts[b, a] += 1
    return counts


@pytest.mark.parametrize(("rows", "columns"), [(3, 3), (3, 5), (4, 4), (4, 8), (5, 7), (8, 8)])
def test_a_torus_splits_into_four_directed_cycles(rows: int, columns: int) -> None:
    assert check(torus(rows, columns)) == 4


def test_walks_find_what_there_is() -> None:
    counts = torus(6, 6)
    cycle = find_cycle(counts)
    assert cycle
    assert sorted(cycle) == list(range(36))
    assert all(counts[a, b] for a, b in zip(cycle, cycle[1:] + cycle[:1], strict=True))
    assert len(split_four_regular(counts)) == 2
    mesh = torus(3, 3)
    mesh[np.ix_([0, 1, 2], [6, 7, 8])] = mesh[np.ix_([6, 7, 8], [0, 1, 2])] = 0
    mesh[[0, 3, 6], [2, 5, 8]] = mesh[[2, 5, 8], [0, 3, 6]] = 0
    assert find_cycle(mesh) is None


def test_a_path_between_two_vertices() -> None:
    allowed = counts_of(DGX1_V100) > 0
    path = hamiltonian_path(allowed, 1, 0)
    assert path
    assert (path[0], path[-1], sorted(path)) == (1, 0, list(range(8)))
    assert all(allowed[a, b] for a, b in pairwise(path))
    assert hamiltonian_path(np.zeros((3, 3), dtype=bool), 0, 2) is None


@given(graphs(1, 8, 2), st.randoms(use_true_random=False))
def test_the_canonical_order_does_not_depend_on_numbers(counts: Counts, random: Random) -> None:
    mixed = list(range(len(counts)))
    random.shuffle(mixed)
    other = counts[np.ix_(mixed, mixed)]
    first, second = canonical_order(counts.tolist()), canonical_order(other.tolist())
    assert (counts[np.ix_(first, first)] == other[np.ix_(second, second)]).all()
