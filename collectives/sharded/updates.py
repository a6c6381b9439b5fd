"""What a rule does in a step, over the pieces of this rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.arrays import address_of
from multiring.collectives.sharded.buckets import Bucket, Piece
from multiring.collectives.sharded.passes import Blocks, Key, Pass, add_square_row, square_sums_of
from multiring.collectives.sharded.rule import UpdateRule
from multiring.collectives.sharded.stream import FLOAT32, Stream
from multiring.kernels.dtypes import DType

__all__ = ["Elementwise", "Updates"]


class Updates:
    """What a rule does in a step: measure, agree, update.

    Parameters
    ----------
    streams : sequence of Stream
    rules : sequence of UpdateRule
        Of each tensor.
    shapes : sequence of shape
        Of each tensor.

    Attributes
    ----------
    state : dict of str to list of ndarray
        This rank's moments, one array for each stream.
    needs_norms : bool
        Whether nothing may be written before :meth:`measure` was summed over the ranks.
    two_rounds : bool
        Whether there is a second round of sums.
    """

    needs_norms = False
    two_rounds = False

    def __init__(
        self, streams: Sequence[Stream], rules: Sequence[UpdateRule], shapes: Sequence[tuple[int, ...]]
    ) -> None:
        self.streams, self.rules, self.shapes = streams, rules, shapes
        self.distinct = list(dict.fromkeys(rules)) if _hashable(rules) else _distinct(rules)
        self.block_of = [self.distinct.index(rule) for rule in rules]
        self.state: dict[str, list[NDArray[np.float32]]] = {
            name: [np.zeros(s.layout.shard_elements, np.float32) for s in streams] for name in rules[0].state_names()
        }
        self.done = 0
        self.scale = 1.0

    # --- what a subclass may change ---------------------------------------------------------------------------------

    def state_place(self, name: str, number: int, piece: Piece, shard_place: int) -> int:
        """Return where a piece starts in a state array; -1: it has none."""
        return shard_place

    def has_moment(self, tensor: int) -> bool:
        """Return whether a tensor has a moment for each of its elements."""
        return True

    def replicated(self) -> dict[tuple[str, int], NDArray[np.float32]]:
        """Return the state that every rank holds whole, by (kind, tensor); to be read and written."""
        return {}

    def measure(self) -> NDArray[np.float64]:
        """Return this rank's part of the sums of the first round; the gradient's squares come first."""
        raise NotImplementedError

    def gradient_square(self, sums: NDArray[np.float64]) -> float:
        """Return the sum of squares of the whole gradient."""
        return float(sums[0])

    def begin(self, sums: NDArray[np.float64] | None, scale: float, done: int) -> None:
        """Set the parameters of a step.

        Parameters
        ----------
        sums : ndarray or None
            Of the first round, over all ranks; None where there was none.
        scale : float
            What gradients are multiplied by.
        done : int
            Updates before this one.
        """
        self.scale, self.done = scale, done

    def second(self) -> NDArray[np.float64] | None:
        """Return this rank's part of the sums of a second round, or None where there is none."""
        return None

    def resume(self, sums: NDArray[np.float64]) -> None:
        """Go on with the sums of the second round."""

    def run(self, number: int, bucket: Bucket) -> None:
        """Write a bucket's new masters, moments and wire weights."""
        raise NotImplementedError

    # --- what they share --------------------------------------------------------------------------------------------

    def pieces(self) -> Iterable[tuple[int, Stream, Key, int, Piece, int]]:
        """Return (stream's number, stream, key, tensor, piece, place in the state) of all pieces of this rank."""
        for number, stream in enumerate(self.streams):
            for bucket in stream.layout.buckets:
                start, stop = stream.layout.shard_of(bucket, stream.rank)
                for piece in stream.layout.pieces(start, stop):
                    shard_place = stream.layout.shard_place(bucket) + piece.place - start
                    yield number, stream, (number, bucket.start), stream.members[piece.tensor], piece, shard_place

    def state_addresses(self, number: int, piece: Piece, shard_place: int) -> list[int]:
        """Return the addresses of a piece's moments."""
        return [
            address_of(arrays[number]) + 4 * self.state_place(name, number, piece, shard_place)
            for name, arrays in self.state.items()
        ]

    def weight_place(self, stream: Stream, piece: Piece) -> tuple[DType | None, int]:
        """Return the type and address of the wire weight that a kernel must write; None where the master is it."""
        if stream.masters is None:
            return None, 0
        return stream.weight_wire, stream.weight_address(piece.place)

    def gradient_sums(self, place_of: Callable[[int], int]) -> list[Any]:
        """Return the sums of squares of this rank's gradients; ``place_of(tensor)`` says where each goes."""
        rows: dict[DType, list[tuple[int, int, int]]] = {}
        for _, stream, _, tensor, piece, _ in self.pieces():
            add_square_row(
                rows.setdefault(stream.grad_wire, []),
                stream.gradient_address(piece.place), piece.count, place_of(tensor), stream.grad_wire.itemsize,
            )  # fmt: skip
        return square_sums_of(rows)

    def weight_sums(self, place_of: Callable[[int], int]) -> list[Any]:
        """Return the sums of squares of this rank's masters."""
        rows: list[tuple[int, int, int]] = []
        for _, stream, _, tensor, piece, shard_place in self.pieces():
            add_square_row(rows, stream.master_address(piece.place, shard_place), piece.count, place_of(tensor), 4)
        return square_sums_of({FLOAT32: rows})


