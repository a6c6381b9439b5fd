"""The lines of a benchmark: what was measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from multiring.bench.cases import Case
from multiring.kernels.dtypes import ALIASES

__all__ = ["Half", "PeerFigures", "Row", "average_bus_bandwidth", "count_errors", "type_name"]

_NCCL_NAMES = {ours: theirs for theirs, ours in ALIASES.items()}


def type_name(name: str) -> str:
    """Return nccl-tests' name of an element type: ``float`` for float32, and so on."""
    return _NCCL_NAMES.get(name, name)


@dataclass(frozen=True, slots=True)
class PeerFigures:
    """What a peer took for the same case on the same buffers.

    Attributes
    ----------
    time_us : float
    alg_bw_gbs, bus_bw_gbs : float or None
    ratio : float or None
        The peer's time over ours: above 1, ours is faster.
    n_wrong : int or None
        Wrong elements on all ranks; None unchecked.
    how : str
        What was called.
    fastest_us : float or None
        The best iteration's.
    """

    time_us: float
    alg_bw_gbs: float | None
    bus_bw_gbs: float | None
    ratio: float | None
    n_wrong: int | None
    how: str
    fastest_us: float | None = None


@dataclass(frozen=True, slots=True)
class Half:
    """One half of a line, out of place or in place.

    Attributes
    ----------
    time_us : float
        Median over iterations of the slowest rank.
    alg_bw_gbs, bus_bw_gbs : float or None
        As in nccl-tests; the bus bandwidth is None for one rank.
    n_wrong : int or None
        Wrong elements on all ranks; None unchecked.
    predicted_us : float or None
        By the model; None where there is none.
    limit_us : float or None
        Of plain copies, see :mod:`multiring.bench.limit`, or between nodes of a bare exchange, see
        :mod:`multiring.bench.wire_limit`; None where the ranks of a node share no memory.
    limit_bytes : int
        That the busiest receiver copies, or the busiest node sends or receives.
    peers : dict of str to PeerFigures
    fastest_us : float or None
        The best iteration's, by its slowest rank.
    """

    time_us: float
    alg_bw_gbs: float | None
    bus_bw_gbs: float | None
    n_wrong: int | None
    predicted_us: float | None = None
    limit_us: float | None = None
    limit_bytes: int = 0
    peers: dict[str, PeerFigures] = field(default_factory=dict)
    fastest_us: float | None = None

    @property
    def limit_percent(self) -> float | None:
        """The limit's time over ours, in percent."""
        if self.limit_us is None or self.time_us <= 0 or self.limit_bytes == 0:
            return None
        return 100 * self.limit_us / self.time_us


@dataclass(frozen=True, slots=True)
class Row:
    """One line: a case, the algorithm that did it, and its halves (None where there is no such call)."""

    case: Case
    algorithm: str
    out_of_place: Half | None
    in_place: Half | None
    iterations: int

    @property
    def halves(self) -> dict[str, Half | None]:
        """Both halves by the names of the JSON report."""
        return {"out_of_place": self.out_of_place, "in_place": self.in_place}


def average_bus_bandwidth(rows: Iterable[Row]) -> float | None:
    """Return the mean bus bandwidth over all halves in GB/s; None if none has one."""
    figures = [
        half.bus_bw_gbs
        for row in rows
        for half in row.halves.values()
        if half is not None and half.bus_bw_gbs is not None
    ]
    return sum(figures) / len(figures) if figures else None


def count_errors(rows: Iterable[Row]) -> int:
    """Return how many halves had wrong elements."""
    return sum(bool(half and half.n_wrong) for row in rows for half in row.halves.values())
