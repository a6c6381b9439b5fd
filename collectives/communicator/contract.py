"""What a communicator asks of the executor below it."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from multiring.collectives.request import Request
from multiring.collectives.schedules.explanation import Explanation
from multiring.kernels.dtypes import DType

__all__ = ["DeviceCall", "Executor", "Invocation", "OnDevice", "Span"]

Span = tuple[int, int, DType, int]
"""One message: (address, elements, element type, peer)."""


class Invocation(Protocol):
    """A request bound to a number of elements: made once, run many times."""

    def run(self, x_address: int, out_address: int, timeout_s: float | None = None) -> None:
        """Run and wait for the end; equal addresses mean in place, address 0 that this rank has no such array."""


class DeviceCall(Protocol):
    """An invocation on arrays in device memory, in the order of streams."""

    def run(
        self, x_address: int, out_address: int, timeout_s: float | None = None, streams: tuple[int, ...] = (0,)
    ) -> None:
        """Run it in the first stream, after what is in the others."""


class OnDevice(Protocol):
    """What an executor can do with arrays in device memory."""

    def prepare_on_device(self, request: Request, count: int, counts: tuple[int, ...] | None = None) -> DeviceCall:
        """Return the invocation of a request on arrays in device memory."""
        ...

    def exchange_on_device(
        self, sends: list[Span], receives: list[Span], timeout_s: float | None, streams: tuple[int, ...]
    ) -> None:
        """Send and receive arrays in device memory."""

    def copy_on_device(self, destination: Any, source: Any, streams: tuple[int, ...]) -> None:
        """Copy between two arrays of any layout in device memory, given by their shadows."""

    def finish(self) -> None:
        """Wait until this rank's kernels are done, and raise what went wrong in them."""

    def check_here(self, name: str, address: int) -> None:
        """Refuse an array on another GPU."""


class Executor(Protocol):
    """One rank's end of a communicator: plans and drivers."""

    @property
    def rank(self) -> int:
        """Number of this process."""
        ...

    @property
    def size(self) -> int:
        """Number of ranks."""
        ...

    @property
    def closed(self) -> bool:
        """Whether it was closed, by an error too."""
        ...

    @property
    def local_rank(self) -> int:
        """Number of this process among those of its node."""
        ...

    @property
    def local_size(self) -> int:
        """Ranks on this node."""
        ...

    @property
    def node(self) -> int:
        """Number of this node."""
        ...

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        ...

    @property
    def device(self) -> str:
        """``"host"`` or ``"cuda"``."""
        ...

    @property
    def on_device(self) -> OnDevice | None:
        """What works on the caller's arrays if ``device`` is ``"cuda"``; None on the host."""
        ...

    @property
    def topology(self) -> Any:
        """What connects the ranks."""
        ...

    def prepare(self, request: Request, count: int, counts: tuple[int, ...] | None = None) -> Invocation:
        """Return the (cached) invocation of a request for ``count`` elements."""
        ...

    def refuse(self) -> None:
        """Publish this rank's next collective as refused."""

    def empty(self, shape: tuple[int, ...], dtype: DType) -> NDArray[Any]:
        """Return an array in symmetric memory."""
        ...

    def is_symmetric(self, address: int, nbytes: int) -> bool:
        """Return whether memory is symmetric."""
        ...

    def send(self, address: int, count: int, dtype: DType, peer: int, timeout_s: float | None) -> None:
        """Send to a peer."""

    def recv(self, address: int, count: int, dtype: DType, peer: int, timeout_s: float | None) -> None:
        """Receive from a peer."""

    def exchange(self, sends: list[Span], receives: list[Span], timeout_s: float | None) -> None:
        """Send and receive, all at once."""

    def split(self, color: int | None, key: int) -> Executor | None:
        """Return the executor of the ranks with this color, in order of (key, rank)."""
        ...

    def explain(self, request: Request, count: int, *, symmetric: bool = True, in_place: bool = False) -> Explanation:
        """Return the plan with its price."""
        ...

    def describe(self, request: Request, count: int) -> str:
        """Return the plan as text."""
        ...

    def check(self) -> None:
        """Raise what has gone wrong so far."""

    def abort(self, reason: str) -> None:
        """Make every rank's calls raise."""

    def close(self) -> None:
        """Leave."""
