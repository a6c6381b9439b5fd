"""The collectives of a step, bucket by bucket, in one order on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from multiring.collectives.arrays import View
from multiring.collectives.sharded.buckets import Bucket
from multiring.collectives.sharded.stream import Stream
from multiring.collectives.sharded.updates import Updates

__all__ = ["Pipeline"]


class Collective:
    """A collective on fixed arrays: synchronous by a prepared call, or queued."""

    def __init__(self, comm: Any, name: str, x: Any, out: Any, **options: Any) -> None:
        self._call = comm.prepare(name, x, out, **options)
        self._method, self._arrays, self._options = getattr(comm, name), (x, out), options

    def start(self, queued: bool) -> Any:
        """Return a Work, or None when it is done already."""
        if queued:
            return self._method(*self._arrays, async_op=True, **self._options)
        self._call()
        return None


class Pipeline:
    """Reduce-scatter, update and all-gather of every bucket.

    Parameters
    ----------
    group : Communicator
        Of the ranks that share the state.
    across : Communicator or None
        Of the ranks that hold the same shard.
    streams : sequence of Stream
    order : str or None
    queued : bool
        Whether collectives run beside the caller; equal on all ranks.

    Attributes
    ----------
    buckets : list of (int, Bucket)
        A stream's number, and a bucket of it, in the order of their collectives.
    started, updated : int
        How many are on their way, and how many are updated.
    """

    def __init__(self, group: Any, across: Any, streams: Sequence[Stream], order: str | None, queued: bool) -> None:
        self._streams, self._queued = streams, queued
        reducing: dict[str, Any] = {"op": "avg", "order": order}
        self.buckets: list[tuple[int, Bucket]] = []
        self._scatter: list[Collective] = []
        self._reduce: list[Collective | None] = []
        self._gather: list[Collective] = []
        self._members: list[set[int]] = []
        # A backward pass ends with the first parameters: the last buckets are ready first.
        for number, stream in reversed(list(enumerate(streams))):
            for bucket in reversed(stream.layout.buckets):
                start, stop = stream.layout.shard_of(bucket, stream.rank)
                gradients, weights = stream.gradients, stream.weights
                mine, whole = gradients[start:stop], slice(bucket.start, bucket.stop)
                self.buckets.append((number, bucket))
                self._scatter.append(Collective(group, "reduce_scatter", gradients[whole], mine, **reducing))
                self._reduce.append(Collective(across, "all_reduce", mine, mine, **reducing) if across else None)
                self._gather.append(Collective(group, "all_gather", weights[start:stop], weights[whole]))
                inside = stream.layout.pieces(bucket.start, bucket.stop)
                self._members.append({stream.members[piece.tensor] for piece in inside})
        self.reset()

    def reset(self) -> None:
        """Begin a step."""
        self.started = self.updated = 0
        self._scatters: dict[int, list[Any]] = {}
        self._gathers: dict[int, Any] = {}

    def start_ready(self, ready: set[int]) -> None:
        """Start the buckets, in their order, all of whose tensors are there."""
        while self.started < len(self.buckets) and self._members[self.started] <= ready:
            self._start(self.started)

    def start(self, at: int, views: Sequence[View | None] | None) -> None:
        """Pack a bucket's gradients and start its reduce-scatter, if that is not done."""
        if at < self.started:
            return
        if views is not None:
            number, bucket = self.buckets[at]
            stream = self._streams[number]
            stream.pack_bucket(bucket, [views[m] for m in stream.members])
        self._start(at)

    def _start(self, at: int) -> None:
        self._scatters[at] = [self._scatter[at].start(self._queued)]
        across = self._reduce[at]
        if across is not None:
            self.finish(at)  # it is another communicator's call that must see the result
            self._scatters[at] = [across.start(self._queued)]
        self.started = at + 1

    def finish(self, at: int) -> None:
        """Wait until a bucket is reduced."""
        for work in self._scatters[at]:
            if work is not None:
                work.wait()
        self._scatters[at] = []

    def update_reduced(self, updates: Updates) -> None:
        """Update the buckets that are reduced by now; local."""
        while self.updated < self.started and all(
            work is None or work.is_completed() for work in self._scatters[self.updated]
        ):
            self._update(self.updated, updates)

    def _update(self, at: int, updates: Updates) -> None:
        self.finish(at)
        updates.run(*self.buckets[at])
        self.updated = at + 1

    def _update_and_gather(self, at: int, updates: Updates) -> None:
        if at >= self.updated:
            self._update(at, updates)
        self.gather(at)

    def update_all(self, updates: Updates, views: Sequence[View | None] | None) -> None:
        """Start, update and gather every bucket: one is reduced while the one before it is updated."""
        n = len(self.buckets)
        for at in range(n):
            self.start(at, views)
            if not self._queued:
                self._update_and_gather(at, updates)
            elif at:
                self._update_and_gather(at - 1, updates)
        if self._queued and n:
            self._update_and_gather(n - 1, updates)
        self.take_in()

    def gather(self, at: int) -> None:
        """Start a bucket's all-gather."""
        self._gathers[at] = self._gather[at].start(self._queued)

    def take_in(self) -> None:
        """Wait for the all-gathers and write the parameters."""
        for at, (number, bucket) in enumerate(self.buckets):
            work = self._gathers.get(at)
            if work is not None:
                work.wait()
            self._streams[number].unpack_bucket(bucket)
        for stream in self._streams:
            stream.finish_parameters()
