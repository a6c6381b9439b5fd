"""What must be true before and after each collective, over (rank, chunk)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from multiring.errors import ScheduleError

__all__ = ["COLLECTIVES", "Collective", "Pattern"]

Chunks = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pattern:
    """Where the parts of a vector lie before and after a collective.

    The vector of a collective is cut into parts (one for each rank, or ``n_ranks ** 2`` for all_to_all, or one), and
    each part into the same number of chunks.

    Attributes
    ----------
    code : int
        Small number that stands for the collective in fingerprints.
    reduces : bool
        Whether the chunks of all ranks are combined.
    before, after : str
        Which parts a rank holds: ``"all"``, ``"own"`` (part number ``rank``), ``"root"`` (all on the root, else none),
        ``"row"`` (parts ``rank * n_ranks + j``), ``"column"`` (parts ``j * n_ranks + rank``), ``"none"``.
    rooted : bool
        Whether the collective has a root.
    """

    code: int
    reduces: bool
    before: str
    after: str
    rooted: bool = False


COLLECTIVES: dict[str, Pattern] = {
    "barrier": Pattern(0, False, "none", "none"),
    "all_reduce": Pattern(1, True, "all", "all"),
    "reduce": Pattern(2, True, "all", "root", rooted=True),
    "broadcast": Pattern(3, False, "root", "all", rooted=True),
    "reduce_scatter": Pattern(4, True, "all", "own"),
    "all_gather": Pattern(5, False, "own", "all"),
    "all_to_all": Pattern(6, False, "row", "column"),
    "gather": Pattern(7, False, "own", "root", rooted=True),
    "scatter": Pattern(8, False, "root", "own", rooted=True),
}


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective: what every rank holds before it and after it.

    Parameters
    ----------
    name : str
        A key of :data:`COLLECTIVES`.
    root : int
        The rank that a rooted collective starts or ends at; 0 elsewhere.
    """

    name: str
    root: int = 0

    def __post_init__(self) -> None:
        if self.name not in COLLECTIVES:
            raise ScheduleError(f"collective: got {self.name!r}, wanted one of {', '.join(COLLECTIVES)}")
        if self.root < 0 or (self.root and not self.pattern.rooted):
            raise ScheduleError(f"{self.name}: got root {self.root}, wanted {'>= 0' if self.pattern.rooted else '0'}")

    @property
    def pattern(self) -> Pattern:
        """The pre- and postcondition."""
        return COLLECTIVES[self.name]

    @property
    def reduces(self) -> bool:
        """Whether the chunks of all ranks are combined."""
        return self.pattern.reduces

    def n_parts(self, n_ranks: int) -> int:
        """Return how many parts the vector has: chunks come as a multiple of it."""
        kinds = (self.pattern.before, self.pattern.after)
        if "row" in kinds:
            return n_ranks * n_ranks
        return n_ranks if "own" in kinds else 1

    def before(self, rank: int, n_ranks: int, n_chunks: int) -> Chunks:
        """Return the chunks that ``rank`` holds at the start, ascending."""
        return self._chunks(self.pattern.before, rank, n_ranks, n_chunks)

    def after(self, rank: int, n_ranks: int, n_chunks: int) -> Chunks:
        """Return the chunks that ``rank`` must hold at the end, ascending."""
        return self._chunks(self.pattern.after, rank, n_ranks, n_chunks)

    def _chunks(self, kind: str, rank: int, n_ranks: int, n_chunks: int) -> Chunks:
        chunks: Chunks = np.arange(n_chunks, dtype=np.int64)
        if kind == "all" or (kind == "root" and rank == self.root):
            return chunks
        if kind in ("none", "root"):
            return chunks[:0]
        part = chunks // (n_chunks // self.n_parts(n_ranks))
        owner = part if kind == "own" else part // n_ranks if kind == "row" else part % n_ranks
        held: Chunks = chunks[owner == rank]
        return held
