"""Two binary trees in which every rank has work: who passes on in one is a leaf in the other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.schedules.collective import Collective
from multiring.collectives.schedules.compose import backwards, from_root
from multiring.collectives.schedules.schedule import Schedule, Step
from multiring.errors import ArgumentError

__all__ = ["binary_tree", "double_tree", "parse_slices"]

#        3                  4        7 ranks; odd ones pass on in the first tree,
#     ╭──┴──╮            ╭──┴──╮     even ones in the second, which is the first
#     1     5            2     6     moved on by one rank (mirrored where the
#    ╭┴╮   ╭┴╮          ╭┴╮   ╭┴╮    number of ranks is even).
#    0 2   4 6          1 3   5 0    Chunk c of a tree is one level further
#                                    down, or up, in every step.


def double_tree(collective: Collective, n_ranks: int, n_slices: int = 4) -> Schedule:
    """Build an all_reduce, broadcast or reduce on two pipelined binary trees, half the vector on each.

    Parameters
    ----------
    collective : Collective
        all_reduce, broadcast or reduce. A root stands above both trees of the other ranks.
    n_ranks : int
        At least 1.
    n_slices : int
        Chunks that follow each other through each tree.

    Notes
    -----
    all_reduce: ``2 D + k - 1`` steps for trees of depth D about ``lg p`` and k slices, about ``2 n`` bytes sent per
    rank: the latency of a tree with nearly the bytes of a ring.
    Source: Sanders, Speck and Träff 2009, *Two-tree algorithms for full bandwidth broadcast, reduction and scan*.
    """
    if collective.name == "all_reduce":
        trees = _two_trees(n_ranks)
        down = max(_depths(tree).max() for tree in trees)
        waves = [wave for tree, parent in enumerate(trees) for wave in _waves(parent, tree, n_slices, down)]
        steps = _steps(wave for pair in waves for wave in pair)
        return Schedule(collective, n_ranks, 2 * n_slices, steps, "double_tree")
    # Rank 0 is the root; the trees are over ranks 1 to p - 1, and their roots hang below it.
    trees = [np.concatenate(([-1], tree + 1)) for tree in _two_trees(n_ranks - 1)] if n_ranks > 1 else []
    waves = [wave for tree, parent in enumerate(trees) for wave in _waves(parent, tree, n_slices, 0)]
    copies = Schedule(Collective("broadcast"), n_ranks, 2 * n_slices, _steps(down for _, down in waves), "double_tree")
    rooted = copies if collective.name == "broadcast" else backwards(copies, Collective("reduce"))
    return from_root(rooted, collective.root)


def binary_tree(n: int) -> NDArray[np.int64]:
    """Return the parents of an in-order binary tree of 0 to n - 1 whose leaves are the even numbers; -1 at its root.

    Counted from one, a node whose lowest set bit is b has its children b/2 away and its parent b away; parents beyond
    the end are replaced by their own, which lie before.
    """
    parents = np.full(n, -1, dtype=np.int64)
    for node in range(1, n + 1):
        bit = node & -node
        parent = (node ^ bit) | (bit << 1)
        parents[node - 1] = (parent if parent <= n else node ^ bit) - 1
    return parents


def parse_slices(text: str) -> dict[str, Any]:
    """Read what follows the colon in ``"double_tree:8"``."""
    if not text.isdecimal() or not int(text):
        raise ArgumentError(f"got {text!r} after its colon, wanted a number of slices")
    return {"n_slices": int(text)}


def _two_trees(n: int) -> list[NDArray[np.int64]]:
    first = binary_tree(n)
    place = (np.arange(n) + 1) % n if n % 2 else n - 1 - np.arange(n)
    second = np.full(n, -1, dtype=np.int64)
    second[place] = np.where(first < 0, -1, place[first])
    return [first, second]


def _depths(parents: NDArray[np.int64]) -> NDArray[np.int64]:
    depths, above = np.zeros(len(parents), dtype=np.int64), parents.copy()
    while (above >= 0).any():
        depths += above >= 0
        above = np.where(above >= 0, parents[above], -1)
    return depths


def _waves(
    parents: NDArray[np.int64], tree: int, n_slices: int, height: int
) -> list[tuple[tuple[int, Step], tuple[int, Step]]]:
    """For each level and slice: (when it goes up, the sums) and (when it goes down, the copies)."""
    depths = _depths(parents)
    waves = []
    for level in range(1, int(depths.max(initial=0)) + 1):
        child = np.flatnonzero(depths == level)
        for piece in range(n_slices):
            chunk = np.full(child.size, tree * n_slices + piece)
            up = Step(child, parents[child], chunk, True)
            down = Step(parents[child], child, chunk, False)
            waves.append(((piece + height - level, up), (piece + height + level - 1, down)))
    return waves


def _steps(timed: Iterable[tuple[int, Step]]) -> tuple[Step, ...]:
    """Join what happens at the same time."""
    by_time: dict[int, list[Step]] = {}
    for when, step in timed:
        by_time.setdefault(when, []).append(step)
    columns = ("src", "dst", "chunk", "reduce")
    return tuple(
        Step(*(np.concatenate([getattr(step, column) for step in by_time[when]]) for column in columns))
        for when in sorted(by_time)
    )
