"""The communicator: its life, and what it tells."""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import Any, Self

from numpy.typing import NDArray

from multiring.collectives.communicator.action import Action, FunctionAction
from multiring.collectives.communicator.buckets import BucketStore
from multiring.collectives.communicator.check import input_view, require_device, shape_of
from multiring.collectives.communicator.contract import Executor
from multiring.collectives.communicator.engine import Engine
from multiring.collectives.communicator.moving import Moving
from multiring.collectives.communicator.options import index_of
from multiring.collectives.communicator.planning import Planning
from multiring.collectives.communicator.raw import Raw
from multiring.collectives.communicator.reducing import Reducing
from multiring.collectives.communicator.start import start_executor
from multiring.collectives.communicator.transferring import Transferring
from multiring.collectives.communicator.warm import Warm
from multiring.errors import ArgumentError, CommunicatorClosed
from multiring.kernels.dtypes import dtype_of

__all__ = ["Communicator"]


class Communicator(Reducing, Moving, Transferring, Planning):
    """Ranks that call collectives together.

    Made by :func:`multiring.init`, :meth:`from_mpi`, :meth:`split` or :meth:`dup`. Every rank must make the same
    collective calls in the same order. Calls of several threads run one after the other; separate communicators are
    independent.

    Parameters
    ----------
    executor : Executor
        This rank's end.
    """

    def __init__(self, executor: Executor) -> None:
        engine = Engine(executor)
        self._engine = engine
        self._buckets = BucketStore(executor)
        self._warm = Warm(engine)
        self._barrier = None
        self._hot = {}
        self._hot_dtypes = []
        self._raw = Raw(engine)
        weakref.finalize(self, engine.queue.stop)

    @classmethod
    def from_mpi(cls, comm: Any, device: str = "auto", timeout: float = 300.0) -> Self:
        """Return the communicator of an mpi4py communicator's ranks, which is duplicated.

        Parameters
        ----------
        comm : mpi4py.MPI.Intracomm
        device : str
            ``"auto"``, ``"host"`` or ``"cuda"``.
        timeout : float
            Seconds that a call waits for its peers; above 0 and at most 1e9.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            If an argument is wrong.
        LaunchError
            If the ranks do not come together.
        """
        return cls(start_executor(device, timeout, comm, over_mpi=True))

    @property
    def rank(self) -> int:
        """Number of this process."""
        return self._engine.executor.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._engine.executor.size

    @property
    def local_rank(self) -> int:
        """Number of this process among the ranks of its node."""
        return self._engine.executor.local_rank

    @property
    def local_size(self) -> int:
        """Ranks on this node."""
        return self._engine.executor.local_size

    @property
    def node(self) -> int:
        """Number of this node."""
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
            C-ordered, 64-byte aligned; CuPy's if :attr:`device` is ``"cuda"``. Local: ranks need not agree; freed by
            Python's collector.

        Raises
        ------
        SharedMemoryError
            If there is too little.
        """
        self._engine.require_open()
        return self._engine.executor.empty(shape_of("empty", shape), dtype_of(dtype, "empty: dtype"))

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
        executor = self._engine.executor
        require_device(executor, "register", "x", view)
        if view.contiguous and executor.is_symmetric(view.address, view.nbytes):
            return x
        kind = "host memory" if executor.device == "host" else "device memory of another library"
        raise ArgumentError(
            f"register: got an array of {view.nbytes} bytes in this process's own memory, wanted symmetric memory: "
            f"{kind} cannot be made symmetric afterwards; use comm.empty({view.shape}, {view.dtype.name!r}) "
            "and copy into it, or "
            "pass x as it is (copied)"
        )

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
            for name, value in (("color", chosen or 0), ("key", order)):
                if not -(1 << 63) <= value < 1 << 63:
                    raise ArgumentError(
                        f"split: {name}: got a whole number of {value.bit_length()} bits, wanted at most 63"
                    )
            if self._engine.own_group() is not None:
                raise ArgumentError("split: called inside a group, wanted after it: its result is needed at once")
            return FunctionAction("split", lambda: executor.split(chosen, order))

        executor = self._engine.launch(self._build(build_split))
        return None if executor is None else Communicator(executor)

    def dup(self) -> Communicator:
        """Return another communicator of the same ranks; all ranks must call."""
        twin = self.split(0, self.rank)
        if twin is None:  # only a rank without a color gets none
            raise CommunicatorClosed(f"dup: rank {self.rank} of {self.size} got no communicator")
        return twin

    def check(self) -> None:
        """Raise what has gone wrong so far, if anything: a peer's end, an abort, an error of an asynchronous device."""
        self._engine.require_open()
        self._engine.executor.check()

    def refuse(self) -> None:
        """Publish this rank's next call as refused, for what is built on calls and found a bad argument itself.

        If all ranks refuse, nothing happens; else the others get :class:`~multiring.MismatchError` instead of waiting.
        """
        self._engine.refuse()

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and issubclass(kind, (Exception, KeyboardInterrupt)):
            # The others must not wait for a rank that will not come.
            self.abort(f"rank {self.rank} left with {kind.__name__}: {error}")
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"Communicator(rank={self.rank}, size={self.size}, device={self.device!r}{state})"
