"""Adafactor: second moments of matrices as row and column means, summed over the shards of all tensors at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.arrays import address_of
from multiring.collectives.sharded.buckets import Piece
from multiring.collectives.sharded.layerwise import Directed
from multiring.collectives.sharded.passes import Blocks, Pass
from multiring.collectives.sharded.rule import UpdateRule
from multiring.collectives.sharded.rules import Adafactor
from multiring.collectives.sharded.stream import Stream

__all__ = ["Factored"]

BLOCK_ELEMENTS = 1 << 16
"""Elements whose float64 squares are held at a time."""


class Factored(Directed):
    """The passes of Adafactor.

    The first round sums, over all tensors, squares of weights and row and column sums of squared gradients; the second
    sums squares of directions.
    """

    needs_norms = True

    def __init__(
        self, streams: Sequence[Stream], rules: Sequence[UpdateRule], shapes: Sequence[tuple[int, ...]]
    ) -> None:
        self.matrices = [t for t, shape in enumerate(shapes) if len(shape) == 2 and 0 not in shape]
        is_matrix = set(self.matrices)
        # Places of the moments of what is not a matrix, without gaps, and of the factors of matrices.
        self._places: dict[tuple[int, int], int] = {}
        counts = []
        for number, stream in enumerate(streams):
            taken = 0
            for piece, shard_place in stream.layout.shard_pieces(stream.rank):
                if stream.members[piece.tensor] not in is_matrix:
                    self._places[number, shard_place] = taken
                    taken += piece.count
            counts.append(taken)
        self.rows = {t: np.zeros(shapes[t][0], np.float32) for t in self.matrices}
        self.columns = {t: np.zeros(shapes[t][1], np.float32) for t in self.matrices}
        self._roots = {t: np.zeros(shapes[t][1], np.float32) for t in self.matrices}
        self.row_blocks: dict[int, Blocks] = {}
        super().__init__(streams, rules, shapes)
        self.state = {"second": [np.zeros(n, np.float32) for n in counts]}
        self.directions.clear()
        self._build(is_matrix)
        n = 1 + len(rules)
        self._row_at, self._column_at = {}, {}
        for tensor in self.matrices:
            self._row_at[tensor], n = n, n + shapes[tensor][0]
            self._column_at[tensor], n = n, n + shapes[tensor][1]
        self._n_sums = n
        self.norm_sums = self.weight_sums(lambda tensor: 1 + tensor)

    def build_directions(self) -> None:
        """Wait for the places of the moments."""

    def _build(self, is_matrix: set[int]) -> None:
        from multiring.kernels.rules import RULES

        plain, row_kernel = RULES["adafactor_direction"], RULES["adafactor_matrix_direction"]
        self.blocks = Blocks(plain.parameters, len(self.distinct))
        passes: dict[Any, Pass] = {}
        for number, stream, key, tensor, piece, shard_place in self.pieces():
            kernel = row_kernel if tensor in is_matrix else plain
            if (number, kernel.name) not in passes:
                made = passes[number, kernel.name] = Pass(kernel, stream.grad_wire, None)
                self.directions.append((number, made))
            update = passes[number, kernel.name]
            gradient, direction = (
                stream.gradient_address(piece.place),
                self.direction_address(number, piece, shard_place),
            )
            if tensor not in is_matrix:
                block = self.blocks.address(self.block_of[tensor])
                moment = self.state_addresses(number, piece, shard_place)
                update.add(key, gradient, 0, piece.count, block, [*moment, direction])
                continue
            width = self.shapes[tensor][1]
            blocks = self.row_blocks.setdefault(tensor, Blocks(row_kernel.parameters, self.shapes[tensor][0]))
            columns, itemsize = address_of(self._roots[tensor]), stream.grad_wire.itemsize
            at = piece.first
            while at < piece.first + piece.count:
                row, column = divmod(at, width)
                count = min(width - column, piece.first + piece.count - at)
                skip = at - piece.first
                update.add(
                    key, gradient + skip * itemsize, 0, count, blocks.address(row),
                    [columns + 4 * column, direction + 4 * skip],
                )  # fmt: skip
                at += count

    def state_place(self, name: str, number: int, piece: Piece, shard_place: int) -> int:
        """Return where a piece starts in a state array; -1: it has none."""
        return self._places.get((number, shard_place), -1)

    def has_moment(self, tensor: int) -> bool:
        """Return whether a tensor has a moment for each of its elements."""
        return tensor not in self.rows

    def replicated(self) -> dict[tuple[str, int], NDArray[np.float32]]:
        """Return the row and column means of every matrix."""
        found = {("rows", tensor): self.rows[tensor] for tensor in self.matrices}
        return found | {("columns", tensor): self.columns[tensor] for tensor in self.matrices}

    def measure(self) -> NDArray[np.float64]:
        """Return this rank's part of the sums of the first round."""
        sums = np.zeros(self._n_sums)
        for each in (*self.sums, *self.norm_sums):
            each.add_to(sums)
        for _, stream, _, tensor, piece, _ in self.pieces():
            if tensor in self._row_at:
                self._add_factors(sums, stream, tensor, piece)
        return sums

    def _add_factors(self, sums: NDArray[np.float64], stream: Stream, tensor: int, piece: Piece) -> None:
        """Add the row and column sums of a piece's squares."""
        n_rows, width = self.shapes[tensor]
        rows = sums[self._row_at[tensor] : self._row_at[tensor] + n_rows]
        columns = sums[self._column_at[tensor] : self._column_at[tensor] + width]
        gradient = stream.gradients[piece.place : piece.place + piece.count]
        at, end = piece.first, piece.first + piece.count
        while at < end:
            row, column = divmod(at, width)
            if column or end - at < width:  # the end of a row, or the start of one
                count, n_whole = min(width - column, end - at), 1
            else:
                n_whole = max(1, min((end - at) // width, BLOCK_ELEMENTS // width))
                count = n_whole * width
            part = gradient[at - piece.first : at - piece.first + count].astype(np.float64).reshape(n_whole, -1)
            squares = part * part
            rows[row : row + n_whole] += squares.sum(axis=1)
            columns[column : column + squares.shape[1]] += squares.sum(axis=0)
            at += count

    def begin(self, sums: NDArray[np.float64] | None, scale: float, done: int) -> None:
        """Set the parameters of a step."""
        super().begin(sums, scale, done)
        if sums is None:
            raise RuntimeError("Adafactor needs the sums of its first round")
        self._weight_squares = sums[1 : 1 + len(self.rules)].copy()
        for tensor in self.matrices:
            rule = cast(Adafactor, self.rules[tensor])
            n_rows, width = self.shapes[tensor]
            keep, floor = rule.share(done), rule.eps[0]
            row_sums = sums[self._row_at[tensor] : self._row_at[tensor] + n_rows]
            column_sums = sums[self._column_at[tensor] : self._column_at[tensor] + width]
            for factor, totals, n in (
                (self.rows[tensor], row_sums, width),
                (self.columns[tensor], column_sums, n_rows),
            ):
                mean = totals * (scale * scale) / n + floor
                factor[...] = keep * factor.astype(np.float64) + (1 - keep) * mean
            blocks = self.row_blocks.get(tensor)
            if blocks is not None:
                wide = self.rows[tensor].astype(np.float64)
                blocks.values[:, 0] = scale
                blocks.values[:, 1] = np.sqrt(wide.mean() / wide)
            self._roots[tensor][...] = 1 / np.sqrt(self.columns[tensor].astype(np.float64))

    def resume(self, sums: NDArray[np.float64]) -> None:
        """Go on with the sums of the second round."""
        for tensor, each in enumerate(self.rules):
            rule, count = cast(Adafactor, each), int(np.prod(self.shapes[tensor], dtype=np.int64))
            rate = rule.rate(self.done, rms(float(self._weight_squares[tensor]), count))
            clipped = max(1.0, rms(float(sums[tensor]), count) / rule.clip)
            self.steps.fill(tensor, {"step": rate / clipped, "shrink": 1 - rate * rule.weight_decay})

    def second(self) -> NDArray[np.float64] | None:
        """Return this rank's part of the sums of the second round."""
        for number, update in self.directions:
            for bucket in self.streams[number].layout.buckets:
                update.run((number, bucket.start))
        sums = np.zeros(len(self.rules))
        for each in self.direction_sums:
            each.add_to(sums)
        return sums


def rms(square: float, count: int) -> float:
    """Return the root mean square of ``count`` numbers; 0 of none."""
    return math.sqrt(square / count) if count else 0.0
