"""What one line of a benchmark is: how many elements each rank sends and receives, and how bandwidth is counted.

Sizes, counts and factors are those of nccl-tests (doc/PERFORMANCE.md there): the figures can be laid side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from multiring.errors import ArgumentError
from multiring.kernels.dtypes import DType
from multiring.kernels.operations import Reduction

__all__ = ["COLLECTIVES", "SPELLINGS", "Case", "Shape", "bus_factor", "collective_of", "make_case"]


@dataclass(frozen=True, slots=True)
class Shape:
    """How a collective's buffers follow from its count.

    Attributes
    ----------
    reduces, rooted : bool
        Whether contributions are combined; whether there is a root.
    send_parts, receive_parts : bool
        Whether the buffer that is sent, and the one received, hold one part for each rank (else one part in all). The
        printed size is that of the larger buffer, so it is the total for collectives with parts.
    in_place : str
        ``"same"``: one buffer; ``"receive"``: the receive buffer is the rank's own part of the send buffer; ``"send"``:
        the reverse; ``"none"``: the collective cannot be done in place.
    """

    reduces: bool = False
    rooted: bool = False
    send_parts: bool = False
    receive_parts: bool = False
    in_place: str = "same"


COLLECTIVES: dict[str, Shape] = {
    "all_reduce": Shape(reduces=True),
    "reduce": Shape(reduces=True, rooted=True),
    "broadcast": Shape(rooted=True),
    "reduce_scatter": Shape(reduces=True, send_parts=True, in_place="receive"),
    "all_gather": Shape(receive_parts=True, in_place="send"),
    "all_to_all": Shape(send_parts=True, receive_parts=True, in_place="none"),
    "gather": Shape(rooted=True, receive_parts=True, in_place="send"),
    "scatter": Shape(rooted=True, send_parts=True, in_place="receive"),
    "sendrecv": Shape(in_place="none"),
}
"""By name. ``sendrecv``: every rank sends to the next one and receives from the one before."""

SPELLINGS: dict[str, str] = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "send_recv": "sendrecv",
}
"""What others call them."""


def collective_of(name: str) -> str:
    """Return our spelling of a collective's name.

    Raises
    ------
    ArgumentError
        If there is no such collective.
    """
    plain = name.lower().replace("-", "_").removesuffix("_perf")
    plain = SPELLINGS.get(plain, plain)
    if plain not in COLLECTIVES:
        raise ArgumentError(f"collective: got {name!r}, wanted one of {', '.join(COLLECTIVES)}")
    return plain


def bus_factor(collective: str, n_ranks: int) -> float:
    """Return bus bandwidth over algorithm bandwidth.

    Notes
    -----
    The bus bandwidth is a normalised number: the algorithm bandwidth times the share of the data that has to cross from
    one rank to another in the best schedule without multicast. It is not traffic on a link.
    """
    if collective == "all_reduce":
        return 2 * (n_ranks - 1) / n_ranks
    if collective in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (n_ranks - 1) / n_ranks
    return 1.0


@dataclass(frozen=True, slots=True)
class Case:
    """One line of a sweep.

    Attributes
    ----------
    collective : str
        A key of :data:`COLLECTIVES`.
    n_ranks : int
    count : int
        Elements, as in nccl-tests' column: for each rank and part.
    dtype : DType
    operation : Reduction or None
        None where nothing is reduced.
    operation_name : str
        As printed: ``"none"`` where nothing is reduced.
    root : int
        -1 where there is none.
    wire : DType or None
        The type that travels, if it is not ``dtype``.
    """

    collective: str
    n_ranks: int
    count: int
    dtype: DType
    operation: Reduction | None = None
    operation_name: str = "none"
    root: int = -1
    wire: DType | None = None

    @property
    def shape(self) -> Shape:
        """How the buffers follow from the count."""
        return COLLECTIVES[self.collective]

    @property
    def send_count(self) -> int:
        """Elements of the buffer that is sent."""
        return self.count * (self.n_ranks if self.shape.send_parts else 1)

    @property
    def receive_count(self) -> int:
        """Elements of the buffer that is received."""
        return self.count * (self.n_ranks if self.shape.receive_parts else 1)

    @property
    def size_bytes(self) -> int:
        """The size as printed: bytes of the larger buffer."""
        return max(self.send_count, self.receive_count) * self.dtype.itemsize

    def alg_bw_gbs(self, time_us: float | None) -> float | None:
        """Return the algorithm bandwidth in GB/s (1e9 bytes), None without a time."""
        if time_us is None:
            return None
        return self.size_bytes / time_us / 1e3 if time_us > 0 else 0.0

    def bus_bw_gbs(self, time_us: float | None) -> float | None:
        """Return the bus bandwidth in GB/s; None without a time and for one rank, where nothing crosses."""
        alg_bw_gbs = self.alg_bw_gbs(time_us)
        if alg_bw_gbs is None or self.n_ranks == 1:
            return None
        return alg_bw_gbs * bus_factor(self.collective, self.n_ranks)

    def split(self, rank: int, send: Any, receive: Any) -> tuple[Any, Any] | None:
        """Return the send and receive arrays of the call in place.

        Parameters
        ----------
        rank : int
        send, receive : ndarray
            The two buffers of the call out of place; the larger becomes both.

        Returns
        -------
        tuple of two ndarrays, or None
            At NCCL's positions; None where the collective has no call in place.
        """
        own = slice(rank * self.count, (rank + 1) * self.count)
        kind = self.shape.in_place
        if kind == "same":
            return send, send
        if kind == "receive":
            return send, send[own]
        return (receive[own], receive) if kind == "send" else None


def make_case(
    collective: str,
    n_ranks: int,
    nbytes: int,
    dtype: DType,
    operation: Reduction | None = None,
    operation_name: str = "none",
    root: int = -1,
    wire: DType | None = None,
) -> Case:
    """Return the case whose larger buffer holds at most ``nbytes`` bytes.

    Notes
    -----
    The count is rounded down to whole elements, for collectives with parts to whole elements of each rank, as in
    nccl-tests but without its rounding to 16 bytes. The printed size is what is left.
    """
    shape = COLLECTIVES[collective]
    parts = n_ranks if shape.send_parts or shape.receive_parts else 1
    return Case(collective, n_ranks, nbytes // (dtype.itemsize * parts), dtype, operation, operation_name, root, wire)
