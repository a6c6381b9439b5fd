"""Hamiltonian cycles of graphs too large to list them: seeded walks, the same on every run."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["find_cycle", "split_four_regular"]

MAX_ROTATIONS = 40_000
MAX_SWITCH_WORK = 2_000_000
"""Exchanges that are tried, times vertices: about two seconds."""
MAX_SPLIT = 512
"""Vertices up to which a split is tried."""
SEED = 1


def find_cycle(counts: NDArray[np.int64]) -> tuple[int, ...] | None:
    """Return a Hamiltonian cycle over pairs with at least one link, or None where the walk finds none.

    Parameters
    ----------
    counts : ndarray of int64, shape (n, n)
        Symmetric, n at least 3.

    Notes
    -----
    Extend a path; where its end has only neighbours on the path, turn the part behind one of them round (Posa 1976).
    """
    size = len(counts)
    neighbours = [[int(v) for v in np.flatnonzero(row)] for row in counts]
    if min(map(len, neighbours)) < 2 or _odd_bipartite(neighbours):
        return None
    rng = random.Random(SEED)
    path = [0]
    place = {0: 0}
    for _ in range(MAX_ROTATIONS):
        end = path[-1]
        fresh = [vertex for vertex in neighbours[end] if vertex not in place]
        if fresh:
            # The neighbour with fewest ways on, as for a knight's tour.
            ways = [sum(v not in place for v in neighbours[vertex]) for vertex in fresh]
            chosen = fresh[ways.index(min(ways))]
            place[chosen] = len(path)
            path.append(chosen)
            continue
        if len(path) == size and path[0] in neighbours[end]:
            at = path.index(0)
            return tuple(path[at:] + path[:at])
        pivot = place[rng.choice(neighbours[end])]
        path[pivot + 1 :] = path[pivot + 1 :][::-1]
        for at in range(pivot + 1, len(path)):
            place[path[at]] = at
        if rng.random() < 0.1:
            path.reverse()
            place = {vertex: at for at, vertex in enumerate(path)}
    return None


def split_four_regular(counts: NDArray[np.int64]) -> list[tuple[int, ...]]:
    """Split a graph of four single links at every vertex, such as a torus, into two Hamiltonian cycles.

    Returns
    -------
    list of tuple of int
        Two cycles; empty where the graph is another one, or the walk finds none.

    Notes
    -----
    From any two halves with two links at every vertex: exchange the links of squares whose sides alternate between
    them, while the number of cycles does not grow. A torus always has such a split (Kotzig 1973).
    """
    size = len(counts)
    if size > MAX_SPLIT or counts.max() != 1 or not (counts.sum(axis=1) == 4).all():
        return []
    first = find_cycle(counts)
    if first is None:
        return []
    neighbours = [[int(v) for v in np.flatnonzero(row)] for row in counts]
    ahead = {frozenset((a, b)) for a, b in zip(first, first[1:] + first[:1], strict=True)}
    halves = [
        [{v for v in neighbours[u] if (frozenset((u, v)) in ahead) == mine} for u in range(size)]
        for mine in (True, False)
    ]
    rng = random.Random(SEED)
    pieces = sum(len(_pieces(half)) for half in halves)
    for _ in range(MAX_SWITCH_WORK // size):
        if pieces == 2:
            return [_pieces(half)[0] for half in halves]
        square = _square(halves, rng.randrange(size), rng)
        if square is None:
            continue
        _exchange(halves, square)
        now = sum(len(_pieces(half)) for half in halves)
        if now > pieces and rng.random() > 0.02:
            _exchange(halves, square)
        else:
            pieces = now
    return []


def _square(halves: list[list[set[int]]], a: int, rng: random.Random) -> tuple[int, int, int, int] | None:
    """Return a - b - c - d - a with a-b and c-d in the first half, b-c and d-a in the second."""
    b = rng.choice(sorted(halves[0][a]))
    c = rng.choice(sorted(halves[1][b]))
    options = sorted(halves[0][c] & halves[1][a] - {b})
    return (a, b, c, rng.choice(options)) if options and c != a else None


def _exchange(halves: list[list[set[int]]], square: tuple[int, int, int, int]) -> None:
    for at in range(4):
        a, b = square[at], square[(at + 1) % 4]
        there, back = (halves[0], halves[1]) if b in halves[0][a] else (halves[1], halves[0])
        for x, y in ((a, b), (b, a)):
            there[x].discard(y)
            back[x].add(y)


def _pieces(half: Sequence[set[int]]) -> list[tuple[int, ...]]:
    """Return the cycles of a graph with two links at every vertex."""
    seen: set[int] = set()
    found: list[tuple[int, ...]] = []
    for start in range(len(half)):
        if start in seen:
            continue
        path = [start]
        seen.add(start)
        while onward := [vertex for vertex in sorted(half[path[-1]]) if vertex not in seen]:
            path.append(onward[0])
            seen.add(onward[0])
        found.append(tuple(path))
    return found


def _odd_bipartite(neighbours: Sequence[Sequence[int]]) -> bool:
    """Return whether the vertices are of two unequal sides without links inside: no cycle can alternate."""
    side = {0: 0}
    queue = [0]
    for at in queue:
        for vertex in neighbours[at]:
            if vertex not in side:
                side[vertex] = 1 - side[at]
                queue.append(vertex)
            elif side[vertex] == side[at]:
                return False
    return 2 * sum(side.values()) != len(neighbours)
