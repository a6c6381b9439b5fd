"""The multi-ring of PowerAI DDL and BlueConnect: reduce along each dimension of a box in turn, and gather back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import lcm, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.schedules.algorithms.bruck import bruck
from multiring.collectives.schedules.algorithms.direct import direct
from multiring.collectives.schedules.algorithms.halving_doubling import halving_doubling
from multiring.collectives.schedules.algorithms.multi_ring import bidirectional_ring, multi_ring
from multiring.collectives.schedules.algorithms.ring import ring
from multiring.collectives.schedules.collective import Collective
from multiring.collectives.schedules.compose import then, tile
from multiring.collectives.schedules.schedule import Schedule
from multiring.errors import ArgumentError, ScheduleError

__all__ = ["STAGES", "Box", "box", "factorisations", "parse_box"]

# 6 ranks as 2x3: rank = c0 + 2 c1            c1 = 0   c1 = 1   c1 = 2
#   1. rings along dimension 0 (columns)        0        2        4      n/2 each way
#   2. rings along dimension 1 (rows)           1        3        5      n/3 of the half
#   3. back along 1, back along 0
# After 1 and 2 rank (c0, c1) owns one chunk. All_reduce cuts the vector so that what a rank shares with others stays
# in one piece: chunk 3 c0 + c1, the rank's digits reversed. Reduce_scatter and all_gather keep the caller's order:
# chunk r on rank r, at the price of messages of several pieces.

STAGES = {
    "ring": ring,
    "halving_doubling": halving_doubling,
    "bruck": bruck,
    "direct": direct,
    "bidirectional_ring": bidirectional_ring,
    "multi_ring": multi_ring,
}
"""What a stage may be: serves reduce_scatter and all_gather on any number of ranks."""


@dataclass(frozen=True, slots=True)
class Box:
    """A factorisation of the ranks, and how each dimension is reduced and gathered.

    Parameters
    ----------
    dims : tuple of int
        Sizes; the first is that of neighbouring ranks: GPUs of a host, then hosts of a rack, then racks.
    stage_algorithms : tuple of str
        Keys of :data:`STAGES`: one for each dimension, or one for all.

    Raises
    ------
    ArgumentError
        If a size is below 1, a stage is not known, or there are not as many stages as dimensions.
    """

    dims: tuple[int, ...]
    stage_algorithms: tuple[str, ...] = ("ring",)

    def __post_init__(self) -> None:
        if not self.dims or min(self.dims) < 1:
            raise ArgumentError(f"box: got sizes {self.dims}, wanted at least one, each at least 1")
        if len(self.stage_algorithms) == 1:
            object.__setattr__(self, "stage_algorithms", self.stage_algorithms * len(self.dims))
        if len(self.stage_algorithms) != len(self.dims):
            raise ArgumentError(
                f"box {self}: got {len(self.stage_algorithms)} stage algorithms for {len(self.dims)} dimensions, "
                "wanted one, or one for each"
            )
        for stage in self.stage_algorithms:
            if stage not in STAGES:
                raise ArgumentError(f"box {self}: got stage algorithm {stage!r}, wanted one of {', '.join(STAGES)}")

    @classmethod
    def parse(cls, text: str) -> Box:
        """Read ``"4x8x8"`` or ``"4x8x8:ring,ring,halving_doubling"``.

        ``"nodes"`` in place of sizes is for those who know a topology: two sizes, 1x1, that they replace.

        Raises
        ------
        ArgumentError
            If the text is something else.
        """
        sizes, _, stages = text.partition(":")
        sizes = "1x1" if sizes == "nodes" else sizes
        dims = sizes.lower().split("x")
        if not all(size.isdecimal() for size in dims):
            raise ArgumentError(f"box: got {text!r}, wanted sizes such as 4x8x8 or 4x8x8:ring,ring,halving_doubling")
        return cls(tuple(map(int, dims)), tuple(part.strip() for part in stages.split(",")) if stages else ("ring",))

    def __str__(self) -> str:
        stages = self.stage_algorithms
        named = stages[:1] if len(set(stages)) == 1 else stages
        return "x".join(map(str, self.dims)) + ("" if named == ("ring",) else ":" + ",".join(named))


def box(
    collective: Collective,
    n_ranks: int,
    shape: Box | None = None,
    sweep: Sequence[int] | None = None,
    algorithm: str = "box",
) -> Schedule:
    """Build an all_reduce, reduce_scatter or all_gather over a box.

    Parameters
    ----------
    collective : Collective
        all_reduce, reduce_scatter or all_gather.
    n_ranks : int
        The product of the sizes.
    shape : Box, optional
        The factorisation; otherwise the two factors that are nearest to each other.
    sweep : sequence of int, optional
        The order in which dimensions are reduced; 0, 1, ... otherwise: the nearest ranks first, where most bytes move.
    algorithm : str
        The name that the schedule carries.

    Raises
    ------
    ScheduleError
        If the product of the sizes is another number.

    Notes
    -----
    With ring stages ``2 sum(p_i - 1)`` steps, and ``2 (p-1)/p n`` bytes sent per rank whatever the factorisation:
    510 steps for 256 ranks as one ring, 34 as 4x8x8, 16 as 2x2x2x2x2x2x2x2 (which is halving and doubling).
    Dimension i carries ``2 (p_i - 1)/p_i n/(p_0 ... p_{i-1})`` bytes.
    Source: Cho et al. 2017, *PowerAI DDL*; Cho et al. 2019, *BlueConnect*.
    """
    shape = shape or Box(_squarest(n_ranks))
    if prod(shape.dims) != n_ranks:
        raise ScheduleError(
            f"box {shape}: got {n_ranks} ranks, wanted {prod(shape.dims)}, the product of its sizes "
            f"({', '.join('x'.join(map(str, dims)) for dims in _examples(n_ranks))} would fit)"
        )
    order = list(range(len(shape.dims))) if sweep is None else list(sweep)
    gathers = [STAGES[stage](Collective("all_gather"), size) for stage, size in _stages(shape)]
    scatters = [STAGES[stage](Collective("reduce_scatter"), size) for stage, size in _stages(shape)]
    pieces = lcm(*(stage.n_chunks // stage.n_ranks for stage in gathers))
    coordinates = _coordinates(shape.dims)
    if collective.name == "all_reduce":
        # Digits in the order of the sweep, the first one the most significant.
        digits = tuple(coordinates[dim] for dim in order), tuple(shape.dims[dim] for dim in order)
        owned = np.asarray(np.ravel_multi_index(*digits), dtype=np.int64)
    else:
        owned = np.arange(n_ranks)
    down = [_stage(scatters[dim], dim, order[:at], coordinates, owned, pieces) for at, dim in enumerate(order)]
    up = [_stage(gathers[dim], dim, order[:at], coordinates, owned, pieces) for at, dim in enumerate(order)]
    parts = {"reduce_scatter": down, "all_gather": up[::-1]}.get(collective.name, down + up[::-1])
    return then(*parts, collective=collective, algorithm=algorithm)


def parse_box(text: str) -> dict[str, Any]:
    """Read what follows the colon in ``"box:4x8x8:ring,ring,halving_doubling"``."""
    return {"shape": Box.parse(text)}


def factorisations(n_ranks: int) -> Iterator[tuple[int, ...]]:
    """Yield every ordered way to write a number as a product of factors above 1: what a box can be."""
    if n_ranks == 1:
        yield (1,)
        return
    yield (n_ranks,)
    for first in range(2, n_ranks // 2 + 1):
        if n_ranks % first == 0:
            for rest in factorisations(n_ranks // first):
                yield (first, *rest)


def _stage(
    schedule: Schedule,
    dim: int,
    done: list[int],
    coordinates: NDArray[np.int64],
    owned: NDArray[np.int64],
    pieces: int,
) -> Schedule:
    """Place a stage on every line along ``dim``: each shares what the ranks own that agree with it in ``done``."""
    n_ranks, size = owned.size, schedule.n_ranks
    # Lines: ranks that differ in `dim` only. Sorted so that those with equal digits in `done` are neighbours.
    others = [d for d in range(len(coordinates)) if d != dim and d not in done]
    rank = np.lexsort((coordinates[dim], *(coordinates[d] for d in others), *(coordinates[d] for d in done)))
    lines = rank.reshape(-1, size)
    blocks = 1
    for d in done:
        blocks *= int(coordinates[d].max()) + 1
    # Within a block, the parts that a line shares for its g-th rank: owned by the block's ranks with digit g.
    within = rank.reshape(blocks, -1, size).transpose(0, 2, 1)
    parts = np.sort(owned[within], axis=2)
    chunks = (parts[..., None] * pieces + np.arange(pieces)).reshape(blocks, schedule.n_chunks, -1)
    chunks = np.repeat(chunks, len(lines) // blocks, axis=0)
    return tile(schedule, lines, chunks, n_ranks, n_ranks * pieces)


def _stages(shape: Box) -> Iterator[tuple[str, int]]:
    return zip(shape.stage_algorithms, shape.dims, strict=True)


def _coordinates(dims: tuple[int, ...]) -> NDArray[np.int64]:
    """Digits of every rank, one row for each dimension; the first dimension's vary fastest."""
    return np.array(np.unravel_index(np.arange(prod(dims)), dims[::-1]), dtype=np.int64)[::-1]


def _squarest(n_ranks: int) -> tuple[int, ...]:
    first = max(size for size in range(1, int(n_ranks**0.5) + 1) if n_ranks % size == 0)
    return (first, n_ranks // first) if first > 1 else (n_ranks,)


def _examples(n_ranks: int) -> list[tuple[int, ...]]:
    return list({(n_ranks,): None, _squarest(n_ranks): None})
