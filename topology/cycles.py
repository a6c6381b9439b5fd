"""Hamiltonian cycles that share links only as often as there are links: the search behind ring orders.

A machine's links are counts between pairs of vertices, the same each way. A ring is a directed cycle through all
vertices and takes one link, in one direction, from each vertex to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from multiring.topology.walks import find_cycle, split_four_regular

__all__ = ["Packing", "hamiltonian_path", "hamiltonian_paths", "pack_cycles", "ring_bound"]

Counts = NDArray[np.int64]
Cycle = tuple[int, ...]

EXACT_VERTICES = 10
"""Up to here all cycles are listed, if there are not more than MAX_CYCLES."""
MAX_CYCLES = 12_000
MAX_NODES = 4_000
"""Steps of the search for one number of rings; a step takes about 0.1 ms."""
MAX_PATH_STEPS = 60_000
"""Steps of the search for a path."""


@dataclass(frozen=True, slots=True)
class Packing:
    """Directed cycles that run at once.

    Attributes
    ----------
    cycles : tuple of tuple of int
        A cycle comes as often as it is used.
    bound : int
        No set has more.
    is_exact : bool
        Whether it is shown that no set has more than this one.
    """

    cycles: tuple[Cycle, ...]
    bound: int
    is_exact: bool


def ring_bound(counts: Counts) -> int:
    """Return a number that no set of cycles exceeds: the fewest links that lead out of any group of vertices."""
    size = len(counts)
    least = int(counts.sum(axis=1).min())
    if size <= 16:
        members = (np.arange(1, 1 << (size - 1))[:, None] >> np.arange(size)) & 1
        least = min(least, int(((members @ counts) * (1 - members)).sum(axis=1).min()))
    return least


def pack_cycles(counts: Counts) -> Packing:
    """Find as many Hamiltonian cycles as run at once.

    Parameters
    ----------
    counts : ndarray of int64, shape (n, n)
        Links of each pair; symmetric, zero on the diagonal, n at least 2.

    Notes
    -----
    Deterministic, bounded in steps. Cycles come in pairs of both directions where that loses nothing.
    """
    size, bound = len(counts), ring_bound(counts)
    if bound == 0:
        return Packing((), 0, True)
    if size == 2:
        return Packing(((0, 1),) * bound, bound, True)
    if size > EXACT_VERTICES:
        return _pack_large(counts, bound)
    listed = _all_cycles(counts)
    if listed is None:
        return _pack_large(counts, bound)
    if not listed:
        return Packing((), 0, True)
    pairs = _most(_Problem(counts, listed, directed=False), bound // 2)
    both = [cycle for half in pairs.cycles for cycle in (half, _reversed(half))]
    if len(both) == bound:
        return Packing(tuple(both), bound, True)
    directed = _Problem(counts, [way for cycle in listed for way in (cycle, _reversed(cycle))], directed=True)
    more = _most(directed, bound, least=len(both) + 1)
    return Packing(more.cycles or tuple(both), bound, more.is_exact)


def hamiltonian_path(
    allowed: NDArray[np.bool_], start: int, end: int, preferred: Counts | None = None
) -> list[int] | None:
    """Return a path from one vertex to another through all others, or None where the search finds none.

    Parameters
    ----------
    allowed : ndarray of bool, shape (n, n)
        Whether a step may be taken.
    start, end : int
        Different, unless there is one vertex.
    preferred : ndarray of int64, shape (n, n), optional
        Steps with more are tried first.
    """
    return next(iter(hamiltonian_paths(allowed, start, end, 1, preferred)), None)


def hamiltonian_paths(
    allowed: NDArray[np.bool_], start: int, end: int, most: int, preferred: Counts | None = None
) -> list[list[int]]:
    """Return up to ``most`` such paths; fewer where the search ends before."""
    size = len(allowed)
    liked = np.zeros((size, size), dtype=np.int64) if preferred is None else preferred
    found: list[list[int]] = []
    path, steps = [start], 0

    def extend() -> None:
        nonlocal steps
        steps += 1
        if len(path) == size and path[-1] == end:
            found.append(list(path))
        if len(found) == most or steps > MAX_PATH_STEPS:
            return
        at = path[-1]
        wish: list[int] = liked[at].tolist()
        options = [v for v in range(size) if allowed[at, v] and v not in path and (v != end or len(path) == size - 1)]
        options.sort(key=lambda v: -wish[v])
        for vertex in options:
            path.append(vertex)
            extend()
            path.pop()
            if len(found) == most or steps > MAX_PATH_STEPS:
                return

    extend()
    return found


def _reversed(cycle: Cycle) -> Cycle:
    return (cycle[0], *cycle[:0:-1])


def _all_cycles(counts: Counts) -> list[Cycle] | None:
    """List the cycles, one direction of each; None where there are too many."""
    size = len(counts)
    neighbours = [[int(v) for v in np.flatnonzero(row)] for row in counts]
    found: list[Cycle] = []
    path = [0]
    used = [True] + [False] * (size - 1)

    def extend() -> bool:
        at = path[-1]
        if len(path) == size:
            if counts[at, 0] and path[1] < at:
                found.append(tuple(path))
            return len(found) <= MAX_CYCLES
        for vertex in neighbours[at]:
            if not used[vertex]:
                used[vertex] = True
                path.append(vertex)
                alive = extend()
                path.pop()
                used[vertex] = False
                if not alive:
                    return False
        return True

    return found if extend() else None


class _Problem:
    """Cycles as rows over the links they use; a link is a pair of vertices, or a direction of it."""

    def __init__(self, counts: Counts, cycles: Sequence[Cycle], directed: bool) -> None:
        size = len(counts)
        self.cycles = cycles
        ends = [(a, b) for a in range(size) for b in range(size) if counts[a, b] and (directed or a < b)]
        number = {pair: at for at, pair in enumerate(ends)}
        self.capacity = np.array([counts[pair] for pair in ends], dtype=np.int64)
        self.uses = np.zeros((len(cycles), len(ends)), dtype=bool)
        for row, cycle in enumerate(cycles):
            for a, b in zip(cycle, cycle[1:] + cycle[:1], strict=True):
                self.uses[row, number[(a, b) if directed or a < b else (b, a)]] = True
        # What a cycle takes of the links around each vertex: one out and one in, or two of either kind.
        touching = [[[a for a, _ in ends], [b for _, b in ends]]]
        if directed:
            self.around = np.array([[end == v for end in side] for side in touching[0] for v in range(size)])
            self.takes = 1
        else:
            self.around = np.array([[v in pair for pair in ends] for v in range(size)])
            self.takes = 2


def _most(problem: _Problem, bound: int, least: int = 1) -> Packing:
    """Return the most cycles of a problem, at least ``least``, or none."""
    is_exact = True
    for target in range(bound, least - 1, -1):
        search = _Cover(problem)
        if search.run(problem.capacity.copy(), np.arange(len(problem.cycles)), target):
            return Packing(tuple(problem.cycles[row] for row in search.chosen), bound, is_exact)
        is_exact &= search.nodes <= MAX_NODES
    return Packing((), bound, is_exact)


class _Cover:
    """Depth-first: the tightest link either carries one of the cycles through it, or loses one link to nobody."""

    def __init__(self, problem: _Problem) -> None:
        self._it = problem
        self.nodes = 0
        self.chosen: list[int] = []

    def run(self, capacity: Counts, rows: NDArray[np.int64], wanted: int) -> bool:
        if wanted == 0:
            return True
        self.nodes += 1
        if self.nodes > MAX_NODES:
            return False
        it = self._it
        slack = it.around @ capacity - it.takes * wanted
        if slack.min() < 0:
            return False
        rows = rows[~it.uses[rows][:, capacity == 0].any(axis=1)]
        if not rows.size:
            return False
        # Around the vertex with least to spare, the link that fewest cycles can use for each time it must be used.
        vertex = int(np.argmin(slack))
        crowd = it.uses[rows].sum(axis=0)
        open_links = it.around[vertex] & (capacity > 0)
        keys = np.where(open_links, crowd, np.iinfo(np.int64).max)
        link = int(np.argmin(keys))
        through = rows[it.uses[rows, link]]
        # Bundles first: what leaves the most on the fullest link of the cycle.
        spare = np.where(it.uses[through], capacity, np.iinfo(np.int64).max).min(axis=1)
        for row in through[np.argsort(-spare, kind="stable")]:
            self.chosen.append(int(row))
            if self.run(capacity - it.uses[row], rows, wanted - 1):
                return True
            self.chosen.pop()
            if self.nodes > MAX_NODES:
                return False
            # No solution holds this cycle: the next ones need not try it.
            rows = rows[rows != row]
        fewer = capacity.copy()
        fewer[link] = 0
        return self.run(fewer, rows, wanted)


def _pack_large(counts: Counts, bound: int) -> Packing:
    """Take cycles one after the other, each both ways, from what is left."""
    left = counts.copy()
    halves: list[Cycle] = []
    while len(halves) < bound // 2:
        cycle = find_cycle(left)
        if cycle is None:
            break
        halves.append(cycle)
        for a, b in zip(cycle, cycle[1:] + cycle[:1], strict=True):
            left[a, b] -= 1
            left[b, a] -= 1
    if len(halves) < 2 <= bound // 2 and (two := split_four_regular(counts)):
        halves = two
    cycles = tuple(way for half in halves for way in (half, _reversed(half)))
    if not cycles and bound == 1 and (cycle := find_cycle(counts)):
        cycles = (cycle,)
    return Packing(cycles, bound, len(cycles) == bound)
