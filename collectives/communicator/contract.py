"""What a communicator asks of the executor below it."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from multiring.collectives.request import Request
from multiring.collectives.schedules.explanation import Explanation
from multiring.kernels.dtypes import DType

__all__ = ["Executor", "Invocation", "Span"]

Span = tuple[int, int, DType, int]
"""One message: (address, elements, element type, peer)."""


class Invocation(Protocol):
    """A request bound to a number of elements: made once, run many times."""

    def run(self, x_address: int, out_address: int, timeout_s: float | None = None) -> None:
        """Run and wait for the end; equal addresses mean in place, address 0 that this rank has no such array."""


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
