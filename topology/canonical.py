"""An order of a machine's GPUs that does not depend on how they are numbered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["canonical_order"]

MAX_LEAVES = 400
"""Orders that are compared at most; a 4 x 4 torus has 128."""

Weights = Sequence[Sequence[int]]


def canonical_order(weights: Weights) -> list[int]:
    """Return the vertices of a weighted graph in an order that only the weights decide.

    Parameters
    ----------
    weights : sequence of sequence of int, shape (n, n)
        Symmetric; the diagonal colours the vertices.

    Returns
    -------
    list of int
        A permutation: ``weights`` in this order is the same matrix however the vertices were numbered.

    Notes
    -----
    Colours are refined by the colours and weights around each vertex; where vertices stay alike, each in turn is made
    special, and the least matrix wins. Past :data:`MAX_LEAVES` orders, which only graphs of more than 16 alike vertices
    reach in practice, the numbering decides.
    """
    search = _Search(weights)
    search.branch(_ranks([weights[vertex][vertex] for vertex in range(len(weights))]))
    return search.best_order


class _Search:
    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._leaves = 0
        self._best: list[int] | None = None
        self.best_order: list[int] = []

    def branch(self, colors: list[int]) -> None:
        colors = self._refine(colors)
        size = len(colors)
        cells: dict[int, list[int]] = {}
        for vertex, color in enumerate(colors):
            cells.setdefault(color, []).append(vertex)
        shared = next((cells[color] for color in sorted(cells) if len(cells[color]) > 1), None)
        if shared is None:
            order = sorted(range(size), key=colors.__getitem__)
            code = [self._weights[a][b] for a in order for b in order]
            self._leaves += 1
            if self._best is None or code < self._best:
                self._best, self.best_order = code, order
            return
        for vertex in shared[:1] if self._twins(shared) else shared:
            if self._leaves and self._leaves >= MAX_LEAVES:
                return
            special = [2 * color for color in colors]
            special[vertex] -= 1
            self.branch(special)

    def _twins(self, cell: Sequence[int]) -> bool:
        """Return whether the vertices can be exchanged without changing anything: then one stands for all."""
        first = cell[0]
        inside = {self._weights[a][b] for a in cell for b in cell if a != b}
        outside = [vertex for vertex in range(len(self._weights)) if vertex not in cell]
        return len(inside) <= 1 and all(
            self._weights[vertex][other] == self._weights[first][other] for vertex in cell for other in outside
        )

    def _refine(self, colors: list[int]) -> list[int]:
        colors = _ranks(colors)
        while True:
            seen = [
                (color, tuple(sorted(zip(colors, self._weights[vertex], strict=True))))
                for vertex, color in enumerate(colors)
            ]
            finer = _ranks(seen)
            if len(set(finer)) == len(set(colors)):
                return finer
            colors = finer


def _ranks(keys: Sequence[Any]) -> list[int]:
    rank = {key: at for at, key in enumerate(sorted(set(keys)))}
    return [rank[key] for key in keys]
