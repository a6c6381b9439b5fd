"""Where every element lies: tensors in a flat stream, the stream in buckets, each bucket in one shard per rank.

Pure arithmetic on whole numbers. The stream of one element type holds its tensors one after the other, without gaps;
it is padded to a multiple of the number of shards and cut into buckets of a fixed number of elements, wherever tensors
end. So the number of buckets depends on the number of elements only, and a shard holds ceil(n / shards) of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Bucket", "Layout", "Piece"]

LINE_ELEMENTS = 16
"""Shards of whole buckets are multiples of this many elements: no two ranks write one cache line of float32."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """A part of the stream that travels in one collective.

    Attributes
    ----------
    start, stop : int
        In the padded stream; ``stop - start`` is a multiple of the number of shards.
    """

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A contiguous part of one tensor.

    Attributes
    ----------
    tensor : int
        Its place in the stream's list.
    first : int
        Of its elements, the first in the tensor, in C order.
    count : int
        Elements; at least 1.
    place : int
        Of the first element, in the stream.
    """

    tensor: int
    first: int
    count: int
    place: int


class Layout:
    """The stream of one element type.

    Parameters
    ----------
    counts : sequence of int
        Elements of each tensor; zero is legal.
    n_shards : int
    bucket_elements : int
        A bucket holds at most this many, rounded to whole shards; at least one element for each shard.

    Attributes
    ----------
    starts : numpy.ndarray, int64, (n + 1,)
        Where each tensor starts in the stream.
    n_elements, n_padded : int
        Of the stream, without and with its padding.
    shard_elements : int
        Of each shard, ceil(n / shards).
    buckets : tuple of Bucket
    """

    def __init__(self, counts: Sequence[int], n_shards: int, bucket_elements: int) -> None:
        self.n_shards = n_shards
        self.starts: NDArray[np.int64] = np.concatenate([[0], np.cumsum(np.asarray(counts, np.int64))]).astype(np.int64)
        self.n_elements = int(self.starts[-1])
        self.n_padded = math.ceil(self.n_elements / n_shards) * n_shards
        self.shard_elements = self.n_padded // n_shards
        unit = n_shards * LINE_ELEMENTS
        if bucket_elements < unit:
            unit = n_shards
        whole = max(unit, bucket_elements // unit * unit)
        self.buckets = tuple(
            Bucket(start, min(start + whole, self.n_padded)) for start in range(0, self.n_padded, whole)
        )

    def shard_of(self, bucket: Bucket, rank: int) -> tuple[int, int]:
        """Return (start, stop) in the stream of a rank's shard of a bucket."""
        each = (bucket.stop - bucket.start) // self.n_shards
        return bucket.start + rank * each, bucket.start + (rank + 1) * each

    def shard_place(self, bucket: Bucket) -> int:
        """Return where a bucket's part starts in a rank's state arrays, which hold its shards without gaps."""
        return bucket.start // self.n_shards

    def pieces(self, start: int, stop: int) -> Iterator[Piece]:
        """Return the parts of tensors that lie in a range of the stream; padding and empty tensors are in none."""
        stop = min(stop, self.n_elements)
        tensor = int(np.searchsorted(self.starts, start, side="right")) - 1
        while start < stop:
            end = min(int(self.starts[tensor + 1]), stop)
            if end > start:
                yield Piece(tensor, start - int(self.starts[tensor]), end - start, start)
                start = end
            tensor += 1

    def shard_pieces(self, rank: int) -> Iterator[tuple[Piece, int]]:
        """Return all of a rank's pieces, each with its place in the rank's state arrays."""
        for bucket in self.buckets:
            start, stop = self.shard_of(bucket, rank)
            for piece in self.pieces(start, stop):
                yield piece, self.shard_place(bucket) + piece.place - start