def _hashable(rules: Sequence[UpdateRule]) -> bool:
    try:
        hash(tuple(rules))
    except TypeError:
        return False
    return True


def _distinct(rules: Sequence[UpdateRule]) -> list[UpdateRule]:
    found: list[UpdateRule] = []
    for rule in rules:
        if rule not in found:
            found.append(rule)
    return found


class Elementwise(Updates):
    """Rules whose elements do not depend on each other: SGD, Adam, AdamW, a user's."""

    def __init__(
        self, streams: Sequence[Stream], rules: Sequence[UpdateRule], shapes: Sequence[tuple[int, ...]]
    ) -> None:
        super().__init__(streams, rules, shapes)
        self.blocks = [Blocks(rule.kernel.parameters, 1) for rule in self.distinct]
        self.passes: dict[Any, Pass] = {}
        for number, stream, key, tensor, piece, shard_place in self.pieces():
            block = self.block_of[tensor]
            kernel = self.distinct[block].kernel
            wire, weight = self.weight_place(stream, piece)
            update = self.passes.get((number, kernel.name))
            if update is None:
                update = self.passes[number, kernel.name] = Pass(kernel, stream.grad_wire, wire)
            master = stream.master_address(piece.place, shard_place)
            update.add(
                key, stream.gradient_address(piece.place), weight, piece.count, self.blocks[block].address(0),
                [master, *self.state_addresses(number, piece, shard_place)],
            )  # fmt: skip
        self.sums = self.gradient_sums(lambda tensor: 0)

    def measure(self) -> NDArray[np.float64]:
        """Return this rank's part of the sums of the first round."""
        sums = np.zeros(1)
        for each in self.sums:
            each.add_to(sums)
        return sums

    def begin(self, sums: NDArray[np.float64] | None, scale: float, done: int) -> None:
        """Set the parameters of a step."""
        super().begin(sums, scale, done)
        for rule, block in zip(self.distinct, self.blocks, strict=True):
            block.fill(0, {"scale": scale} | rule.constants(done))

    def run(self, number: int, bucket: Bucket) -> None:
        """Write a bucket's new masters, moments and wire weights."""
        for (owner, _), update in self.passes.items():
            if owner == number:
                update.run((number, bucket.start))
