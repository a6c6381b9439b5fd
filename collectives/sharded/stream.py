"""The memory of all parameters of one element type: gradients, weights, masters, and the way in and out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.arrays import View, address_of
from multiring.collectives.sharded.buckets import Bucket, Layout, Piece
from multiring.kernels.dtypes import DTYPES, DType, numpy_dtype

__all__ = ["FlatTensors", "Stream", "allocate"]

FLOAT32 = DTYPES["float32"]

STREAM_BYTES = 8 << 20
"""From this on, packed bytes go past the caches: they would only push out what is needed."""


class FlatTensors(list[NDArray[Any]]):
    """Tensors that lie one after the other in symmetric memory.

    Attributes
    ----------
    flat : ndarray
        All of them, and padding after the last.
    """

    def __init__(self, flat: NDArray[Any], shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        self.flat = flat
        start = 0
        for shape in shapes:
            count = math.prod(shape)
            self.append(flat[start : start + count].reshape(shape))
            start += count


def allocate(comm: Any, shapes: Sequence[Any], dtype: Any = "float32") -> FlatTensors:
    """Return tensors in symmetric memory that a :class:`~multiring.ShardedOptimizer` updates without a copy.

    Parameters
    ----------
    comm : Communicator
    shapes : sequence of shape
    dtype : dtype

    Returns
    -------
    list of ndarray
        Zeros, of these shapes.
    """
    whole = [tuple(int(n) for n in (shape if hasattr(shape, "__iter__") else (shape,))) for shape in shapes]
    count = sum(math.prod(shape) for shape in whole)
    flat = comm.empty((math.ceil(count / comm.size) * comm.size,), dtype)
    flat[...] = 0
    return FlatTensors(flat, whole)


class Stream:
    """The flat arrays of one element type.

    Parameters
    ----------
    comm : Communicator
        Of the ranks that share the state.
    members : list of int
        Places of its tensors in the optimizer's list.
    params : list of View
        The tensors.
    flat : ndarray or None
        Symmetric memory in which the tensors lie one after the other, with room for padding.
    grad_wire, weight_wire : DType
    bucket_elements : int

    Attributes
    ----------
    layout : Layout
    gradients : ndarray, grad_wire, (n_padded,)
        Symmetric. This rank's shards of it hold the reduced gradient after a reduce-scatter.
    weights : ndarray, weight_wire, (n_padded,)
        Symmetric; what is gathered.
    aliased : bool
        Whether ``weights`` is the parameters' own memory.
    """

    def __init__(
        self,
        comm: Any,
        members: list[int],
        params: list[View],
        flat: NDArray[Any] | None,
        grad_wire: DType,
        weight_wire: DType,
        bucket_elements: int,
    ) -> None:
        self.rank = comm.rank
        self.members = members
        self.params = params
        self.dtype = params[0].dtype
        self.grad_wire, self.weight_wire = grad_wire, weight_wire
        self.layout = Layout([p.size for p in params], comm.size, bucket_elements)
        padded = self.layout.n_padded
        self.gradients: NDArray[Any] = comm.empty((padded,), grad_wire)
        self.gradients[...] = 0
        self.aliased = flat is not None and weight_wire == self.dtype and self._lie_in(flat, padded)
        self.weights: NDArray[Any] = flat[:padded] if self.aliased else comm.empty((padded,), weight_wire)  # type: ignore[index]
        self._gradient_base, self._weight_base = address_of(self.gradients), address_of(self.weights)
        # A float32 weight is its own master: the rank's shards of the weights are never rounded.
        self.masters: NDArray[np.float32] | None = (
            None if weight_wire == FLOAT32 else np.zeros(self.layout.shard_elements, np.float32)
        )
        self._packings: dict[Any, Any] = {}
        self._staged = {i: np.empty(p.shape, numpy_dtype(p.dtype)) for i, p in enumerate(params) if not p.direct}
        self._targets = [address_of(self._staged[i]) if i in self._staged else p.address for i, p in enumerate(params)]
        self._pieces = {bucket: list(self.layout.pieces(bucket.start, bucket.stop)) for bucket in self.layout.buckets}

    def _lie_in(self, flat: NDArray[Any], padded: int) -> bool:
        """Return whether the tensors lie in ``flat`` as in the stream: a caller may have changed the list."""
        base, item = address_of(flat), self.dtype.itemsize
        places = zip(self.params, self.layout.starts.tolist(), strict=False)
        return flat.size >= padded and all(not p.size or p.address == base + at * item for p, at in places)

    # --- addresses --------------------------------------------------------------------------------------------------

    def gradient_address(self, place: int) -> int:
        """Return the address of an element's gradient."""
        return self._gradient_base + place * self.grad_wire.itemsize

    def weight_address(self, place: int) -> int:
        """Return the address of an element's weight as it is gathered."""
        return self._weight_base + place * self.weight_wire.itemsize

    def master_address(self, place: int, shard_place: int) -> int:
        """Return the address of the master of an element of this rank."""
        return self.weight_address(place) if self.masters is None else address_of(self.masters) + 4 * shard_place

    def master_slice(self, piece: Piece, shard_place: int) -> NDArray[np.float32]:
        """Return the master of a piece of this rank."""
        if self.masters is None:
            return self.weights[piece.place : piece.place + piece.count]
        return self.masters[shard_place : shard_place + piece.count]

    # --- gradients in -----------------------------------------------------------------------------------------------

    def pack_bucket(self, bucket: Bucket, gradients: Sequence[View | None]) -> None:
        """Bring a bucket's gradients to their places, rounded to the wire type."""
        pieces = self._pieces[bucket]
        views = [gradients[p.tensor] for p in pieces]
        first = views[0] if views else None
        if first is not None and all(v is not None and v.direct and v.dtype == first.dtype for v in views):
            addresses = [
                v.address + p.first * v.dtype.itemsize for v, p in zip(views, pieces, strict=True) if v is not None
            ]
            if first.dtype == self.grad_wire and all(
                a == self.gradient_address(p.place) for a, p in zip(addresses, pieces, strict=True)
            ):
                return
            packing = self._packing(bucket, [p.count for p in pieces], first.dtype, self.grad_wire)
            if not any(self._inside(a) for a in addresses):
                packing.pack(addresses, self.gradient_address(bucket.start))
                return
        for piece, view in zip(pieces, views, strict=True):
            self._pack_piece(piece, view)

    def pack_tensor(self, tensor: int, gradient: View | None) -> None:
        """Bring one tensor's gradient to its place."""
        start, stop = int(self.layout.starts[tensor]), int(self.layout.starts[tensor + 1])
        for piece in self.layout.pieces(start, stop):
            self._pack_piece(piece, gradient)

    def _pack_piece(self, piece: Piece, view: View | None) -> None:
        target = self.gradients[piece.place : piece.place + piece.count]
        if view is None:
            target[...] = 0
            return
        if view.direct:
            address = view.address + piece.first * view.dtype.itemsize
            if address == self.gradient_address(piece.place) and view.dtype == self.grad_wire:
                return
            if not self._inside(address):
                self._packing(piece, [piece.count], view.dtype, self.grad_wire).pack([address], address_of(target))
                return
        target[...] = view.array.reshape(-1)[piece.first : piece.first + piece.count].astype(target.dtype)

    def _inside(self, address: int) -> bool:
        return 0 <= address - self._gradient_base < self.gradients.nbytes

    def _packing(self, key: Any, counts: list[int], dtype: DType, packed: DType) -> Any:
        found = self._packings.get((key, dtype, packed))
        if found is None:
            from multiring.kernels.pack import Packing

            stream = sum(counts) * min(dtype.itemsize, packed.itemsize) >= STREAM_BYTES
            found = self._packings[key, dtype, packed] = Packing(counts, dtype, packed, stream)
        return found

    # --- weights out ------------------------------------------------------------------------------------------------

    def unpack_bucket(self, bucket: Bucket) -> None:
        """Write a bucket's gathered weights into the parameters."""
        if self.aliased:
            return
        pieces = self._pieces[bucket]
        if pieces:
            addresses = [self._targets[p.tensor] + p.first * self.dtype.itemsize for p in pieces]
            packing = self._packing(("out", bucket), [p.count for p in pieces], self.dtype, self.weight_wire)
            packing.unpack(self.weight_address(bucket.start), addresses)

    def finish_parameters(self) -> None:
        """Write those parameters whose memory is not contiguous."""
        if not self.aliased:
            for tensor, staged in self._staged.items():
                self.params[tensor].array[...] = staged

    def set_masters(self, tensors: Sequence[NDArray[Any]]) -> None:
        """Take this rank's masters from whole tensors."""
        for piece, shard_place in self.layout.shard_pieces(self.rank):
            values = np.asarray(tensors[piece.tensor]).reshape(-1)[piece.first : piece.first + piece.count]
            self.master_slice(piece, shard_place)[...] = values

    def round_masters(self) -> None:
        """Write this rank's masters to its shard of the weights, rounded to the wire type."""
        if self.masters is not None:
            for bucket in self.layout.buckets:
                start, stop = self.layout.shard_of(bucket, self.rank)
                place = self.layout.shard_place(bucket)
                self.weights[start:stop] = self.masters[place : place + stop - start].astype(self.weights.dtype)
