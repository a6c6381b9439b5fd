"""Inputs that several tests share: arrays of every layout, and errors as values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [
    np.dtype(name)
    for name in (
        "int8",
        "uint8",
        "int16",
        "int32",
        "uint32",
        "int64",
        "uint64",
        "float16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    )
] + [BFLOAT16]


def values(rank: int, shape: tuple[int, ...], dtype: Any = np.float32, low: int = 0, high: int = 5) -> Array:
    """Return small whole numbers: exact in every element type, in whatever order they are added."""
    generator = np.random.default_rng([rank, *shape, 7])
    return generator.integers(low, high, size=shape).astype(dtype)


def column(a: Array) -> Array:
    out: Array = np.zeros((*a.shape, 3), a.dtype)[..., 1]
    out[...] = a
    return out


def backwards(a: Array) -> Array:
    return a[::-1].copy()[::-1] if a.ndim else a.copy()


def transposed(a: Array) -> Array:
    return a.copy(order="F") if a.ndim > 1 else column(a)


def real_part(a: Array) -> Array:
    if a.dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
        return column(a)
    whole = np.zeros(a.shape, np.complex64 if a.dtype == np.float32 else np.complex128)
    whole.real = a
    return whole.real


def field(a: Array) -> Array:
    out = np.zeros(a.shape, np.dtype([("pad", "u1"), ("it", a.dtype), ("end", "u2")]))["it"]
    out[...] = a
    return out


def misaligned(a: Array) -> Array:
    block = np.zeros(a.nbytes + 1, np.uint8)
    out = block[1:].view(a.dtype).reshape(a.shape)
    out[...] = a
    return out


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "plain": np.array,
    "column": column,
    "backwards": backwards,
    "transposed": transposed,
    "real part": real_part,
    "field": field,
    "misaligned": misaligned,
}


def caught(function: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[str, str]:
    """Return the name and text of the exception that a call raises; empty if it does not."""
    try:
        function(*arguments, **options)
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


def same(got: Any, wanted: Any) -> None:
    """Equal in dtype, shape and every bit of value."""
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape, (got.shape, wanted.shape)
    assert np.array_equal(got, wanted), (got, wanted)
