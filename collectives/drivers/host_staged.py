"""GPUs of several nodes: slots in host memory that kernels and the network both reach.

Every value passes through a slot, so that no message begins or ends in the memory of a GPU. The slots are those of the
control segment, pinned; the caller's arrays are ordinary.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.drivers.control import Layout, Waiting
from multiring.collectives.drivers.cuda_board import Board
from multiring.collectives.drivers.cuda_ipc import CudaIpc
from multiring.collectives.drivers.device import Device
from multiring.collectives.drivers.device_directory import MAX_SEGMENTS
from multiring.collectives.drivers.device_heap import device_heap
from multiring.collectives.drivers.shared_memory import Exchange, SharedMemory
from multiring.errors import ArgumentError, DeviceError, MultiringError
from multiring.kernels.records import CONTEXT_HEAP

__all__ = ["HostStaged"]


class HostStaged(SharedMemory):
    """One rank's end of a communicator among GPUs of several nodes.

    Parameters
    ----------
    rank, size, exchange, waiting, layout, ranks
        See :class:`multiring.collectives.drivers.shared_memory.SharedMemory`.
    device : Device
        This rank's GPU.

    Attributes
    ----------
    mode, why, slots, block_addresses, segment_bases, blocks, board
        See :class:`multiring.collectives.drivers.cuda_ipc.CudaIpc`.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        exchange: Exchange,
        device: Device,
        *,
        waiting: Waiting | None = None,
        layout: Layout | None = None,
        ranks: Sequence[int] | None = None,
    ) -> None:
        super().__init__(rank, size, exchange, waiting=waiting, layout=layout, ranks=ranks)
        self.device = device
        self.mode, self.why = "stepped", "the ranks are on several nodes"
        self.device_slot_bytes = self.layout.slot_bytes
        self.blocks = 1
        self.block_addresses = [0] * size
        self.segment_bases: list[NDArray[np.int64]] = [np.zeros(MAX_SEGMENTS, np.int64) for _ in range(size)]
        self._pinned = 0
        error = None
        try:
            device.use()
            self._device_heap = device_heap(device)
            rank_bytes = self.layout.n_slots * self.layout.slot_bytes
            first = self.control.address + self.layout.slots
            address = device.register_host(first, size * rank_bytes)
            self._pinned = first
            self.slots = [address + r * rank_bytes for r in range(size)]
        except (MultiringError, DeviceError, OSError) as problem:
            error = f"{type(problem).__name__}: {problem}"
        self._agree(exchange, error)
        forced = exchange((os.environ.get("MULTIRING_CUDA_MODE") or "").encode())[0].decode()
        # Communicators of one node make more exchanges, and those of a split are made in step.
        for _ in range(CudaIpc.N_EXCHANGES - 2):
            exchange(b"")
        if forced not in ("", "stepped"):
            raise ArgumentError(
                f"MULTIRING_CUDA_MODE: got {forced!r} for GPUs of several nodes, wanted 'stepped' or nothing: a fused"
                " kernel cannot wait for a network"
            )
        self._board: NDArray[np.int64] = np.zeros(Board.n_bytes(size) // 8, np.int64)
        # What a peer has not read yet stays where it is when this rank leaves: nobody needs to be told.
        self.board = Board(self._board.ctypes.data, size)
        self.board.done[:] = 1 << 62
        self._no_table: NDArray[np.int64] = np.zeros(1, np.int64)
        self.context.words[CONTEXT_HEAP] = self._no_table.ctypes.data
        self.context.link = "pinned memory"

    def inbox_offset(self) -> int:
        """There are no fused kernels."""
        return 0

    def progress_offset(self) -> int:
        """There are no fused kernels."""
        return 0

    @property
    def device_heap(self) -> Any:
        """This process's memory on the GPU, which no peer reaches here."""
        return self._device_heap

    def reaches(self, address: int, n_bytes: int) -> bool:
        """Whether all peers reach a range: never."""
        return False

    def close(self) -> None:
        """Unpin the slots, and stop watching the peers."""
        if self._pinned:
            self.device.unregister_host(self._pinned)
            self._pinned = 0
        super().close()
