"""Memory that the ranks of one machine share for measuring: a barrier, the time of a cache line, and copies.

It belongs to the benchmark, so that no library under test, ours included, is what starts its own stopwatch.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multiring.bench.world import World
from multiring.errors import MultiringError, PeerLostError

__all__ = ["Meeting"]

_WORD_BYTES = 128  # a cache line and its prefetch pair
_PAGE = 1 << 21
_ROUNDS = 1000
_SLICE_NS = 100_000_000


class Meeting:
    """Shared memory of all ranks of a world on one machine.

    Parameters
    ----------
    world : World
    region_bytes : int
        Bytes for each rank, see :meth:`region`.
    spin : bool
        Whether every rank has a core of its own, so that waiting may spin.
    timeout_s : float
        How long the barrier waits.

    Raises
    ------
    MultiringError
        If the ranks cannot open one another's memory: they are on several machines, or in containers of their own.
        Raised on every rank.
    """

    def __init__(self, world: World, region_bytes: int = 0, spin: bool = True, timeout_s: float = 300.0) -> None:
        self.rank, self.size = world.rank, world.size
        self._timeout_s = timeout_s
        self._spin = 2000 if spin else 0
        self._epoch = 0
        self._header_bytes = _round_up(2 * self.size * _WORD_BYTES)
        self._region_bytes = _round_up(region_bytes)
        descriptor = os.memfd_create("multiring-bench") if self.rank == 0 else -1
        pid, number = (int(v) for v in world.gather([float(os.getpid()), float(descriptor)])[0])
        total = self._header_bytes + self.size * self._region_bytes
        failed = ""
        try:
            if self.rank:
                descriptor = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR)
            # Each rank reserves its own part, so that its pages are near its core.
            os.posix_fallocate(descriptor, self._header_bytes + self.rank * self._region_bytes, self._region_bytes or 1)
        except OSError as error:
            failed = str(error)
        if world.gather([float(bool(failed))]).any():
            raise MultiringError(f"the ranks share no memory for measuring ({failed or 'on another rank'})")
        self._map = mmap.mmap(descriptor, max(total, self._header_bytes + 1))
        self._bytes: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self._address = int(self._bytes.ctypes.data)
        world.barrier()
        os.close(descriptor)
        self._barrier, self._ping_pong, self._copy = _native()
        self._barrier(self._address, self.rank, self.size, 0, self._spin, 1)  # compile before anything is timed
        world.barrier()

    def address(self, rank: int) -> int:
        """Return where a rank's region begins in this process."""
        return self._address + self._header_bytes + rank * self._region_bytes

    def region(self, rank: int, nbytes: int, offset_bytes: int = 0) -> NDArray[np.uint8]:
        """Return bytes of a rank's region, visible to all."""
        start = self._header_bytes + rank * self._region_bytes + offset_bytes
        return self._bytes[start : start + nbytes]

    def barrier(self) -> None:
        """Wait until every rank is here; they leave within the time of a cache line.

        Raises
        ------
        PeerLostError
            If a rank did not come in time.
        """
        self._epoch += 1
        deadline = None
        while not self._barrier(self._address, self.rank, self.size, self._epoch, self._spin, _SLICE_NS):
            now = time.monotonic()
            deadline = deadline or now + self._timeout_s
            if now > deadline:
                raise PeerLostError(
                    f"bench: rank {self.rank} waited {self._timeout_s:g} s for the others between calls"
                )

    def line_time_ns(self, other: int = 1) -> float | None:
        """Return how long one cache line takes from rank 0's core to another rank's, in nanoseconds.

        All ranks call it; the answer is on rank 0, None elsewhere.

        Notes
        -----
        The two ranks bounce one word each; half the median round trip over batches. None where a core is shared.
        """
        result = None
        batches = []
        for batch in range(7):
            self.barrier()
            if self.rank in (0, other):
                first = batch * _ROUNDS + 1
                base = self._address + self.size * _WORD_BYTES
                peer = other if self.rank == 0 else 0
                took = self._ping_pong(base, self.rank, peer, first, _ROUNDS)
                if took < 0:
                    raise PeerLostError(f"bench: rank {self.rank} waited 10 s for a cache line from rank {peer}")
                batches.append(took / _ROUNDS / 2)
        if self.rank == 0:
            result = float(np.median(batches))
        # The words go back to 0 for the next measurement.
        self.barrier()
        word = (self.size + self.rank) * _WORD_BYTES
        self._bytes[word : word + 8] = 0
        self.barrier()
        return result

    def copier(self, copies: list[tuple[int, int, int]]) -> Callable[[], object]:
        """Return a call that copies bytes by memcpy: (destination address, source address, bytes) each."""
        table = np.array(copies, dtype=np.int64).reshape(-1, 3)
        self._copy(np.empty((0, 3), np.int64))
        copy = self._copy

        def call() -> object:
            return copy(table)

        return call


def _round_up(nbytes: int) -> int:
    return (nbytes + _PAGE - 1) // _PAGE * _PAGE


@cache
def _native() -> tuple[Any, Any, Any]:
    """Build the three loops (numba loads here, not at import)."""
    from numba import njit

    from multiring.kernels.primitives import (
        clock_ns,
        copy_bytes,
        load_acquire,
        pause,
        store_release,
        yield_processor,
    )

    word_bytes = _WORD_BYTES

    @njit("int64(int64, int64, int64, int64, int64, int64)", nogil=True)  # type: ignore[untyped-decorator]
    def barrier(base: int, rank: int, size: int, epoch: int, spin: int, slice_ns: int) -> int:
        store_release(base + rank * word_bytes, epoch)
        start = clock_ns()
        for other in range(size):
            tries = 0
            while load_acquire(base + other * word_bytes) < epoch:
                tries += 1
                if tries < spin:
                    pause()
                else:
                    yield_processor()
                    if clock_ns() - start > slice_ns:
                        return 0
        return 1

    @njit("int64(int64, int64, int64, int64, int64)", nogil=True)  # type: ignore[untyped-decorator]
    def ping_pong(base: int, rank: int, peer: int, first: int, rounds: int) -> int:
        mine, theirs = base + rank * word_bytes, base + peer * word_bytes
        start = clock_ns()
        for turn in range(first, first + rounds):
            if rank == 0:
                store_release(mine, turn)
            tries = 0
            while load_acquire(theirs) < turn:
                tries += 1
                if tries % 100000 == 0 and clock_ns() - start > 10_000_000_000:
                    return -1
            if rank != 0:
                store_release(mine, turn)
        return int(clock_ns() - start)

    @njit("void(int64[:, ::1])", nogil=True)  # type: ignore[untyped-decorator]
    def copy(table: Any) -> None:
        for row in range(table.shape[0]):
            copy_bytes(table[row, 0], table[row, 1], table[row, 2])

    return barrier, ping_pong, copy
