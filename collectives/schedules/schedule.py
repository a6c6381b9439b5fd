"""A collective algorithm as a value: steps of transfers over (rank, chunk)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.schedules.collective import Collective
from multiring.errors import ScheduleError

__all__ = ["Op", "Schedule", "Step", "Transfer"]

Column = NDArray[np.int32]


class Op(Enum):
    """What a transfer does to the chunk at its destination."""

    COPY = "="
    """Overwrite it."""
    REDUCE = "+"
    """Combine with it."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One arrow: ``dst``'s chunk becomes, or is combined with, ``src``'s chunk of the same number."""

    src: int
    dst: int
    chunk: int
    op: Op

    def __str__(self) -> str:
        return f"{self.src}→{self.dst} {self.op.value}c{self.chunk}"


class Step:
    """Transfers that happen at once: every read sees the state before the step.

    Several reduces into one (rank, chunk) are legal and add in ascending source rank; a copy together with anything
    else into one (rank, chunk) is not.

    Attributes
    ----------
    src, dst, chunk : ndarray of int32
    reduce : ndarray of bool
        Columns, one entry for each transfer; read-only.
    """

    __slots__ = ("chunk", "dst", "reduce", "src")

    def __init__(
        self,
        src: Sequence[int] | NDArray[np.integer],
        dst: Sequence[int] | NDArray[np.integer],
        chunk: Sequence[int] | NDArray[np.integer],
        reduce: bool | Sequence[bool] | NDArray[np.bool_],
    ) -> None:
        columns = [np.ascontiguousarray(c, dtype=np.int32).reshape(-1) for c in (src, dst, chunk)]
        self.src, self.dst, self.chunk = columns
        self.reduce: NDArray[np.bool_] = np.ascontiguousarray(
            np.broadcast_to(np.asarray(reduce, dtype=np.bool_), self.src.shape)
        )
        for column in (self.src, self.dst, self.chunk, self.reduce):
            if column.shape != self.src.shape:
                raise ScheduleError(f"step: columns of {[len(c) for c in columns]} entries, wanted equal lengths")
            column.setflags(write=False)

    @classmethod
    def of(cls, transfers: Iterable[Transfer]) -> Step:
        """Build a step from its arrows."""
        rows = list(transfers)
        return cls(
            [t.src for t in rows], [t.dst for t in rows], [t.chunk for t in rows], [t.op is Op.REDUCE for t in rows]
        )

    def __len__(self) -> int:
        return len(self.src)

    def __iter__(self) -> Iterator[Transfer]:
        for src, dst, chunk, reduce in zip(
            self.src.tolist(), self.dst.tolist(), self.chunk.tolist(), self.reduce.tolist(), strict=True
        ):
            yield Transfer(src, dst, chunk, Op.REDUCE if reduce else Op.COPY)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Step):
            return NotImplemented
        return all(np.array_equal(getattr(self, c), getattr(other, c)) for c in self.__slots__)

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, c).tobytes() for c in self.__slots__))

    def __repr__(self) -> str:
        return f"Step({'  '.join(map(str, self))})"


@dataclass(frozen=True)
class Schedule:
    """A collective algorithm: nothing else in multiring knows how a ring or a tree works.

    Parameters
    ----------
    collective : Collective
        What it promises.
    n_ranks : int
        At least 1.
    n_chunks : int
        Into how many chunks the vector is cut; a multiple of ``collective.n_parts(n_ranks)``.
    steps : tuple of Step
        In order; validated against ``n_ranks`` and ``n_chunks``. Whether they keep the promise is
        :func:`multiring.collectives.schedules.verify.verify`'s question.
    algorithm : str
        The name that built it, ``"custom"`` for a user's.

    Raises
    ------
    ScheduleError
        Naming the step and the transfer that is out of range.
    """

    collective: Collective
    n_ranks: int
    n_chunks: int
    steps: tuple[Step, ...]
    algorithm: str = "custom"

    def __post_init__(self) -> None:
        name = f"{self.algorithm} {self.collective.name}"
        if self.n_ranks < 1:
            raise ScheduleError(f"{name}: got {self.n_ranks} ranks, wanted at least 1")
        if self.collective.root >= self.n_ranks:
            raise ScheduleError(f"{name}: got root {self.collective.root}, wanted one of {self.n_ranks} ranks")
        parts = self.collective.n_parts(self.n_ranks)
        if self.n_chunks < 1 or self.n_chunks % parts:
            raise ScheduleError(f"{name}: got {self.n_chunks} chunks, wanted a multiple of its {parts} parts")
        object.__setattr__(self, "steps", tuple(self.steps))
        for index, step in enumerate(self.steps):
            for column, end, what in (
                (step.src, self.n_ranks, "rank"),
                (step.dst, self.n_ranks, "rank"),
                (step.chunk, self.n_chunks, "chunk"),
            ):
                wrong = np.flatnonzero((column < 0) | (column >= end))
                if wrong.size:
                    row = list(step)[int(wrong[0])]
                    raise ScheduleError(f"{name}: step {index} transfer {row} names a {what} outside 0..{end - 1}")
            loops = np.flatnonzero(step.src == step.dst)
            if loops.size:
                raise ScheduleError(f"{name}: step {index} transfer {list(step)[int(loops[0])]} sends to itself")

    @property
    def n_steps(self) -> int:
        """Number of steps."""
        return len(self.steps)
