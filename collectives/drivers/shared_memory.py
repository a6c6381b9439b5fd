"""Joining the ranks of one node: the control segment, the peers' heaps, and a way to notice their end."""

from __future__ import annotations

import json
import os
import platform
import secrets
import select
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.drivers.control import Context, Layout, Waiting, words_at
from multiring.collectives.drivers.heap import Heap, heap, peer_heap
from multiring.collectives.drivers.segment import Segment
from multiring.errors import LaunchError, MultiringError, PeerLostError, SharedMemoryError
from multiring.kernels.records import CONTROL_NONCE

__all__ = ["Exchange", "SharedMemory"]

Exchange = Callable[[bytes], list[bytes]]
"""Gives every rank the bytes of all ranks."""

END_VISIBLE_MS = 1000


class SharedMemory:
    """One rank's end of a communicator among processes of one node.

    Parameters
    ----------
    rank, size : int
        Among the ranks of the node.
    exchange : callable
        Collective among all ranks of the communicator: every rank calls it the same number of times.
    waiting : Waiting, optional
        Instead of the policy for this node.
    layout : Layout, optional
        The same on all ranks.
    ranks : sequence of int, optional
        What the communicator calls the ranks of this node, then those of the others. By default all are here.

    Raises
    ------
    SharedMemoryError, LaunchError
        On every rank of all nodes, if any rank could not join: naming the rank and why.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        exchange: Exchange,
        *,
        waiting: Waiting | None = None,
        layout: Layout | None = None,
        ranks: Sequence[int] | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.ranks = list(ranks or range(size))
        self.layout = layout or Layout(size)
        self.heap: Heap = heap()
        self._descriptors: list[int] = []
        facts: dict[str, Any] = {
            "pid": os.getpid(),
            "start": _start_time(os.getpid()),
            "host": platform.node(),
            "directory": self.heap.directory.descriptor,
            "token": self.heap.token,
            "cores": sorted(os.sched_getaffinity(0)),
        }
        control, made = self._create() if rank == 0 else (None, None)
        facts["control"] = made
        self.facts: list[dict[str, Any]] = _of(self.ranks[:size], exchange(json.dumps(facts).encode()))
        self._agree(exchange, made.get("error") if made else None)
        error = None
        peer_bases: list[NDArray[np.int64]] = []
        try:
            self.control = control or self._attach(self.facts[0]["control"])
            peer_bases = [
                self.heap.bases if r == rank else peer_heap(f["pid"], f["directory"], f["token"]).bases
                for r, f in enumerate(self.facts)
            ]
            self._descriptors = [-1 if r == rank else _watch(f["pid"], f["start"]) for r, f in enumerate(self.facts)]
        except (MultiringError, OSError) as problem:
            error = str(problem)
        try:
            self._agree(exchange, error)
        finally:
            if control is not None:
                control.close_descriptor()
        # Also for a communicator that is dropped without close().
        self._unwatch = weakref.finalize(self, _close_all, self._descriptors)
        self._unwatch.atexit = False
        # A launcher may bind each rank to its own core: what counts is the cores of all of them.
        cores = {core for f in self.facts for core in f["cores"]}
        self.context = Context(
            rank,
            self.layout,
            self.control.address,
            waiting or Waiting.of(size, len(cores)),
            self.heap.table,
            peer_bases,
            self._descriptors,
            self.ranks,
        )

    def _create(self) -> tuple[Segment | None, dict[str, Any]]:
        try:
            segment = Segment.create(self.layout.n_bytes, f"control segment of a communicator of {self.size} ranks")
        except SharedMemoryError as error:
            return None, {"error": str(error)}
        nonce = secrets.randbits(62) | 1
        words_at(segment.address + CONTROL_NONCE, 1)[0] = nonce
        return segment, {"descriptor": segment.descriptor, "n_bytes": segment.n_bytes, "nonce": nonce}

    def _attach(self, made: dict[str, Any]) -> Segment:
        """Map rank 0's segment, and look whether it is the one that it made: process numbers may mean others."""
        segment = Segment.attach(
            self.facts[0]["pid"], made["descriptor"], made["n_bytes"], "control segment of a communicator"
        )
        if int(words_at(segment.address + CONTROL_NONCE, 1)[0]) != made["nonce"]:
            raise SharedMemoryError(
                f"rank {self.ranks[self.rank]} sees another process as {self.facts[0]['pid']} than rank"
                f" {self.ranks[0]}'s: the ranks do not share"
                " a pid namespace; start them in one (containers: --pid=host)"
            )
        return segment

    def _agree(self, exchange: Exchange, error: str | None) -> None:
        """Let every rank know what went wrong on any."""
        answers = exchange((error or "").encode())
        wrong = [f"rank {r}: {a.decode()}" for r, a in enumerate(answers) if a]
        if wrong:
            _close_all(self._descriptors)
            raise SharedMemoryError("joining the ranks of a node failed; " + "; ".join(wrong))

    def attach(self, rank: int, segment: int) -> None:
        """Map one segment of a peer's heap.

        Raises
        ------
        PeerLostError
            If the peer has ended.
        SharedMemoryError
        """
        facts = self.facts[rank]
        try:
            peer_heap(facts["pid"], facts["directory"], facts["token"]).attach(segment)
        except SharedMemoryError:
            # A process loses its files a moment before its end can be seen.
            watch = select.poll()
            watch.register(self._descriptors[rank], select.POLLIN)
            if watch.poll(END_VISIBLE_MS):
                raise PeerLostError(f"rank {self.ranks[rank]} ended before its symmetric arrays were mapped") from None
            raise

    def close(self) -> None:
        """Stop watching the peers. The memory goes when nothing refers to it any more."""
        self._unwatch()


def _of(ranks: Sequence[int], answers: list[bytes]) -> list[dict[str, Any]]:
    return [json.loads(answers[r]) for r in ranks]


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        if descriptor >= 0:
            os.close(descriptor)
    descriptors.clear()


def _start_time(pid: int) -> int:
    """Return when a process began, in clock ticks: with its number, it names it for good."""
    # The second field is the command in parentheses, and may hold anything.
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])


def _watch(pid: int, start: int) -> int:
    """Return a descriptor that becomes readable when the process ends."""
    try:
        descriptor = os.pidfd_open(pid)
        if _start_time(pid) == start:
            return descriptor
        os.close(descriptor)
    except OSError:
        pass
    raise LaunchError(f"process {pid} ended while the ranks were joining, at {time.strftime('%H:%M:%S')}")
