"""The fused calls of one communicator: launched one after the other, watched, and their errors told.

A fused kernel waits by itself, so the host learns of errors later: from the error words that a kernel leaves in host
memory, from the communicator's ABORT word, and from what the watchdog sees. The watchdog is a thread that works while
kernels are in flight: it ends their waits when a peer has ended, left or aborted, and tells the peers of an error here.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.drivers.device_context import DeviceContexts
from multiring.collectives.drivers.device_records import operand_words
from multiring.errors import ArgumentError
from multiring.kernels.records import REFERENCE_ORDINARY, REFERENCE_SHIFT

if TYPE_CHECKING:
    from multiring.collectives.drivers.cuda_ipc import CudaIpc
    from multiring.collectives.plan import Plan

__all__ = ["FusedLine", "Launched", "Turn"]

REMEMBERED_LAUNCHES = 256
"""Of which errors can say what was called."""


class Launched(Protocol):
    """A call, as errors tell of it."""

    plan: Plan
    count: int
    signature: int


class Turn:
    """One fused kernel in flight on a GPU: the launches of all communicators of this process, in the host's order."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.stream = 0
        self.event = 0


_turns: dict[int, Turn] = {}


class FusedLine:
    """Launches the fused calls of a communicator.

    Parameters
    ----------
    node : CudaIpc
    contexts : DeviceContexts
    timeout_s : float
    check : callable
        Raises what has gone wrong so far.

    Attributes
    ----------
    launched : int
        Calls so far; the number of the latest, as kernels count them too.
    bases, operands : int
        Scratch of the kernels, of which one runs at a time.
    """

    def __init__(self, node: CudaIpc, contexts: DeviceContexts, timeout_s: float, check: Callable[[], None]) -> None:
        self.node, self.contexts, self.timeout_s = node, contexts, timeout_s
        self.device = node.device
        self._check = check
        self.launched = 0
        self._calls: OrderedDict[int, tuple[Launched, float]] = OrderedDict()
        self._retired: list[Any] = []
        self.bases, self._kept_bases = self.table(np.zeros(2 * node.size * node.blocks, np.int64))
        self.operands, self._kept_operands = self.table(np.zeros(operand_words(node.size) * node.blocks, np.int64))
        self._private = self.device.private_stream()
        self._turn = _turns.setdefault(id(self.device), Turn())
        self._event = 0
        self._launching = False
        self._event_lock = threading.Lock()
        self.active = threading.Event()
        """Set while calls are in flight: what the watchdog waits for."""

    def table(self, words: NDArray[np.int64]) -> tuple[int, Any]:
        """Return the address of a copy of words in device memory, and what keeps it there."""
        return self.device.launcher.table(words if words.size else np.zeros(1, np.int64))

    # --- before a launch ---------------------------------------------------------------------------------------------

    def begin(self, streams: tuple[int, ...]) -> bool:
        """Raise what is known to be wrong, and open what the peers have new; return whether a graph is captured."""
        self._check()
        self.device.use()
        capturing = self.device.is_capturing(streams[0])
        if not capturing:
            self.map_new()
        return capturing

    def refuse_unknown(self) -> None:
        """Refuse to make a record while a graph is captured.

        Raises
        ------
        ArgumentError
        """
        raise ArgumentError(
            "stream: got one that is capturing a graph, for a call on arrays that this communicator has not seen,"
            " wanted a call that was made before: make it once on the same arrays before the capture"
        )

    def map_new(self) -> None:
        """Open the segments that peers have made since, and say so: then kernels here can reach their arrays."""
        node = self.node
        for rank in range(node.size):
            n_segments = node.n_segments(rank)
            if int(node.board.mapped[node.rank, rank]) >= n_segments:
                continue
            for segment in range(n_segments):
                node.attach_if_there(rank, segment)
            # At once, and not in the order of a stream: the kernel that meets the array may be running already.
            self.contexts.enter_segments(rank, self._private)
            self.device.synchronize(self._private)
            node.board.mapped[node.rank, rank] = n_segments

    def reference(self, address: int, n_bytes: int) -> int:
        """Return where an array lies in symmetric memory, if all peers have that open, else REFERENCE_ORDINARY."""
        node = self.node
        if not n_bytes or not node.reaches(address, n_bytes):
            return REFERENCE_ORDINARY
        segment, offset = node.device_heap.place(address, n_bytes)
        if min(node.board.mapped[:, node.rank].tolist()) <= segment:
            return REFERENCE_ORDINARY
        return int((segment << REFERENCE_SHIFT) | offset)

    # --- a launch ----------------------------------------------------------------------------------------------------

    def launch(self, prepared: Any, streams: tuple[int, ...], call: Launched, limit_s: float, capturing: bool) -> None:
        """Launch a kernel behind all that it must follow."""
        device, stream = self.device, streams[0]
        if capturing:
            # The graph's own order counts; what it replays is not watched by its number.
            prepared(stream)
            return
        with self._turn.lock:
            for other in streams[1:]:
                event = device.mark(other)
                device.follow(stream, event)
                device.forget(event)
            turn = self._turn
            if turn.event and turn.stream != stream:
                device.follow(stream, turn.event)
            with self._event_lock:
                self.launched += 1
                self._launching = True
            self._calls[self.launched] = call, limit_s
            if len(self._calls) > REMEMBERED_LAUNCHES:
                self._calls.popitem(last=False)
            self.node.board.launched[self.node.rank] = self.launched
            self.active.set()
            prepared(stream)
            if turn.event:
                device.forget(turn.event)
            turn.stream, turn.event = stream, device.mark(stream)
            with self._event_lock:
                if self._event:
                    device.forget(self._event)
                self._event = device.mark(stream)
                self._launching = False

    def follow_last(self, stream: int) -> None:
        """Let a stream wait for the latest launch of all communicators."""
        with self._turn.lock:
            turn = self._turn
            if turn.event and turn.stream != stream and not self.device.is_capturing(stream):
                self.device.follow(stream, turn.event)

    def retire(self, record: Any) -> None:
        """Keep a record that a kernel in flight may still read."""
        self._retired.append(record)

    # --- after a launch ----------------------------------------------------------------------------------------------

    def call(self, number: int) -> tuple[Launched, float] | None:
        """Return a call by its number, with its time limit, as long as it is remembered."""
        return self._calls.get(number)

    def idle(self) -> bool:
        """Whether no kernel of this communicator is in flight; peers may then free what it read."""
        with self._event_lock:
            launched = self.launched
            if self._launching or (self._event and not self.device.reached(self._event)):
                return False
        self.node.board.done[self.node.rank] = launched
        self._retired.clear()
        return True

    def finish(self, patience_s: float | None = None) -> None:
        """Wait until no kernel is in flight, and raise what has gone wrong.

        Parameters
        ----------
        patience_s : float, optional
            Then return anyway. Kernels have limits of their own.
        """
        end = None if patience_s is None else time.monotonic() + patience_s
        self.device.use()
        pause_s = 20e-6
        while not self.idle():
            if end is not None and time.monotonic() > end:
                return
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 1e-3)
        self._check()

    def read(self, words: NDArray[np.int64], address: int) -> None:
        """Copy words from device memory, behind no kernel."""
        self.device.copy(words.ctypes.data, address, words.nbytes, self._private)
        self.device.synchronize(self._private)

    def stop_kernels(self, word: int) -> None:
        """End every wait of the kernels in flight."""
        self.device.use()
        value = np.array([word or 1], np.int64)
        self.device.copy(self.contexts.abort, value.ctypes.data, 8, self._private)
        self.device.synchronize(self._private)
