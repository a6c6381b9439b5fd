"""The reductions, and which of them an element type has."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from multiring.errors import ArgumentError, ArgumentTypeError
from multiring.kernels.dtypes import DType

__all__ = ["OPERATIONS", "Reduction", "check_operation", "operation_of", "premul_sum", "reduction"]


@dataclass(frozen=True, slots=True)
class Reduction:
    """One way to combine elements.

    Attributes
    ----------
    name : str
        ``"sum"`` and so on; ``"premul_sum"``; ``"custom"``.
    code : int
        Small number that stands for the operation in fingerprints and in the raw API.
    scale : float
        What ``premul_sum`` multiplies every contribution by; 1.0 elsewhere.
    function : callable or None
        The scalar function ``f(a, b)`` of a custom reduction.
    """

    name: str
    code: int
    scale: float = 1.0
    function: Callable[[Any, Any], Any] | None = None


OPERATIONS: dict[str, Reduction] = {
    name: Reduction(name, code) for code, name in enumerate(("sum", "prod", "max", "min", "avg", "band", "bor", "bxor"))
}
"""The named operations. Codes 0 to 4 are those of NCCL's ``ncclRedOp_t``."""

PREMUL_SUM_CODE = 8
CUSTOM_CODE = 9


def premul_sum(scale: float) -> Reduction:
    """Return the reduction ``scale * x[0] + scale * x[1] + ...``.

    Each contribution is multiplied in the accumulate type and rounded to the wire type once.

    Parameters
    ----------
    scale : float
        Finite, and the same on every rank. Infinity and not-a-number are refused: they would make every result
        infinite or not-a-number, and come from a division that went wrong before. Elements may be either.

    Raises
    ------
    ArgumentTypeError
        If it is not a real number.
    ArgumentError
        If it is not finite, or too large for float64.
    """
    got = f"premul_sum: scale: got {scale!r}, wanted a finite real number"
    # numpy's booleans are no numbers for us either, nor is text that float() could read.
    if isinstance(scale, (bool, str, bytes, bytearray)) or type(scale).__name__ == "bool":
        raise ArgumentTypeError(got)
    try:
        value = float(scale)
    except OverflowError:
        raise ArgumentError(got) from None
    except (TypeError, ValueError):
        raise ArgumentTypeError(got) from None
    if not math.isfinite(value):
        raise ArgumentError(got)
    return Reduction("premul_sum", PREMUL_SUM_CODE, scale=value)


def reduction(function: Callable[[Any, Any], Any]) -> Reduction:
    """Return a reduction from a scalar function that Numba can compile.

    Parameters
    ----------
    function : callable
        ``f(accumulated, next)`` on two scalars of the accumulate type. Contributions are folded from the left in
        ascending rank order where the schedule is direct, so it needs to be neither commutative nor, then, associative.
    """
    if not callable(function):
        raise ArgumentTypeError(f"reduction: got {type(function).__name__}, wanted a function of two scalars")
    return Reduction("custom", CUSTOM_CODE, function=function)


def operation_of(value: str | Reduction, name: str = "op") -> Reduction:
    """Return the reduction that a name stands for.

    Parameters
    ----------
    value : str or Reduction
    name : str
        What errors call it: the caller's argument.

    Raises
    ------
    ArgumentError
        If the name is not known.
    """
    if isinstance(value, Reduction):
        return value
    found = OPERATIONS.get(value) if isinstance(value, str) else None
    if found is None:
        raise ArgumentError(
            f"{name}: got {value!r}, wanted one of {', '.join(OPERATIONS)}, "
            "multiring.premul_sum(scale) or multiring.reduction(f)"
        )
    return found


def check_operation(operation: Reduction, dtype: DType, where: str = "") -> None:
    """Refuse an operation that an element type does not have.

    Parameters
    ----------
    operation : Reduction
    dtype : DType
    where : str
        What errors begin with, such as ``"all_reduce: "``.

    Raises
    ------
    ArgumentTypeError
        With what to use instead.
    """
    name, kind = operation.name, dtype.kind
    hint = ""
    if kind == "bool" and name not in ("max", "min", "custom"):
        hint = "use op='max' for any() and op='min' for all(), or convert to an integer dtype"
    elif kind in ("int", "uint") and name in ("avg", "premul_sum"):
        hint = "use op='sum' and divide, or convert to a floating-point dtype"
    elif kind in ("float", "complex") and name in ("band", "bor", "bxor"):
        hint = "view the array as an unsigned integer dtype"
    elif kind == "complex" and name not in ("sum", "custom"):
        hint = "use op='sum', or reduce x.real and x.imag"
    if hint:
        raise ArgumentTypeError(f"{where}op={name!r} is not defined for dtype {dtype.name}: {hint}")
