"""One communicator's calls on GPUs: the host's executor, with device memory and kernels in the places of both."""

from __future__ import annotations

import contextlib
import math
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from multiring.collectives.choose_device import device_for_all
from multiring.collectives.device_messages import exchange_staged
from multiring.collectives.drivers.control import Layout, Waiting
from multiring.collectives.drivers.cuda_ipc import CudaIpc
from multiring.collectives.drivers.device import Device
from multiring.collectives.drivers.device_context import DeviceContexts
from multiring.collectives.drivers.host_staged import HostStaged
from multiring.collectives.drivers.network import Network
from multiring.collectives.drivers.shared_memory import Exchange
from multiring.collectives.drivers.watchdog import Watchdog
from multiring.collectives.executor import CACHED_INVOCATIONS, Executor, Message
from multiring.collectives.fused import Fused
from multiring.collectives.fused_line import FusedLine
from multiring.collectives.fused_watch import FusedWatch
from multiring.collectives.invocation import CallRecord
from multiring.collectives.nodes import Nodes
from multiring.collectives.request import Request
from multiring.collectives.stepped import Stepped, Steps
from multiring.errors import DeviceError, MultiringError
from multiring.kernels.dtypes import DType, dtype_of
from multiring.kernels.records import ABORT_USER, CONTEXT_PENDING

__all__ = ["CudaExecutor"]

SLOT_BYTES = 4 << 20
"""Of a slot in device memory: large enough that a launch and a wait of some 20 us are little beside it."""

LEAVE_PATIENCE_S = 2.0
"""How long a rank that closes keeps its memory for peers that have not finished its last call."""

DeviceCall = Any
"""Stepped or Fused: what ``prepare_on_device`` returns."""


