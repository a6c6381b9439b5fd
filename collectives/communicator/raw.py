"""The low level for frameworks: integers in, NCCL's argument order."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Any, cast

from multiring.collectives.communicator.action import CollectiveAction, TransferAction
from multiring.collectives.communicator.device_action import InStreams, bind_streams, streams_of
from multiring.collectives.communicator.engine import Engine
from multiring.collectives.communicator.options import index_of, root_of
from multiring.collectives.request import Request
from multiring.errors import (
    ArgumentError,
    ArgumentTypeError,
    CollectiveTimeout,
    CommunicatorClosed,
    MismatchError,
    PeerLostError,
    ScheduleError,
    SharedMemoryError,
)
from multiring.kernels.dtypes import DTYPES, DType, dtype_of
from multiring.kernels.operations import OPERATIONS, Reduction, check_operation, operation_of

__all__ = ["ERROR_CODES", "Raw"]

ERROR_CODES: dict[type[BaseException], int] = {
    SharedMemoryError: 2,
    ArgumentError: 4,
    ArgumentTypeError: 4,
    ScheduleError: 4,
    MismatchError: 5,
    CommunicatorClosed: 5,
    PeerLostError: 6,
    CollectiveTimeout: 6,
}
"""What C callers get, like NCCL's ``ncclResult_t``: 0 done, 2 out of memory, 3 anything else, 4 bad argument, 5 invalid
use, 6 a peer is lost or late."""

_DTYPES = {d.code: d for d in DTYPES.values()}
_OPERATIONS = {o.code: o for o in OPERATIONS.values()}
_SHAPES = {
    "all_reduce": "op",
    "reduce": "op root",
    "broadcast": "root",
    "reduce_scatter": "op",
    "all_gather": "",
    "all_to_all": "",
    "gather": "root",
    "scatter": "root",
}
"""The arguments of each collective after (send_ptr, recv_ptr, count, dtype) and before stream."""


class Raw:
    """Every collective on plain addresses.

    Addresses are those of C-contiguous, aligned memory, on the communicator's device, that the caller keeps alive; they
    are not checked.
    ``send_ptr == recv_ptr`` and NCCL's positions are in place. Counts are NCCL's: elements of the array for all_reduce,
    reduce and broadcast; elements of one rank's share for all others. ``dtype`` and ``op`` are codes (NCCL's, see
    :data:`multiring.kernels.dtypes.DTYPES` and :data:`multiring.kernels.operations.OPERATIONS`) or names. ``stream``
    is 0 on the host, and a CUDA stream's handle, or an object that has one, on GPUs.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._invocations: dict[tuple[Any, ...], Any] = {}
        self._pointers: dict[str, Any] = {}
        self._last_error = ""

    def all_reduce(
        self, send_ptr: int, recv_ptr: int, count: int, dtype: Any, op: Any = "sum", stream: int = 0
    ) -> None:
        """Reduce ``count`` elements of every rank to every rank."""
        self._call("all_reduce", send_ptr, recv_ptr, count, dtype, op, 0, stream)

    def reduce(
        self, send_ptr: int, recv_ptr: int, count: int, dtype: Any, op: Any = "sum", root: int = 0, stream: int = 0
    ) -> None:
        """Reduce ``count`` elements of every rank to the root; ``recv_ptr`` counts there only."""
        self._call("reduce", send_ptr, recv_ptr, count, dtype, op, root, stream)

    def broadcast(self, send_ptr: int, recv_ptr: int, count: int, dtype: Any, root: int = 0, stream: int = 0) -> None:
        """Copy ``count`` elements from the root's ``send_ptr`` to every ``recv_ptr``."""
        self._call("broadcast", send_ptr, recv_ptr, count, dtype, None, root, stream)

    def reduce_scatter(
        self, send_ptr: int, recv_ptr: int, recv_count: int, dtype: Any, op: Any = "sum", stream: int = 0
    ) -> None:
        """Reduce ``size * recv_count`` elements and leave each rank its ``recv_count``."""
        self._call("reduce_scatter", send_ptr, recv_ptr, recv_count, dtype, op, 0, stream)

    def all_gather(self, send_ptr: int, recv_ptr: int, send_count: int, dtype: Any, stream: int = 0) -> None:
        """Gather ``send_count`` elements of every rank on every rank."""
        self._call("all_gather", send_ptr, recv_ptr, send_count, dtype, None, 0, stream)

    def all_to_all(self, send_ptr: int, recv_ptr: int, count: int, dtype: Any, stream: int = 0) -> None:
        """Send ``count`` elements to every rank, and receive as many from each."""
        self._call("all_to_all", send_ptr, recv_ptr, count, dtype, None, 0, stream)

    def gather(self, send_ptr: int, recv_ptr: int, count: int, dtype: Any, root: int = 0, stream: int = 0) -> None:
        """Gather ``count`` elements of every rank on the root."""
        self._call("gather", send_ptr, recv_ptr, count, dtype, None, root, stream)

    def scatter(self, send_ptr: int, recv_ptr: int, count: int, dtype: Any, root: int = 0, stream: int = 0) -> None:
        """Leave each rank ``count`` of the root's ``size * count`` elements."""
        self._call("scatter", send_ptr, recv_ptr, count, dtype, None, root, stream)

    def send(self, send_ptr: int, count: int, dtype: Any, peer: int, stream: int = 0) -> None:
        """Send to a peer."""
        self._transfer("send", send_ptr, count, dtype, peer, stream)

    def recv(self, recv_ptr: int, count: int, dtype: Any, peer: int, stream: int = 0) -> None:
        """Receive from a peer."""
        self._transfer("recv", recv_ptr, count, dtype, peer, stream)

    def barrier(self, stream: int = 0) -> None:
        """Wait until every rank has come here."""
        self._call("barrier", 0, 0, 0, "uint8", None, 0, stream)

    def last_error(self) -> str:
        """Return the text of the last error that a C-callable returned a code for; empty if there was none."""
        return self._last_error

    def address(self, collective: str) -> int:
        """Return a function pointer for callers in C and C++.

        Parameters
        ----------
        collective : str
            ``"all_reduce"`` and so on.

        Returns
        -------
        int
            Of ``int f(const void *send, void *recv, size_t count, int dtype[, int op][, int root], void *stream)``:
            NCCL's argument order without the communicator, ``op`` for collectives that reduce, ``root`` for those that
            have one. It returns 0, or a code of :data:`ERROR_CODES` with the text in :meth:`last_error`. Valid as long
            as the communicator object lives; takes the interpreter's lock, so that any thread may call it.

        Raises
        ------
        ArgumentError
            If there is no such collective.
        """
        if collective not in _SHAPES:
            raise ArgumentError(f"raw.address: got {collective!r}, wanted one of {', '.join(_SHAPES)}")
        pointer = self._pointers.get(collective)
        if pointer is None:
            method, extra = getattr(self, collective), len(_SHAPES[collective].split())

            def call(send: int | None, recv: int | None, count: int, dtype: int, *rest: Any) -> int:
                try:
                    method(send or 0, recv or 0, count, dtype, *rest[:extra], stream=rest[extra] or 0)
                except BaseException as error:  # nothing may leave through C, not even Ctrl-C
                    self._last_error = f"{type(error).__name__}: {error}"
                    return next((code for kind, code in ERROR_CODES.items() if isinstance(error, kind)), 3)
                return 0

            kinds = [
                ctypes.c_void_p,
                ctypes.c_void_p,
                ctypes.c_size_t,
                ctypes.c_int,
                *[ctypes.c_int] * extra,
                ctypes.c_void_p,
            ]
            pointer = ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(call)
            self._pointers[collective] = pointer
        return ctypes.cast(pointer, ctypes.c_void_p).value or 0

    def _call(
        self, name: str, send_ptr: int, recv_ptr: int, count: int, dtype: Any, op: Any, root: int, stream: int
    ) -> None:
        invocation = None
        if type(send_ptr) is type(recv_ptr) is int and 0 <= send_ptr < 1 << 63 and 0 <= recv_ptr < 1 << 63:
            with suppress(TypeError):  # what cannot be hashed is refused below
                invocation = self._invocations.get((name, count, dtype, op, root, stream))
        if invocation is None:
            invocation, send_ptr, recv_ptr = self._prepare(name, send_ptr, recv_ptr, count, dtype, op, root, stream)
        gate = self._engine.gate
        taken, gate.idle = gate.idle, False
        if taken:
            try:
                invocation.run(send_ptr, recv_ptr)
            finally:
                gate.idle = True
                if gate.waiting:
                    gate.wake()
            return
        action = CollectiveAction(name, None, (), invocation, None)
        action.x_address, action.out_address = send_ptr, recv_ptr
        self._engine.launch(action)

    def _prepare(
        self, name: str, send_ptr: Any, recv_ptr: Any, count: int, dtype: Any, op: Any, root: int, stream: int
    ) -> tuple[Any, int, int]:
        engine = self._engine
        engine.require_open()
        executor = engine.executor
        try:
            streams = streams_of(executor, name, stream)
            send_ptr, recv_ptr = _address(name, "send_ptr", send_ptr), _address(name, "recv_ptr", recv_ptr)
            element, elements = _dtype(name, dtype), index_of(name, "count", count)
            if elements < 0:
                raise ArgumentError(f"{name}: count: got {elements}, wanted 0 or more elements")
            operation = None
            if op is not None:
                operation = _operation(name, op)
                check_operation(operation, element, f"{name}: ")
            if name not in ("all_reduce", "reduce", "broadcast", "barrier"):
                elements *= executor.size
            request = Request(name, element, operation, root_of(executor, name, root))
            invocation: Any
            if executor.on_device is not None and name != "barrier":
                invocation = InStreams(executor.on_device.prepare_on_device(request, elements), streams)
            else:
                invocation = executor.prepare(request, elements)
            hash((dtype, op, stream))
        except BaseException:
            engine.refuse()
            raise
        if len(self._invocations) >= 1024:
            self._invocations.clear()
        self._invocations[name, count, dtype, op, root, stream] = invocation
        return invocation, send_ptr, recv_ptr

    def _transfer(self, name: str, address: int, count: int, dtype: Any, peer: int, stream: int) -> None:
        executor = self._engine.executor
        action = TransferAction(name, None, (), executor, None)
        action.streams = streams_of(executor, name, stream)
        bind_streams(executor, action, action.streams)
        elements, to = index_of(name, "count", count), root_of(executor, name, peer, "peer")
        span = (_address(name, f"{name}_ptr", address), elements, _dtype(name, dtype), to)
        (action.sends if name == "send" else action.receives).append(span)
        self._engine.launch(action)


def _address(name: str, what: str, value: Any) -> int:
    address = index_of(name, what, value)
    if not 0 <= address < 1 << 63:
        raise ArgumentError(f"{name}: {what}: got {address:#x}, wanted an address from 0 to 2**63 - 1")
    return address


def _dtype(name: str, value: Any) -> DType:
    if isinstance(value, int) and not isinstance(value, bool):
        found = _DTYPES.get(value)
        if found is None:
            raise ArgumentError(
                f"{name}: dtype: got code {value}, wanted one of "
                f"{', '.join(f'{d.code} ({d.name})' for d in DTYPES.values())}"
            )
        return found
    return dtype_of(value, f"{name}: dtype")


def _operation(name: str, value: Any) -> Reduction:
    if isinstance(value, int) and not isinstance(value, bool):
        found = _OPERATIONS.get(value)
        if found is None:
            raise ArgumentError(
                f"{name}: op: got code {value}, wanted one of "
                f"{', '.join(f'{o.code} ({o.name})' for o in OPERATIONS.values())}"
            )
        return found
    return operation_of(cast(Any, value), f"{name}: op")
