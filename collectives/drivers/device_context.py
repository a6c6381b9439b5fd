"""The device context of a communicator's rank: what its kernels find everything by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.drivers.control import words_at
from multiring.collectives.drivers.device_records import ContextFields
from multiring.collectives.drivers.segment import PAGE_BYTES, Segment
from multiring.kernels.cuda.records import ERROR_WORDS, LINE_BYTES

if TYPE_CHECKING:
    from multiring.collectives.drivers.cuda_ipc import CudaIpc
    from multiring.collectives.drivers.host_staged import HostStaged

__all__ = ["DeviceContexts"]


class DeviceContexts:
    """A rank's device contexts, one for each time limit; all else is the same in all of them.

    Parameters
    ----------
    node : CudaIpc
        Joined.

    Attributes
    ----------
    error : ndarray of int64
        ERROR_WORDS words that kernels write and the host reads.
    abort : int
        Address of the word that ends every wait of the kernels.
    """

    def __init__(self, node: CudaIpc | HostStaged) -> None:
        self._node = node
        self._device = node.device
        self._kept: list[Any] = []
        self._found: dict[int, int] = {}
        self._error_page = Segment.create(PAGE_BYTES, "error words of a GPU")
        self.error: NDArray[np.int64] = words_at(self._error_page.address, ERROR_WORDS)
        self._error_address = self._device.register_host(self._error_page.address, PAGE_BYTES)
        blocks = node.blocks
        self.abort = self._table(np.zeros(1, np.int64))
        self._state = self._table(np.zeros(blocks * LINE_BYTES // 8, np.int64))
        self._segments_of = [self._table(bases) for bases in node.segment_bases]
        self._segments = self._table(np.array(self._segments_of, np.int64))
        self._inboxes = self._table(np.array([b + node.inbox_offset() for b in node.block_addresses], np.int64))
        self._progresses = self._table(np.array([b + node.progress_offset() for b in node.block_addresses], np.int64))
        self._slots = self._table(np.array(node.slots, np.int64))

    def _table(self, words: NDArray[np.int64]) -> int:
        address, kept = self._device.launcher.table(words)
        self._kept.append(kept)
        return int(address)

    def of(self, timeout_s: float) -> int:
        """Return the address of the context whose waits end after a time."""
        limit_ns = int(timeout_s * 1e9)
        if limit_ns not in self._found:
            node = self._node
            own = node.block_addresses[node.rank]
            fields = ContextFields(
                rank=node.rank,
                size=node.size,
                blocks=node.blocks,
                limit_ns=limit_ns,
                error=self._error_address,
                abort=self.abort,
                state=self._state,
                inbox=own + node.inbox_offset(),
                inboxes=self._inboxes,
                progress=own + node.progress_offset(),
                progresses=self._progresses,
                slots=self._slots,
                slot_bytes=node.device_slot_bytes,
                n_slots=node.layout.n_slots,
                segments=self._segments,
            )
            self._found[limit_ns] = self._table(fields.words())
        return self._found[limit_ns]

    def enter_segments(self, rank: int, stream: int) -> None:
        """Tell kernels which segments of a peer are open by now, in stream order."""
        bases = self._node.segment_bases[rank]
        self._device.copy(self._segments_of[rank], bases.ctypes.data, bases.nbytes, stream)

    def close(self) -> None:
        """Unpin the error words, when no kernel runs any more."""
        if self._error_address:
            self._device.unregister_host(self._error_page.address)
            self._error_address = 0