class CudaExecutor(Executor):
    """Runs the calls of one communicator of GPUs.

    Parameters
    ----------
    rank, size, exchange, timeout_s, waiting, layout, nodes, network
        See :class:`multiring.collectives.executor.Executor`.
    device : Device, optional
        Instead of the process's own; for tests.
    slot_bytes : int, optional
        Of a slot in device memory; the same on all ranks.
    warn : bool
        Whether to warn of GPUs that do not reach each other: a part of a communicator does not again.

    Notes
    -----
    ``prepare`` makes calls on arrays in host memory, which the library itself needs; ``prepare_on_device`` those on
    the caller's arrays.
    """

    n_exchanges = Executor.n_exchanges + CudaIpc.N_EXCHANGES

    def __init__(
        self,
        rank: int,
        size: int,
        exchange: Exchange,
        *,
        timeout_s: float = 300.0,
        waiting: Waiting | None = None,
        layout: Layout | None = None,
        device: Device | None = None,
        slot_bytes: int = SLOT_BYTES,
        nodes: Nodes | None = None,
        network: Network | None = None,
        warn: bool = True,
    ) -> None:
        self._gpu: Device = device or device_for_all(nodes.members(rank).index(rank) if nodes else rank, exchange)
        self._slot_bytes = slot_bytes
        self._warn = warn
        self._node: CudaIpc | HostStaged
        super().__init__(
            rank, size, exchange, timeout_s=timeout_s, waiting=waiting, layout=layout, nodes=nodes, network=network
        )
        self.device = "cuda"
        # Through slots, if messages leave the node: MPI need not reach the memory of a GPU.
        self._device_planner = self._new_planner(staged=True) if self._nodes.count > 1 else self._planner
        self.device_calls: OrderedDict[tuple[Request, int, tuple[int, ...] | None], DeviceCall] = OrderedDict()
        self._contexts = DeviceContexts(self._node)
        self._n_finished = 0
        self._line: FusedLine | None = None
        if self._node.mode == "fused" and isinstance(self._node, CudaIpc):
            self._line = FusedLine(self._node, self._contexts, timeout_s, self._before_launch)
            self._watch = FusedWatch(self, self._line, self._node)
            self._watchdog = Watchdog(self._watch)

    def _join(
        self,
        member: int,
        size: int,
        exchange: Exchange,
        waiting: Waiting | None,
        layout: Layout | None,
        ranks: list[int],
    ) -> CudaIpc | HostStaged:
        if self._nodes.count > 1:
            self._node = HostStaged(member, size, exchange, self._gpu, waiting=waiting, layout=layout, ranks=ranks)
            return self._node
        self._node = CudaIpc(
            member,
            size,
            exchange,
            self._gpu,
            slot_bytes=self._slot_bytes,
            waiting=waiting,
            layout=layout,
            warn=self._warn,
        )
        return self._node

    def _child(self, rank: int, size: int, exchange: Exchange, nodes: Nodes, network: Network | None) -> CudaExecutor:
        return CudaExecutor(
            rank,
            size,
            exchange,
            timeout_s=self.timeout_s,
            waiting=self._waiting,
            device=self._gpu,
            slot_bytes=self._slot_bytes,
            nodes=nodes,
            network=network,
            warn=False,
        )

    @property
    def on_device(self) -> CudaExecutor:
        """What works on arrays in device memory: this executor."""
        return self

    @property
    def mode(self) -> str:
        """``"fused"`` or ``"stepped"``."""
        return str(self._node.mode)

    @property
    def gpu(self) -> Device:
        """This rank's GPU."""
        return self._gpu

    # --- running -----------------------------------------------------------------------------------------------------

    def prepare_on_device(self, request: Request, count: int, counts: tuple[int, ...] | None = None) -> DeviceCall:
        """Return the call of a request on arrays in device memory; parameters as for ``prepare``."""
        key = (request, count, counts)
        found = self.device_calls.get(key)
        if found is not None:
            self.device_calls.move_to_end(key)
            return found
        self.check()
        call = self._make(request, count, counts)
        self.device_calls[key] = call
        if len(self.device_calls) > CACHED_INVOCATIONS:
            self.device_calls.popitem(last=False)
        return call

    def _make(self, request: Request, count: int, counts: tuple[int, ...] | None) -> DeviceCall:
        self._gpu.use()  # perhaps not the thread that joined
        plan = self._device_planner.plan(request, count)
        if self._line is not None:
            return Fused(plan, count, counts, self._line, self._telling)
        record = CallRecord(plan, self._context, count, counts, self.timeout_s, _no_span, eager_bytes=-1)
        steps = Steps(
            record,
            self._gpu,
            self._contexts.of(self.timeout_s),
            self._node.device_slot_bytes,
            self._entries.run,
            self._finish,
            self._broken,
        )
        self._alive.add(steps)
        return Stepped(steps, self._gpu, self._telling, self._count)

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Close the communicator for all ranks when this one's GPU fails: the others must not wait for it."""
        try:
            yield
        except DeviceError as error:
            self.abort(str(error))
            raise

    def _before_launch(self) -> None:
        """Raise what earlier calls have left behind, and settle a refusal as the host's calls do."""
        self.check()
        if self._context.words[CONTEXT_PENDING]:
            # All ranks that refused do the same; of one that did not, the watchdog ends this.
            self.prepare(Request("barrier", dtype_of("uint8")), 0).run(0, 0)

    def finish(self) -> None:
        """Wait until this rank's kernels are done, and raise what went wrong in them."""
        if self._line is not None:
            self._line.finish()
        self.check()

    def check(self) -> None:
        """Raise what has gone wrong so far; a kernel that still runs is not waited for.

        Raises
        ------
        MultiringError
        """
        if self._line is not None and self._error is None:
            self._watch.read_error()
            if self._watch.finding is not None:
                self._abandon(self._watch.finding)
        super().check()

    def tell_abort(self, reason: int, culprit: int, text: str = "") -> None:
        """Set the ABORT word, unless somebody has; ``reason`` 0: for what ``text`` says."""
        if text:
            self._closing.set_text(text, reason or ABORT_USER)
        else:
            self._closing.set(reason, culprit)

    def abort(self, reason: str) -> None:
        """Close the communicator for all ranks, and end this rank's kernels."""
        super().abort(reason)
        if self._line is not None and not self._line.idle():
            self._line.stop_kernels(self._context.abort_word)

    def _count(self) -> None:
        """Tell the peers that this rank is done with their memory for one more call."""
        self._n_finished += 1
        self._node.board.done[self.local_rank] = self._n_finished

    # --- point to point ----------------------------------------------------------------------------------------------

    def exchange_on_device(
        self,
        sends: Sequence[Message],
        receives: Sequence[Message],
        timeout_s: float | None,
        streams: tuple[int, ...],
    ) -> None:
        """Carry out sends and receives of arrays in device memory: through host memory, in the order of a stream."""
        with self._telling():
            exchange_staged(self._gpu, self.exchange, sends, receives, timeout_s, streams)

    def copy_on_device(self, destination: Any, source: Any, streams: tuple[int, ...]) -> None:
        """Copy between arrays of any layout, given by their shadows, in the first stream, after the others' work."""
        self._gpu.use()
        for stream in streams[1:]:
            self._gpu.synchronize(stream)
        if self._line is not None:
            self._line.follow_last(streams[0])  # which may use the same buffer
        self._gpu.copy_elements(destination, source, streams[0])

    def check_here(self, name: str, address: int) -> None:
        """Refuse an array on another GPU."""
        self._gpu.check_here(name, address)

    # --- memory ------------------------------------------------------------------------------------------------------

    def empty(self, shape: int | tuple[int, ...], dtype: DType) -> Any:
        """Return an array in the GPU's symmetric memory, its contents undefined: CuPy's, or the simulator's."""
        whole = (shape,) if isinstance(shape, int) else tuple(shape)
        n_bytes = math.prod(whole) * dtype.itemsize
        block = self._node.device_heap.allocate(max(n_bytes, 1))
        return self._gpu.array(block.address, whole, dtype, block)

    def is_symmetric(self, address: int, nbytes: int) -> bool:
        """Whether a range lies in this process's symmetric memory, where all peers reach it."""
        return self._node.reaches(address, nbytes)

    # --- life --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the communicator, when the peers have done with this rank's memory, or after two seconds."""
        if not self.closed:
            if self._line is not None:
                with contextlib.suppress(MultiringError):
                    self._line.finish()
                self._n_finished = self._line.launched
            self._await_peers()
            self._node.board.left[self.local_rank] = 1
        self._stop_kernels()
        super().close()

    def _abandon(self, error: MultiringError) -> None:
        self._node.device_heap.retire()
        super()._abandon(error)

    def _stop_kernels(self) -> None:
        """Have no kernel left that uses what is about to be closed."""
        if self._line is not None:
            self._watchdog.stop()
            if not self._line.idle():
                self._line.stop_kernels(self._context.abort_word)
            with contextlib.suppress(MultiringError):
                self._line.finish(LEAVE_PATIENCE_S)
        self._contexts.close()

    def _await_peers(self) -> None:
        """Wait for peers that are still in the last call: their kernels may read this rank's slots."""
        end = time.monotonic() + LEAVE_PATIENCE_S
        board = self._node.board
        while self._error is None and not self._context.abort_word and time.monotonic() < end:
            late = np.flatnonzero(np.asarray(board.done) < self._n_finished).tolist()
            if not [r for r in late if r != self.local_rank and not self._node.has_ended(r, 0)]:
                return
            time.sleep(0.001)


def _no_span(kind: str, **specification: Any) -> int:
    """Stand in for the host's span kernels, which a call on the device never runs."""
    return 0
