"""Gradients of several micro-batches, added up in float32 before anything is sent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.arrays import View
from multiring.kernels.dtypes import DTYPES

__all__ = ["Accumulator"]


class Accumulator:
    """Sums of each parameter's gradients.

    Parameters
    ----------
    shapes : sequence of shape
    kind : {"mean", "sum"}

    Attributes
    ----------
    count : int
        Micro-batches so far.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], kind: str) -> None:
        self.count = 0
        self._mean = kind == "mean"
        self._shapes = shapes
        self._sums: list[NDArray[np.float32]] = []
        self._batches = 1

    @property
    def factor(self) -> float:
        """What the summed gradient is multiplied by."""
        return 1.0 / self._batches if self._mean else 1.0

    def add(self, gradients: Sequence[View | None]) -> None:
        """Add a micro-batch."""
        if not self._sums:
            self._sums = [np.zeros(shape, np.float32) for shape in self._shapes]
        for tensor, view in enumerate(gradients):
            self._add(tensor, view, first=self.count == 0)
        self.count += 1
        self._batches = self.count

    def add_one(self, tensor: int, view: View) -> View:
        """Add one parameter's gradient of the last micro-batch, which counts once, and return the sum."""
        self._batches = self.count + 1
        self._add(tensor, view, first=False)
        return View(self._sums[tensor], None, DTYPES["float32"])

    def _add(self, tensor: int, view: View | None, first: bool) -> None:
        total = self._sums[tensor]
        if view is None:
            if first:
                total[...] = 0
        elif first:
            total[...] = view.array
        else:
            total += view.array.astype(np.float32, copy=False)

    def views(self) -> list[View | None]:
        """Return the sums."""
        return [View(total, None, DTYPES["float32"]) for total in self._sums]

    def clear(self) -> None:
        """Begin anew; the memory is kept."""
        self.count, self._batches = 0, 1
