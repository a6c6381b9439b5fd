"""What a caller asks for, apart from the size: the key of a plan."""

from __future__ import annotations

from dataclasses import dataclass

from multiring.collectives.schedules.schedule import Schedule
from multiring.kernels.dtypes import DTYPES, DType
from multiring.kernels.operations import Reduction

__all__ = ["Request"]


@dataclass(frozen=True, slots=True)
class Request:
    """What decides the plan of a call, except the size.

    Attributes
    ----------
    collective : str
    dtype : DType
    operation : Reduction or None
        None for collectives that do not reduce.
    root : int
    wire : DType or None
        The type that travels; None: the array's.
    accumulate : DType or None
        The type that adds; None: float32 for 16-bit floats, else the array's.
    order : str or None
        ``"rank"`` for ascending rank order.
    algorithm : str or None
    schedule : Schedule or None
        A user's own, verified.
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

    @property
    def wire_type(self) -> DType:
        """The type that travels."""
        return self.wire or self.dtype

    @property
    def accumulate_type(self) -> DType:
        """The type that adds."""
        if self.accumulate is not None:
            return self.accumulate
        wire = self.wire_type
        return DTYPES["float32"] if wire.kind == "float" and wire.itemsize == 2 else wire
