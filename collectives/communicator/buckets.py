"""Chunk packing: many small arrays in one collective."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multiring.collectives.arrays import View, address_of
from multiring.collectives.communicator.action import Action, FunctionAction, SequenceAction
from multiring.collectives.communicator.build import action_of
from multiring.collectives.communicator.check import input_view, output_view, overlap, require_device
from multiring.collectives.communicator.contract import Executor
from multiring.collectives.communicator.device_action import bind_streams, streams_of
from multiring.collectives.communicator.options import timeout_of
from multiring.collectives.request import Request
from multiring.errors import ArgumentError, ArgumentTypeError, MismatchError, MultiringError
from multiring.kernels.dtypes import DTYPES, DType
from multiring.kernels.operations import OPERATIONS

__all__ = ["ALONE_BYTES", "BUCKET_BYTES", "Bucket", "BucketStore", "pack"]

NAME = "all_reduce_many"

ALONE_BYTES = 1 << 18
"""An array of this many bytes or more is reduced where it lies: two more copies would cost more than a call."""

BUCKET_BYTES = 1 << 25
"""A bucket holds at most this much."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Arrays of one element type that travel together.

    Attributes
    ----------
    dtype : DType
    members : tuple of int
        Their places in the caller's list.
    starts : tuple of int
        Of each, in elements.
    count : int
        Elements of all.
    """

    dtype: DType
    members: tuple[int, ...]
    starts: tuple[int, ...]
    count: int


def pack(layout: Sequence[tuple[DType, int]]) -> list[Bucket]:
    """Cut a list of arrays into buckets: a function of sizes and element types, so that all ranks cut alike.

    Parameters
    ----------
    layout : sequence of (DType, int)
        Element type and number of elements of each array.

    Returns
    -------
    list of Bucket
        In the order of their first members. Arrays of :data:`ALONE_BYTES` or more have one each.
    """
    done: list[Bucket] = []
    open_: dict[DType, tuple[list[int], list[int], int]] = {}
    for index, (dtype, count) in enumerate(layout):
        if count * dtype.itemsize >= ALONE_BYTES:
            done.append(Bucket(dtype, (index,), (0,), count))
            continue
        members, starts, total = open_.get(dtype, ([], [], 0))
        if members and (total + count) * dtype.itemsize > BUCKET_BYTES:
            done.append(Bucket(dtype, tuple(members), tuple(starts), total))
            members, starts, total = [], [], 0
        open_[dtype] = ([*members, index], [*starts, total], total + count)
    done += [Bucket(dtype, tuple(m), tuple(s), total) for dtype, (m, s, total) in open_.items()]
    return sorted(done, key=lambda bucket: bucket.members[0])


class BucketStore:
    """The symmetric memory that buckets are packed into, and the layouts that the ranks are known to agree on.

    Buffers are used again: calls on one communicator run one after the other.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._buffers: dict[DType, View] = {}
        self._agreed: set[int] = set()

    def buffer(self, dtype: DType, count: int) -> View:
        """Return symmetric memory of ``count`` elements."""
        found = self._buffers.get(dtype)
        if found is None or found.size < count:
            found = input_view(NAME, "buffer", self._executor.empty((count,), dtype))
            self._buffers[dtype] = found
        return found.part(found.array[:count])

    def build(self, arrays: Any, **options: Any) -> Action:
        """Build an all_reduce of many arrays."""
        name = NAME
        if isinstance(arrays, np.ndarray) or not isinstance(arrays, Iterable):
            raise ArgumentTypeError(f"{name}: arrays: got {type(arrays).__name__}, wanted a list of arrays")
        listed = list(arrays)
        views = [output_view(name, f"arrays[{i}]", x) for i, x in enumerate(listed)]
        self._refuse_overlaps(name, views)
        layout = [(v.dtype, v.size) for v in views]
        limit_s = timeout_of(name, options.get("timeout"))
        parts: list[Action] = [self._agree(layout, limit_s)] if views else []
        parts += [self._bucket(bucket, [views[i] for i in bucket.members], options) for bucket in pack(layout)]
        return SequenceAction(name, listed, parts)

    def _bucket(self, bucket: Bucket, views: list[View], options: dict[str, Any]) -> Action:
        executor = self._executor
        if len(views) == 1 and (views[0].direct or bucket.count * bucket.dtype.itemsize >= ALONE_BYTES):
            return action_of(
                executor,
                "all_reduce",
                views[0],
                views[0],
                bucket.count,
                options,
                reduces=True,
                in_place=True,
                method=NAME,
            )
        whole = self.buffer(bucket.dtype, bucket.count)
        for view in views:
            require_device(executor, NAME, "arrays", view)
        streams = streams_of(executor, NAME, options.get("stream"), *views)
        if streams:
            options = {**options, "stream": streams[0]}
        action = action_of(
            executor, "all_reduce", whole, whole, bucket.count, options, reduces=True, in_place=True, method=NAME
        )
        bind_streams(executor, action, streams)  # the copies come after what is in any of them
        for start, view in zip(bucket.starts, views, strict=True):
            place = whole.array[start : start + view.size].reshape(view.shape)
            action.before.append((place, view.array))
            action.after.append((view.array, place))
        return action

    @staticmethod
    def _refuse_overlaps(name: str, views: list[View]) -> None:
        order = sorted((v.address, i) for i, v in enumerate(views) if v.size)
        for (_, i), (_, j) in itertools.pairwise(order):
            if overlap(views[i], views[j]):
                raise ArgumentError(
                    f"{name}: arrays[{j}] overlaps arrays[{i}], wanted separate arrays; pass a copy, or each once"
                )

    def _agree(self, layout: list[tuple[DType, int]], limit_s: float | None) -> Action:
        """Compare a layout among the ranks before its first use: two lists of other sizes may have the same sum.

        A rank that already knows the layout skips this; one that does not then meets another collective, which is a
        mismatch too.
        """
        text = ",".join(f"{dtype.name}:{count}" for dtype, count in layout)
        mark = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 2
        executor = self._executor
        pair = np.empty(2, np.int64)
        # Prepared before anything is launched, so that the call is still refused as a whole if that fails.
        comparing = executor.prepare(Request("all_reduce", DTYPES["int64"], OPERATIONS["max"]), 2)

        def agree() -> None:
            if mark in self._agreed:
                return
            pair[:] = mark, -mark
            address = address_of(pair)
            comparing.run(address, address, limit_s)
            if int(pair[0]) != -int(pair[1]):
                # All ranks know now. One more call, in which they differ, closes the communicator for all of them
                # alike.
                closing = executor.prepare(Request("broadcast", DTYPES["uint8"]), 1 if int(pair[0]) == mark else 2)
                error: MultiringError | None = None
                try:
                    closing.run(address, address)
                except MultiringError as closed:
                    error = closed
                raise MismatchError(
                    f"all_reduce_many: got lists of arrays that differ among the ranks, wanted equal ones; "
                    f"rank {executor.rank} has {len(layout)} arrays: {text[:200]}"
                ) from error
            if len(self._agreed) >= 4096:
                self._agreed.clear()
            self._agreed.add(mark)

        return FunctionAction("all_reduce_many layout", agree)
