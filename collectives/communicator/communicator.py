"""The communicator: its life, and what it tells."""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import Any, Self

from numpy.typing import NDArray

from multiring.collectives.communicator import build, build_transfer, build_variable
from multiring.collectives.communicator.action import Action, CollectiveAction, FunctionAction
from multiring.collectives.communicator.buckets import BucketStore
from multiring.collectives.communicator.check import input_view, shape_of
from multiring.collectives.communicator.contract import Executor
from multiring.collectives.communicator.engine import Engine
from multiring.collectives.communicator.moving import Moving
from multiring.collectives.communicator.options import check_names, index_of, request_of, root_of, timeout_of
from multiring.collectives.communicator.prepared import PreparedCall, prepared
from multiring.collectives.communicator.raw import Raw
from multiring.collectives.communicator.reducing import Reducing
from multiring.collectives.communicator.start import start_executor
from multiring.collectives.communicator.transferring import Transferring
from multiring.collectives.request import Request
from multiring.collectives.schedules.collective import COLLECTIVES
from multiring.errors import ArgumentError, CommunicatorClosed
from multiring.kernels.dtypes import DTYPES, dtype_of

__all__ = ["Communicator"]

_BUILDERS: dict[str, Any] = {
    "all_reduce": build.all_reduce,
    "reduce": build.reduce,
    "broadcast": build.broadcast,
    "reduce_scatter": build.reduce_scatter,
    "all_gather": build.all_gather,
    "all_to_all": build.all_to_all,
    "gather": build.gather,
    "scatter": build.scatter,
    "reduce_scatter_v": build_variable.reduce_scatter_v,
    "all_gather_v": build_variable.all_gather_v,
    "all_to_all_v": build_variable.all_to_all_v,
    "send": build_transfer.send,
    "recv": build_transfer.recv,
    "send_recv": build_transfer.send_recv,
}


