"""Joining the GPUs of a node's ranks: whose memory reaches whom, tried for real, and where slots lie.

Each rank has one block of symmetric device memory for a communicator::

    | slots: K of S bytes | arrival lines | positions |        the last two for fused kernels only

A pair that cannot reach each other's memory takes the slots of both ranks to pinned host memory, which every GPU of
the machine reaches, and their arrays count as ordinary for all.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.drivers.control import Layout, Waiting
from multiring.collectives.drivers.cuda_board import Board
from multiring.collectives.drivers.cuda_pairs import PairTest
from multiring.collectives.drivers.device import Device
from multiring.collectives.drivers.device_directory import MAX_SEGMENTS
from multiring.collectives.drivers.device_heap import Block, device_heap
from multiring.collectives.drivers.device_peers import PeerDeviceHeap, acquire, release
from multiring.collectives.drivers.segment import Segment
from multiring.collectives.drivers.shared_memory import Exchange, SharedMemory
from multiring.errors import ArgumentError, DeviceError, MultiringError, PeerLostError, SharedMemoryError
from multiring.kernels.cuda.records import ARRIVAL_BYTES, LINE_BYTES
from multiring.kernels.records import CONTEXT_HEAP

__all__ = ["MODES", "CudaIpc"]

MODES = ("fused", "stepped")

MOST_BLOCKS = 64
"""Channels of a fused kernel at most."""


class CudaIpc(SharedMemory):
    """One rank's end of a communicator among GPUs of one node.

    Parameters
    ----------
    rank, size : int
    exchange : callable
        Collective: every rank calls it the same number of times.
    device : Device
        This rank's GPU.
    slot_bytes : int
        Of a slot in device memory; the same on all ranks.
    waiting, layout
        See :class:`multiring.collectives.drivers.shared_memory.SharedMemory`.
    warn : bool
        Whether rank 0 warns of GPUs that do not reach each other.

    Attributes
    ----------
    mode : str
        One of :data:`MODES`.
    why : str
        The reason for it.
    broken : dict of (int, int) to str
        Pairs of ranks whose GPUs do not reach each other, with what happened.
    slots : list of int
        Every rank's slots as kernels here reach them.
    block_addresses : list of int
        Every rank's block; 0 where it cannot be reached.
    segment_bases : list of ndarray of int64
        By rank: where its heap's segments lie in this process.
    blocks : int
        Channels of a fused kernel: what every rank's GPU holds at once, a power of two.
    """

    N_EXCHANGES = 5
    """Besides those of the host's driver."""

    def __init__(
        self,
        rank: int,
        size: int,
        exchange: Exchange,
        device: Device,
        *,
        slot_bytes: int,
        waiting: Waiting | None = None,
        layout: Layout | None = None,
        warn: bool = True,
    ) -> None:
        super().__init__(rank, size, exchange, waiting=waiting, layout=layout)
        self.device = device
        self.device_slot_bytes = slot_bytes
        self._warn = warn
        self.broken: dict[tuple[int, int], str] = {}
        self._peers: list[PeerDeviceHeap | None] = [None] * size
        self._pinned: tuple[int, int] | None = None
        self.board: Board
        self._meet(exchange)

    # --- layout of a rank's block ------------------------------------------------------------------------------------

    @property
    def slots_bytes(self) -> int:
        """Bytes of all slots of a rank."""
        return self.layout.n_slots * self.device_slot_bytes

    def inbox_offset(self) -> int:
        """Return where the arrival lines begin in a rank's block."""
        return self.slots_bytes

    def progress_offset(self) -> int:
        """Return where the positions begin in a rank's block."""
        return self.inbox_offset() + 2 * MOST_BLOCKS * self.size * ARRIVAL_BYTES

    def _block_bytes(self) -> int:
        return max(self.progress_offset() + MOST_BLOCKS * self.size * LINE_BYTES, PairTest.n_bytes(self.size))

    # --- joining -----------------------------------------------------------------------------------------------------

    def _meet(self, exchange: Exchange) -> None:
        mine = self._introduce()
        self.device_facts: list[dict[str, Any]] = [json.loads(b) for b in exchange(json.dumps(mine).encode())]
        self._stop_if([f.get("error") for f in self.device_facts])
        # Every rank's pattern is there. Writing is tried with reading, each rank in a place of its own.
        read = self._try_to_reach()
        read_answers: list[list[list[Any]]] = [json.loads(b) for b in exchange(json.dumps(read).encode())]
        written = self._look_who_wrote()
        write_answers: list[list[list[Any]]] = [json.loads(b) for b in exchange(json.dumps(written).encode())]
        for answers in (read_answers, write_answers):
            for rank, failures in enumerate(answers):
                for peer, why in failures:
                    self.broken.setdefault((min(rank, peer), max(rank, peer)), why)
        self.concerned = sorted({r for pair in self.broken for r in pair})
        board, made = self._create_board()
        facts = [json.loads(b) for b in exchange(json.dumps(made).encode())]
        error = facts[0].get("error")
        try:
            if error is None:
                self._use_board(board, facts[0])
                self._choose_mode()
        except (MultiringError, DeviceError, OSError) as problem:
            error = f"{type(problem).__name__}: {problem}"
        self._agree(exchange, error)
        self._clear_block()
        self._patch_context()
        if self.broken and self.rank == 0 and self._warn:
            warnings.warn(self._warning(), RuntimeWarning, stacklevel=2)

    def _introduce(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"mode": os.environ.get("MULTIRING_CUDA_MODE")}
        try:
            device = self.device
            device.use()
            self._device_heap = device_heap(device)
            self._block: Block | None = self._device_heap.allocate(self._block_bytes())
            self._block_address, self._n_block_bytes = self._block.address, self._block.n_bytes
            self._pairs = PairTest(device, self.rank, self.size, self._block_address)
            place = self._device_heap.place(self._block_address, self._n_block_bytes)
            facts |= {
                "uuid": device.uuid,
                "name": device.name,
                "processors": device.launcher.processors,
                "directory": self._device_heap.directory.descriptor,
                "token": self._device_heap.token,
                "place": place,
                "pattern": self._pairs.pattern.hex(),
            }
        except (MultiringError, DeviceError, OSError) as problem:
            facts["error"] = f"{type(problem).__name__}: {problem}"
        return facts

    def _stop_if(self, errors: list[str | None]) -> None:
        wrong = [f"rank {r}: {e}" for r, e in enumerate(errors) if e]
        if wrong:
            super().close()
            raise SharedMemoryError("joining the GPUs of a node failed; " + "; ".join(wrong))

    def _try_to_reach(self) -> list[list[Any]]:
        """Open every peer's memory, read its pattern, and write this rank's; return (peer, why not)."""
        failures: list[list[Any]] = []
        self.block_addresses = [0] * self.size
        for peer, facts in enumerate(self.device_facts):
            try:
                self.block_addresses[peer] = self._reach(peer, facts)
                if peer != self.rank:
                    self._pairs.reach(self.block_addresses[peer], bytes.fromhex(facts["pattern"]))
            except (DeviceError, MultiringError, OSError) as problem:
                failures.append([peer, str(problem)])
        return failures

    def _reach(self, peer: int, facts: dict[str, Any]) -> int:
        """Return the address of a peer's block."""
        segment, offset = facts["place"]
        if peer == self.rank:
            return self._block_address
        if facts["uuid"] != self.device.uuid and not self.device.can_access_peer(facts["uuid"]):
            raise DeviceError("the driver reports no peer access")
        heap = acquire(self.device, self.facts[peer]["pid"], facts["directory"], facts["token"])
        self._peers[peer] = heap
        heap.attach(segment)
        return int(heap.bases[segment]) + offset

    def _look_who_wrote(self) -> list[list[Any]]:
        """Return (peer, why not) of peers whose writing did not arrive here."""
        return [
            [peer, "what it wrote here did not arrive"]
            for peer, facts in enumerate(self.device_facts)
            if peer != self.rank and not self._pairs.was_reached(peer, bytes.fromhex(facts["pattern"]))
        ]

    def _create_board(self) -> tuple[Segment | None, dict[str, Any]]:
        if self.rank:
            return None, {}
        try:
            n_bytes = Board.n_bytes(self.size) + (self.size * self.slots_bytes if self.concerned else 0)
            segment = Segment.create(n_bytes, "what the GPUs' ranks share on the host")
        except SharedMemoryError as error:
            return None, {"error": str(error)}
        return segment, {"descriptor": segment.descriptor, "n_bytes": segment.n_bytes}

    def _use_board(self, segment: Segment | None, made: dict[str, Any]) -> None:
        self._board_segment = segment or Segment.attach(
            self.facts[0]["pid"], made["descriptor"], made["n_bytes"], "what the GPUs' ranks share on the host"
        )
        self.board = Board(self._board_segment.address, self.size)
        if self.concerned:
            first = self._board_segment.address + Board.n_bytes(self.size)
            n_bytes = self.size * self.slots_bytes
            pinned = self.device.register_host(first, n_bytes)
            self._pinned = first, pinned
            self.slots = [
                pinned + rank * self.slots_bytes if rank in self.concerned else block
                for rank, block in enumerate(self.block_addresses)
            ]
        else:
            self.slots = list(self.block_addresses)

    def _choose_mode(self) -> None:
        forced = self.device_facts[0]["mode"]
        if forced is not None and forced not in MODES:
            raise ArgumentError(f"MULTIRING_CUDA_MODE: got {forced!r}, wanted fused or stepped, or leave it unset")
        # One block for each processor is resident, and half of them leaves room for the caller's own kernels.
        fewest = min(f["processors"] for f in self.device_facts)
        room = fewest // 2 if fewest >= 8 else fewest
        self.blocks = min(1 << (room.bit_length() - 1), MOST_BLOCKS)
        uuids = [f["uuid"] for f in self.device_facts]
        self.why = "MULTIRING_CUDA_MODE of rank 0 says so"
        if forced == "fused" and self.concerned:
            raise ArgumentError(
                "MULTIRING_CUDA_MODE: got 'fused', wanted 'stepped' or nothing: "
                f"{self._describe_broken()}, and fused kernels need direct access between all GPUs"
            )
        if forced is not None:
            self.mode = forced
        elif self.concerned:
            self.mode, self.why = "stepped", self._describe_broken()
        elif len(set(uuids)) < self.size:
            self.mode, self.why = "stepped", "several ranks share a GPU"
        else:
            self.mode, self.why = "fused", "every rank has a GPU of its own that reaches all others"

    def _describe_broken(self) -> str:
        pairs = ", ".join(f"{a} and {b} ({why})" for (a, b), why in sorted(self.broken.items()))
        return f"the GPUs of ranks {pairs} do not reach each other's memory"

    def _warning(self) -> str:
        return (
            f"{self._describe_broken()}: what they exchange goes through pinned host memory, which is slower; see"
            " multiring doctor"
        )

    def _clear_block(self) -> None:
        """Let lines and positions begin at zero; nobody writes them before all ranks have agreed."""
        zeros: NDArray[np.uint8] = np.zeros(self._n_block_bytes - self.inbox_offset(), np.uint8)
        self.device.copy(self._block_address + self.inbox_offset(), zeros.ctypes.data, zeros.nbytes, 0)
        self.device.synchronize(0)

    def _patch_context(self) -> None:
        """Let references mean the heaps of the GPUs."""
        own = self._device_heap
        # Arrays of a rank that somebody cannot reach are in no table: ordinary.
        self._table: NDArray[np.int64] = np.zeros(1, np.int64) if self.rank in self.concerned else own.table
        self.context.words[CONTEXT_HEAP] = self._table.ctypes.data
        self.segment_bases = [
            own.bases if r == self.rank else np.zeros(MAX_SEGMENTS, np.int64) if p is None else p.bases
            for r, p in enumerate(self._peers)
        ]
        self.context.replace_peers(self.segment_bases)
        self.context.link = "CUDA IPC" if not self.concerned else "CUDA IPC and pinned memory"

    # --- memory ------------------------------------------------------------------------------------------------------

    @property
    def device_heap(self) -> Any:
        """This process's symmetric memory on the GPU."""
        return self._device_heap

    def attach(self, rank: int, segment: int) -> None:
        """Open one segment of a peer's heap.

        Raises
        ------
        PeerLostError
            If the peer has ended.
        SharedMemoryError
        """
        peer = self._peers[rank]
        try:
            if peer is None:
                raise DeviceError("its memory cannot be reached from here")
            peer.attach(segment)
        except DeviceError as error:
            if self.has_ended(rank):
                raise PeerLostError(f"rank {rank} ended before its symmetric arrays were mapped") from None
            raise SharedMemoryError(
                f"opening segment {segment} of rank {rank}'s symmetric memory on {self.device.name}: {error}; free GPU"
                " memory, or use ordinary arrays"
            ) from error

    def n_segments(self, rank: int) -> int:
        """Return how many segments a rank's heap has by now."""
        peer = self._peers[rank]
        if rank == self.rank:
            return int(self._device_heap.n_segments)
        return peer.n_segments if peer is not None else 0

    def attach_if_there(self, rank: int, segment: int) -> None:
        """Open a segment of a peer's heap, unless it was freed or its owner has ended: then nobody can name it."""
        peer = self._peers[rank]
        if peer is not None:
            with contextlib.suppress(DeviceError):
                peer.attach(segment)

    def reaches(self, address: int, n_bytes: int) -> bool:
        """Whether a range lies in memory of this rank that all peers reach."""
        return self.rank not in self.concerned and self._device_heap.holds(address, n_bytes)

    def close(self) -> None:
        """Close what this communicator has open of its peers, and stop watching them."""
        for rank, peer in enumerate(self._peers):
            self._peers[rank] = None
            if peer is not None:
                release(peer)
        if self._block is not None:
            self._block = None
            self._device_heap.trim()
        if self._pinned is not None:
            self.device.unregister_host(self._pinned[0])
            self._pinned = None
        super().close()
