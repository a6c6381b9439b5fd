"""The element types that multiring moves and reduces."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from multiring.errors import ArgumentTypeError

__all__ = ["ALIASES", "DTYPES", "DType", "dtype_of", "numpy_dtype"]


@dataclass(frozen=True, slots=True)
class DType:
    """One element type.

    Attributes
    ----------
    name : str
        numpy's name, and ``bfloat16``.
    code : int
        Small number that stands for the type in fingerprints and in the raw API; stable across versions.
    itemsize : int
        Bytes of one element.
    kind : str
        ``"int"``, ``"uint"``, ``"float"``, ``"complex"`` or ``"bool"``.
    """

    name: str
    code: int
    itemsize: int
    kind: str


DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("int8", 0, 1, "int"),
        DType("uint8", 1, 1, "uint"),
        DType("int32", 2, 4, "int"),
        DType("uint32", 3, 4, "uint"),
        DType("int64", 4, 8, "int"),
        DType("uint64", 5, 8, "uint"),
        DType("float16", 6, 2, "float"),
        DType("float32", 7, 4, "float"),
        DType("float64", 8, 8, "float"),
        DType("bfloat16", 9, 2, "float"),
        DType("int16", 10, 2, "int"),
        DType("complex64", 11, 8, "complex"),
        DType("complex128", 12, 16, "complex"),
        DType("bool", 13, 1, "bool"),
    )
}
"""By name. Codes 0 to 9 are those of NCCL's ``ncclDataType_t``."""

ALIASES: dict[str, str] = {"half": "float16", "float": "float32", "double": "float64"}
"""The names that nccl-tests uses."""


def dtype_of(value: Any, name: str = "dtype") -> DType:
    """Return the element type that a name, numpy dtype or :class:`DType` stands for.

    Parameters
    ----------
    value : str, DType or anything that ``numpy.dtype`` takes
        ``"bfloat16"`` is accepted with and without ml_dtypes imported.
    name : str
        What errors call it: the caller's argument.

    Raises
    ------
    ArgumentTypeError
        If the type is not one of :data:`DTYPES`, or its byte order is not the machine's.
    """
    if isinstance(value, DType):
        return value
    if isinstance(value, str):
        known = DTYPES.get(ALIASES.get(value, value))
        if known is not None:
            return known
    try:
        dtype = np.dtype(value)
    except (TypeError, ValueError, SyntaxError):  # numpy raises all three for texts that it cannot read
        raise ArgumentTypeError(f"{name}: got {value!r}, wanted one of {', '.join(DTYPES)}") from None
    if not dtype.isnative:
        raise ArgumentTypeError(
            f"{name}: got {dtype.str!r} in the other byte order, wanted native; "
            "convert with x.astype(x.dtype.newbyteorder('='))"
        )
    found = DTYPES.get(dtype.name)
    if found is None:
        raise ArgumentTypeError(f"{name}: got {dtype.name!r}, wanted one of {', '.join(DTYPES)}")
    return found


@cache
def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """Return the numpy dtype of an element type (ml_dtypes' for bfloat16)."""
    if dtype.name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype.name)
