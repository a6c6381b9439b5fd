"""One step: what the ranks agree on before anything is written, and what follows from it."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.arrays import View
from multiring.collectives.sharded.pipeline import Pipeline
from multiring.collectives.sharded.stream import Stream
from multiring.collectives.sharded.updates import Updates

__all__ = ["StepResult", "Stepper"]

_log = logging.getLogger("multiring.sharded")


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step did; the same on every rank.

    Attributes
    ----------
    applied : bool
        False: the gradient had an inf or a NaN, and nothing was changed.
    gradient_norm : float or None
        Of the whole averaged gradient before clipping; None where it was not needed.
    scale : float
        What clipping multiplied the gradient by.
    """

    applied: bool
    gradient_norm: float | None
    scale: float


class Stepper:
    """Does steps, and counts them.

    Parameters
    ----------
    group : Communicator
        Of the ranks that share the state.
    streams : sequence of Stream
    updates : Updates
    pipeline : Pipeline
    clip_norm : float or None
    norm : {"l2", "max"}
    skip_nonfinite : bool

    Attributes
    ----------
    done, skipped : int
        Updates, and steps left out.
    early : bool
        Whether a bucket may be updated before all are reduced.
    """

    def __init__(
        self,
        group: Any,
        streams: Sequence[Stream],
        updates: Updates,
        pipeline: Pipeline,
        clip_norm: float | None,
        norm: str,
        skip_nonfinite: bool,
    ) -> None:
        self._group, self._streams, self._updates, self._pipeline = group, streams, updates, pipeline
        self._clip_norm, self._norm, self._skip_nonfinite = clip_norm, norm, skip_nonfinite
        self._needs_sums = clip_norm is not None or skip_nonfinite or updates.needs_norms
        self.early = not self._needs_sums and not updates.two_rounds
        self.done = self.skipped = 0
        self._begun = False

    def reset(self) -> None:
        """Begin a step."""
        self._begun = False
        self._pipeline.reset()

    def update_reduced(self, factor: float) -> None:
        """Update what is reduced by now, during the backward pass.

        Parameters
        ----------
        factor : float
            What the gradient is multiplied by, for its micro-batches.
        """
        # Where the weights are the caller's own, the backward pass still reads them.
        if self.early and not any(stream.aliased for stream in self._streams):
            self._begin(None, factor)
            self._pipeline.update_reduced(self._updates)

    def step(self, views: Sequence[View | None] | None, factor: float) -> StepResult:
        """Do a step; ``views`` is None where the gradients are packed already."""
        result, pipeline = StepResult(True, None, 1.0), self._pipeline
        if self.early:
            self._begin(None, factor)
        else:
            for at in range(len(pipeline.buckets)):
                pipeline.start(at, views)
            for at in range(len(pipeline.buckets)):
                pipeline.finish(at)
            result = self._agree(factor)
            if not result.applied:
                return result
        pipeline.update_all(self._updates, views)
        self.done += 1
        return result

    def _begin(self, sums: NDArray[np.float64] | None, scale: float) -> None:
        if not self._begun:
            self._begun = True
            self._updates.begin(sums, scale, self.done)

    def _agree(self, factor: float) -> StepResult:
        """Sum norms over all shards, once or twice; decide together."""
        updates = self._updates
        norm, scale, sums = None, 1.0, None
        if self._needs_sums:
            sums = updates.measure()
            self._group.all_reduce(sums)
            square = updates.gradient_square(sums)
            norm = factor * math.sqrt(square) if square >= 0 else math.nan
            if self._skip_nonfinite and not math.isfinite(norm):
                self.skipped += 1
                _log.warning(
                    "step %d skipped on all ranks: the gradient has an inf or a NaN (%d skipped so far)",
                    self.done + self.skipped,
                    self.skipped,
                )
                return StepResult(False, norm, 0.0)
            if self._clip_norm is not None:
                if self._norm == "max":
                    norm = factor * self._largest()
                scale = min(1.0, self._clip_norm / (norm + 1e-6))
        self._begin(sums, scale * factor)
        second = updates.second()
        if second is not None:
            self._group.all_reduce(second)
            updates.resume(second)
        return StepResult(True, norm, scale)

    def _largest(self) -> float:
        """Return the largest absolute value of the averaged gradient of all parameters."""
        largest = np.zeros(1)
        for stream in self._streams:
            for piece, _ in stream.layout.shard_pieces(stream.rank):
                values = stream.gradients[piece.place : piece.place + piece.count].astype(np.float32)
                largest[0] = np.maximum(largest[0], np.abs(values).max())
        self._group.all_reduce(largest, op="max")
        return float(largest[0])
