"""From a rule to passes over this rank's shard: tables of pieces, and the parameters of each step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.arrays import address_of
from multiring.collectives.sharded.buckets import Bucket, Piece
from multiring.collectives.sharded.rules import UpdateRule
from multiring.collectives.sharded.stream import FLOAT32, Stream
from multiring.kernels.dtypes import DType

__all__ = ["Blocks", "Elementwise", "Pass", "Updates"]

Key = tuple[int, int]
"""(a stream's number, a bucket's start)."""


class Blocks:
    """Parameters of a kernel: a row of float32 for each set that a piece may have.

    Parameters
    ----------
    names : tuple of str
        The kernel's parameters.
    n_blocks : int
    """

    def __init__(self, names: tuple[str, ...], n_blocks: int) -> None:
        self.names = names
        self.values: NDArray[np.float32] = np.zeros((max(n_blocks, 1), max(len(names), 1)), np.float32)

    def address(self, block: int) -> int:
        """Return the address of a row."""
        return address_of(self.values) + block * self.values.strides[0]

    def fill(self, block: int, given: dict[str, float]) -> None:
        """Set a row; what the kernel does not have is left out."""
        self.values[block, : len(self.names)] = [given[name] for name in self.names]


class Pass:
    """One kernel over all of a rank's pieces, bucket by bucket.

    Parameters
    ----------
    kernel : multiring.kernels.rules.Rule
    gradient : DType
    weight : DType or None
        Of the wire weight, where the kernel writes one.
    """

    def __init__(self, kernel: Any, gradient: DType, weight: DType | None) -> None:
        from multiring.kernels.update import row_words, update_kernel

        self._run = update_kernel(kernel, gradient, weight)
        self._words = row_words(kernel)
        self._rows: dict[Key, list[list[int]]] = {}
        self._tables: dict[Key, NDArray[np.int64]] = {}
        self._steps = (gradient.itemsize, weight.itemsize if weight else 0)

    def add(self, key: Key, gradient: int, weight: int, count: int, parameters: int, arrays: Iterable[int]) -> None:
        """Append a piece: addresses, and its elements. One that carries on where the last ended is joined to it."""
        row = [gradient, weight, count, 0, parameters, *arrays]
        rows = self._rows.setdefault(key, [])
        if rows:
            last = rows[-1]
            n = last[2]
            follows = gradient == last[0] + n * self._steps[0] and weight == last[1] + n * self._steps[1]
            if (
                follows
                and parameters == last[4]
                and all(a == b + 4 * n for a, b in zip(row[5:], last[5:], strict=True))
            ):
                last[2] += count
                return
        rows.append(row)

    def run(self, key: Key) -> None:
        """Work through a bucket's pieces."""
        table = self._tables.get(key)
        if table is None:
            table = np.array(self._rows.get(key, []), np.int64).reshape(-1, self._words)
            self._tables[key] = table
        if len(table):
            self._run(address_of(table), len(table))


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
    """

    needs_norms = False

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


def add_square_row(rows: list[tuple[int, int, int]], address: int, count: int, place: int, itemsize: int) -> None:
    """Append a span; one that carries on where the last ended is joined to it."""
    if rows and rows[-1][2] == place and rows[-1][0] + rows[-1][1] * itemsize == address:
        rows[-1] = (rows[-1][0], rows[-1][1] + count, place)
    else:
        rows.append((address, count, place))


def square_sums_of(rows: dict[DType, list[tuple[int, int, int]]]) -> list[Any]:
    """Return the native sums of spans, one object for each element type."""
    from multiring.kernels.update import SquareSums

    return [SquareSums(listed, dtype) for dtype, listed in rows.items() if listed]


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
        sums = np.zeros(1)
        for each in self.sums:
            each.add_to(sums)
        return sums

    def begin(self, sums: NDArray[np.float64] | None, scale: float, done: int) -> None:
        super().begin(sums, scale, done)
        for rule, block in zip(self.distinct, self.blocks, strict=True):
            block.fill(0, {"scale": scale} | rule.constants(done))

    def run(self, number: int, bucket: Bucket) -> None:
        for (owner, _), update in self.passes.items():
            if owner == number:
                update.run((number, bucket.start))


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
        sums = np.zeros(2 * len(self.rules))
        for each in self.sums:
            each.add_to(sums)
        return sums

    def gradient_square(self, sums: NDArray[np.float64]) -> float:
        return float(sums[: len(self.rules)].sum())

    def begin(self, sums: NDArray[np.float64] | None, scale: float, done: int) -> None:
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
        if number in self.passes:
            self.passes[number].run((number, bucket.start))


class Directed(Updates):
    """LAMB, and what Adafactor shares with it: a direction first, whose norm over the tensor sets the step."""

    needs_norms = False

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
        sums = np.zeros(1)
        for each in self.sums:
            each.add_to(sums)
        return sums

    def begin(self, sums: NDArray[np.float64] | None, scale: float, done: int) -> None:
        super().begin(sums, scale, done)
        for block, rule in enumerate(self.distinct):
            self.blocks.fill(block, {"scale": scale} | rule.constants(done))

    def second(self) -> NDArray[np.float64] | None:
        for number, update in self.directions:
            for bucket in self.streams[number].layout.buckets:
                update.run((number, bucket.start))
        sums = np.zeros(2 * len(self.rules))
        for each in (*self.direction_sums, *self.norm_sums):
            each.add_to(sums)
        return sums

    def resume(self, sums: NDArray[np.float64]) -> None:
        norms = np.sqrt(sums)
        for tensor, rule in enumerate(self.rules):
            given: Any = rule
            step = given.step_size(self.done, float(norms[len(self.rules) + tensor]), float(norms[tensor]))
            self.steps.fill(tensor, {"step": step, "shrink": 1.0})

    def run(self, number: int, bucket: Bucket) -> None:
        if number in self.follows:
            self.follows[number].run((number, bucket.start))


def updates_of(streams: Sequence[Stream], rules: Sequence[UpdateRule], shapes: Sequence[tuple[int, ...]]) -> Updates:
    """Return what the rules of the tensors do in a step."""
    norms = rules[0].norms
    if "factors" in norms:
        from multiring.collectives.sharded.factored import Factored

        return Factored(streams, rules, shapes)
    if "direction" in norms:
        return Directed(streams, rules, shapes)
    if norms:
        return Layerwise(streams, rules, shapes)
    return Elementwise(streams, rules, shapes)


def rms(square: float, count: int) -> float:
    """Return the root mean square of ``count`` numbers; 0 of none."""
    return math.sqrt(square / count) if count else 0.0
