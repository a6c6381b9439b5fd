"""Rules that need norms of whole tensors: LARS before the update, LAMB after its direction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.arrays import address_of
from multiring.collectives.sharded.buckets import Bucket, Piece
from multiring.collectives.sharded.passes import Blocks, Pass, add_square_row, square_sums_of
from multiring.collectives.sharded.rule import UpdateRule
from multiring.collectives.sharded.stream import FLOAT32, Stream
from multiring.collectives.sharded.updates import Updates

__all__ = ["Directed", "Layerwise"]


class Layerwise(Updates):
    """LARS: the rate of a tensor follows from the norms of its weight and its gradient."""

    needs_norms = True

    def __init__(
        self, streams: Sequence[Stream], rules: Sequence[UpdateRule], shapes: Sequence[tuple[int, ...]]
    ) -> None:
        super().__init__(streams, rules, shapes)
        kernel, n = rules[0].kernel, len(rules)
        self.blocks = Blocks(kernel.parameters, n)
        self.passes: dict[int, Pass] = {}
        for number, stream, key, tensor, piece, shard_place in self.pieces():
            wire, weight = self.weight_place(stream, piece)
            if number not in self.passes:
                self.passes[number] = Pass(kernel, stream.grad_wire, wire)
            master = stream.master_address(piece.place, shard_place)
            self.passes[number].add(
                key, stream.gradient_address(piece.place), weight, piece.count, self.blocks.address(tensor),
                [master, *self.state_addresses(number, piece, shard_place)],
            )  # fmt: skip
        self.sums = [*self.gradient_sums(lambda tensor: tensor), *self.weight_sums(lambda tensor: n + tensor)]

    def measure(self) -> NDArray[np.float64]:
        """Return this rank's part of the sums of the first round."""
        sums = np.zeros(2 * len(self.rules))
        for each in self.sums:
            each.add_to(sums)
        return sums

    def gradient_square(self, sums: NDArray[np.float64]) -> float:
        """Return the sum of squares of the whole gradient."""
        return float(sums[: len(self.rules)].sum())

    def begin(self, sums: NDArray[np.float64] | None, scale: float, done: int) -> None:
        """Set the parameters of a step."""
        super().begin(sums, scale, done)
        if sums is None:
            raise RuntimeError("LARS needs the sums of its first round")
        norms = np.sqrt(sums)
        constants = [rule.constants(done) for rule in self.distinct]
        for tensor, rule in enumerate(self.rules):
            given: Any = rule
            ratio = given.ratio(float(norms[len(self.rules) + tensor]), scale * float(norms[tensor]))
            shared = constants[self.block_of[tensor]]
            self.blocks.fill(tensor, {"scale": scale} | shared | {"local_rate": shared["local_rate"] * ratio})

    def run(self, number: int, bucket: Bucket) -> None:
        """Write a bucket's new masters, moments and wire weights."""
        if number in self.passes:
            self.passes[number].run((number, bucket.start))


class Directed(Updates):
    """LAMB, and what Adafactor shares with it: a direction first, whose norm over the tensor sets the step."""

    two_rounds = True

    def __init__(
        self, streams: Sequence[Stream], rules: Sequence[UpdateRule], shapes: Sequence[tuple[int, ...]]
    ) -> None:
        super().__init__(streams, rules, shapes)
        from multiring.kernels.rules import RULES

        n = len(rules)
        # The direction takes the place of the gradient, which is not needed again; a 16-bit one needs room.
        self.room = [None if s.grad_wire == FLOAT32 else np.zeros(s.layout.shard_elements, np.float32) for s in streams]
        self.steps = Blocks(RULES["follow"].parameters, n)
        self.follows: dict[int, Pass] = {}
        rows: list[tuple[int, int, int]] = []
        for number, stream, key, tensor, piece, shard_place in self.pieces():
            wire, weight = self.weight_place(stream, piece)
            if number not in self.follows:
                self.follows[number] = Pass(RULES["follow"], FLOAT32, wire)
            direction = self.direction_address(number, piece, shard_place)
            master = stream.master_address(piece.place, shard_place)
            self.follows[number].add(key, direction, weight, piece.count, self.steps.address(tensor), [master])
            add_square_row(rows, direction, piece.count, tensor, 4)
        self.direction_sums = square_sums_of({FLOAT32: rows})
        self.directions: list[tuple[int, Pass]] = []
        self.build_directions()
        self.sums = self.gradient_sums(lambda tensor: 0)

    def build_directions(self) -> None:
        """Make the passes that compute directions: LAMB's."""
        kernel = self.rules[0].kernel
        self.blocks = Blocks(kernel.parameters, len(self.distinct))
        passes: dict[int, Pass] = {}
        for number, stream, key, tensor, piece, shard_place in self.pieces():
            if number not in passes:
                passes[number] = Pass(kernel, stream.grad_wire, None)
                self.directions.append((number, passes[number]))
            master = stream.master_address(piece.place, shard_place)
            moments = self.state_addresses(number, piece, shard_place)
            passes[number].add(
                key, stream.gradient_address(piece.place), 0, piece.count,
                self.blocks.address(self.block_of[tensor]),
                [master, *moments, self.direction_address(number, piece, shard_place)],
            )  # fmt: skip
        self.norm_sums = self.weight_sums(lambda tensor: len(self.rules) + tensor)

    def direction_address(self, number: int, piece: Piece, shard_place: int) -> int:
        """Return where a piece's direction lies."""
        room = self.room[number]
        if room is None:
            return self.streams[number].gradient_address(piece.place)
        return address_of(room) + 4 * shard_place

    def measure(self) -> NDArray[np.float64]:
        """Return this rank's part of the sums of the first round."""
        sums = np.zeros(1)
        for each in self.sums:
            each.add_to(sums)
        return sums

    def begin(self, sums: NDArray[np.float64] | None, scale: float, done: int) -> None:
        """Set the parameters of a step."""
        super().begin(sums, scale, done)
        for block, rule in enumerate(self.distinct):
            self.blocks.fill(block, {"scale": scale} | rule.constants(done))

    def second(self) -> NDArray[np.float64] | None:
        """Return this rank's part of the sums of the second round."""
        for number, update in self.directions:
            for bucket in self.streams[number].layout.buckets:
                update.run((number, bucket.start))
        sums = np.zeros(2 * len(self.rules))
        for each in (*self.direction_sums, *self.norm_sums):
            each.add_to(sums)
        return sums

    def resume(self, sums: NDArray[np.float64]) -> None:
        """Go on with the sums of the second round."""
        norms = np.sqrt(sums)
        for tensor, rule in enumerate(self.rules):
            given: Any = rule
            step = given.step_size(self.done, float(norms[len(self.rules) + tensor]), float(norms[tensor]))
            self.steps.fill(tensor, {"step": step, "shrink": 1.0})

    def run(self, number: int, bucket: Bucket) -> None:
        """Write a bucket's new masters, moments and wire weights."""
        if number in self.follows:
            self.follows[number].run((number, bucket.start))