class Communicator(Reducing, Moving, Transferring):
    """Ranks that call collectives together.

    Made by :func:`multiring.init`, :meth:`from_mpi`, :meth:`split` or :meth:`dup`. Every rank must make the same collective
    calls in the same order. Calls of several threads run one after the other; separate communicators are independent.

    Parameters
    ----------
    executor : Executor
        This rank's end.
    """

    def __init__(self, executor: Executor) -> None:
        engine = Engine(executor)
        self._engine = engine
        self._buckets = BucketStore(executor)
        self._hot = {}
        self._hot_dtypes = []
        self._raw = Raw(engine)
        weakref.finalize(self, engine.queue.stop)

    @classmethod
    def from_mpi(cls, comm: Any, device: str = "auto", timeout: float = 300.0) -> Self:
        """Return the communicator of an mpi4py communicator's ranks, which is duplicated.

        Parameters
        ----------
        comm : mpi4py.MPI.Comm
        device : str
            ``"auto"``, ``"host"`` or ``"cuda"``.
        timeout : float
            Seconds that a call waits for its peers.
        """
        return cls(start_executor(device, timeout, comm))

    @property
    def rank(self) -> int:
        """This process's number."""
        return self._engine.executor.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._engine.executor.size

    @property
    def local_rank(self) -> int:
        """This process's number among the ranks of its node."""
        return self._engine.executor.local_rank

    @property
    def local_size(self) -> int:
        """Ranks on this node."""
        return self._engine.executor.local_size

    @property
    def node(self) -> int:
        """This node's number."""
        return self._engine.executor.node

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return self._engine.executor.n_nodes

    @property
    def device(self) -> str:
        """``"host"`` or ``"cuda"``."""
        return self._engine.executor.device

    @property
    def topology(self) -> Any:
        """What connects the ranks, as agreed by all of them."""
        return self._engine.executor.topology

    @property
    def closed(self) -> bool:
        """Whether it was closed, here or by an error."""
        return self._engine.closed or self._engine.executor.closed

    @property
    def raw(self) -> Raw:
        """The collectives on plain addresses."""
        return self._raw

    def empty(self, shape: Any, dtype: Any = "float32") -> NDArray[Any]:
        """Return an uninitialised array in symmetric memory, which peers read and write without copies.

        Parameters
        ----------
        shape : int or tuple of int
        dtype : dtype
            ``"bfloat16"`` gives ml_dtypes' type.

        Returns
        -------
        ndarray
            C-ordered, 64-byte aligned. Local: ranks need not agree; freed by Python's collector.

        Raises
        ------
        SharedMemoryError
            If there is too little.
        """
        self._engine.require_open()
        return self._engine.executor.empty(shape_of("empty", shape), dtype_of(dtype))

    def register(self, x: Any) -> Any:
        """Make an existing array symmetric where the device allows it.

        On the host it does not: memory that a process has by itself cannot be mapped by others.

        Returns
        -------
        array
            ``x``, if it is symmetric already.

        Raises
        ------
        ArgumentError
            If it is not: make it with :meth:`empty` and copy into it.
        """
        self._engine.require_open()
        view = input_view("register", "x", x)
        if view.contiguous and self._engine.executor.is_symmetric(view.address, view.nbytes):
            return x
        raise ArgumentError(
            f"register: got an array of {view.nbytes} bytes in this process's own memory, wanted symmetric memory: host memory cannot be "
            f"made symmetric afterwards; use comm.empty({view.shape}, {view.dtype.name!r}) and copy into it, or pass x as it is (copied)"
        )

    def prepare(self, collective: str, *args: Any, **options: Any) -> PreparedCall:
        """Check and bind a call once, to call it often: the lowest latency.

        Parameters
        ----------
        collective : str
            The name of a method: ``"all_reduce"``, ``"all_reduce_many"``, ``"send_recv"``, ``"barrier"``, ...
        *args, **options
            Its arguments, but ``async_op``. Counts must be given in full.

        Returns
        -------
        callable
            Without arguments; returns the output array. It keeps its arrays alive, and packs and writes back at every call where
            a layout needs that. Preparing is local; calling is a collective.
        """
        self._engine.require_open()
        if options.get("async_op"):
            raise ArgumentError(f"prepare: got async_op for {collective!r}, wanted a synchronous call; call the method for a Work")
        executor = self._engine.executor
        if collective == "barrier":
            check_names("barrier", options, frozenset(("timeout",)))
            invocation = executor.prepare(Request("barrier", DTYPES["uint8"]), 0)
            limit_s = timeout_of("barrier", options.get("timeout"))
            return prepared(self._engine, CollectiveAction("barrier", None, (), invocation, limit_s))
        if collective == "all_reduce_many":
            return prepared(self._engine, self._buckets.build(*args, options))
        builder = _BUILDERS.get(collective)
        if builder is None:
            names = ", ".join([*_BUILDERS, "all_reduce_many", "barrier"])
            raise ArgumentError(f"prepare: got {collective!r}, wanted one of {names}")
        action: Action = builder(executor, *args, **options)
        return prepared(self._engine, action)

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Return the communicator of the ranks that gave the same color; all ranks must call.

        Parameters
        ----------
        color : int or None
            None: this rank is in none of them.
        key : int
            The new ranks are in order of (key, rank here).

        Returns
        -------
        Communicator or None
            None where ``color`` is.
        """

        def build_split(executor: Executor) -> Action:
            chosen = None if color is None else index_of("split", "color", color)
            order = index_of("split", "key", key)
            return FunctionAction("split", lambda: executor.split(chosen, order))

        action = self._build(build_split)
        if self._engine.own_group() is not None:
            raise ArgumentError("split: called inside a group, wanted after it: its result is needed at once")
        executor = self._engine.launch(action)
        return None if executor is None else Communicator(executor)

    def dup(self) -> Communicator:
        """Return another communicator of the same ranks; all ranks must call."""
        twin = self.split(0, self.rank)
        if twin is None:  # only a rank without a color gets none
            raise CommunicatorClosed(f"dup: rank {self.rank} of {self.size} got no communicator")
        return twin

    def explain(
        self, collective: str, nbytes: int | None = None, dtype: Any = "float32", *, count: int | None = None, root: int = 0, **options: Any
    ) -> str:
        """Return the plan of a call as text: the steps, the reason for the choice, and the alternatives.

        Parameters
        ----------
        collective : str
        nbytes : int, optional
            Bytes of the whole array; or give ``count``.
        dtype : dtype
        count : int, optional
            Elements of the whole array.
        root : int
        **options
            ``op``, ``wire``, ``accumulate``, ``algorithm``, ``order``, ``schedule``, as for the call.
        """
        self._engine.require_open()
        pattern = COLLECTIVES.get(collective)
        if pattern is None:
            raise ArgumentError(f"explain: got {collective!r}, wanted one of {', '.join(COLLECTIVES)}")
        executor, element = self._engine.executor, dtype_of(dtype)
        if (nbytes is None) == (count is None) and collective != "barrier":
            raise ArgumentError(f"explain: got nbytes={nbytes} and count={count}, wanted one of them")
        elements = index_of("explain", "nbytes", nbytes or 0) // element.itemsize if count is None else index_of("explain", "count", count)
        if elements < 0:
            raise ArgumentError(f"explain: got {elements} elements, wanted 0 or more")
        place = root_of(executor, "explain", root)
        return executor.describe(
            request_of(executor, collective, element, options, reduces=pattern.reduces, root=place),  # type: ignore[arg-type]
            elements,
        )

    def check(self) -> None:
        """Raise what has gone wrong so far, if anything: a peer's end, an abort, an error of an asynchronous device."""
        self._engine.require_open()
        self._engine.executor.check()

    def abort(self, reason: str) -> None:
        """Make the calls of every rank raise, also those that are waiting, and close for good.

        Parameters
        ----------
        reason : str
            What the other ranks' errors say.
        """
        if not self._engine.closed:
            self._engine.executor.abort(str(reason))

    def close(self) -> None:
        """Finish queued calls and leave; peers that still need this rank get :class:`~multiring.CommunicatorClosed`.

        A second time does nothing.
        """
        self._engine.close(self._engine.executor.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None and issubclass(kind, (Exception, KeyboardInterrupt)):
            # The others must not wait for a rank that will not come.
            self.abort(f"rank {self.rank} left with {kind.__name__}: {error}")
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"Communicator(rank={self.rank}, size={self.size}, device={self.device!r}{state})"


