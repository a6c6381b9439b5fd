"""What decides how a collective is executed, except the number of elements."""

from __future__ import annotations

from dataclasses import dataclass

from multiring.collectives.schedules.schedule import Schedule
from multiring.kernels.dtypes import DType
from multiring.kernels.operations import Reduction

__all__ = ["Request"]


@dataclass(frozen=True, slots=True)
class Request:
    """One kind of collective call: hashable, equal on all ranks of a call, the key of cached plans.

    Attributes
    ----------
    collective : str
        A key of :data:`multiring.collectives.schedules.collective.COLLECTIVES`.
    dtype : DType
        Element type of the arrays.
    operation : Reduction or None
        None for collectives that do not reduce.
    root : int
        The rank that a rooted collective starts or ends at; 0 elsewhere.
    wire : DType or None
        Element type on the way; None: ``dtype``.
    accumulate : DType or None
        Element type of sums; None: float32 for 16-bit floats, else ``dtype``.
    order : str or None
        ``"rank"`` fixes the order of the reduction to ascending rank.
    algorithm : str or None
        Name of the algorithm; None: the cheapest.
    schedule : Schedule or None
        A schedule of the caller's own, in place of an algorithm.
    """

    collective: str
    dtype: DType
    operation: Reduction | None = None
    root: int = 0
    wire: DType | None = None
    accumulate: DType | None = None
    order: str | None = None
    algorithm: str | None = None
    schedule: Schedule | None = None
