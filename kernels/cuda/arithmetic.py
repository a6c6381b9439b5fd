"""What a kernel computes on one element, as the host's kernels do: the same scalar functions, found the same way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from multiring.errors import ArgumentTypeError
from multiring.kernels import kinds, scalars
from multiring.kernels.bits import float64_of_bits
from multiring.kernels.cuda.homes import device, device_function
from multiring.kernels.dtypes import DTYPES, DType

__all__ = ["Arithmetic", "cast_arithmetic", "copy_arithmetic", "parameter_function", "reduce_arithmetic"]

Scalar = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The scalar functions of a kernel, and the types between them.

    Attributes
    ----------
    load, combine, finish, store : scalar function
        From the source to the accumulate type, two values into one, after the last source, and to the destination.
    source, wide, destination : numpy scalar type
        In memory, in registers, in memory.
    parts : int
        How many of ``source`` make one of the caller's elements: 2 where a complex number is summed as two floats.
    """

    load: Scalar
    combine: Scalar
    finish: Scalar
    store: Scalar
    source: type[Any]
    wide: type[Any]
    destination: type[Any]
    parts: int

    @property
    def source_bytes(self) -> int:
        """Bytes of a source element."""
        return np.dtype(self.source).itemsize

    @property
    def destination_bytes(self) -> int:
        """Bytes of a destination element."""
        return np.dtype(self.destination).itemsize


def reduce_arithmetic(destination: DType | None = None, scale: bool = False, **spec: Any) -> Arithmetic:
    """Return the arithmetic of a reduction.

    Parameters
    ----------
    destination : DType, optional
        Of the result, if it is not the sources' type; floating-point types only.
    scale : bool
        Whether the result is multiplied by the parameter.
    **spec
        ``dtype``, ``operation``, ``accumulate=None``, ``final=True``; see
        :func:`multiring.kernels.kinds.span_function`.
    """
    spec = kinds.canonical("reduce", spec)
    dtype, wide, operation = spec["dtype"], spec["accumulate"], spec["operation"]
    target = destination or dtype
    if target != dtype and not (dtype.kind == target.kind == "float"):
        raise ArgumentTypeError(
            f"destination: got {target.name} for a reduction of {dtype.name}, "
            "wanted the same type, or two floating-point types"
        )
    if scale and dtype.kind != "float":
        raise ArgumentTypeError(f"scale: got a scale for dtype {dtype.name}, wanted a floating-point dtype")
    if scale and spec["final"]:
        raise ArgumentTypeError("scale: got a scale and op='avg', wanted one of them; use op='sum' and scale by 1 / n")
    if target.itemsize > wide.itemsize:
        wide = target
    parts = 1
    if dtype.kind == "complex" and operation.function is None:
        dtype = wide = target = DTYPES["float32" if dtype.itemsize == 8 else "float64"]
        parts = 2
    if operation.function is not None:
        combine = device_function(operation.function)
    else:
        combine = kinds.combine_of(operation, wide)
    finish = scalars.divide if spec["final"] else scalars.scale if scale else scalars.keep
    return Arithmetic(
        kinds.load_of(dtype, wide),
        combine,
        finish,
        kinds.store_of(wide, target),
        kinds.stored_type(dtype),
        kinds.stored_type(wide),
        kinds.stored_type(target),
        parts,
    )


def cast_arithmetic(source: DType, destination: DType, scale: bool = False) -> Arithmetic:
    """Return the arithmetic of a cast; between equal types without a scale it is a copy, which keeps every bit."""
    if source == destination and not scale:
        return copy_arithmetic(source.itemsize)
    if source.kind != "float" or destination.kind != "float":
        raise ArgumentTypeError(
            f"cast: got {source.name} to {destination.name}{' with a scale' if scale else ''}, "
            f"wanted floating-point types (float16, bfloat16, float32, float64); convert with x.astype first"
        )
    wide = DTYPES["float64" if "float64" in (source.name, destination.name) else "float32"]
    return Arithmetic(
        kinds.load_of(source, wide),
        scalars.add,
        scalars.scale if scale else scalars.keep,
        kinds.store_of(wide, destination),
        kinds.stored_type(source),
        kinds.stored_type(wide),
        kinds.stored_type(destination),
        1,
    )


_WORDS: dict[int, type[Any]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def copy_arithmetic(itemsize: int) -> Arithmetic:
    """Return the arithmetic of a copy of elements of a size."""
    word = _WORDS.get(itemsize, np.uint64)
    same = scalars.same
    return Arithmetic(same, scalars.bits_or, scalars.keep, same, word, word, word, max(itemsize // 8, 1))


@device
def _float32_parameter(bits: int) -> Any:
    return np.float32(float64_of_bits(np.uint64(bits)))


@device
def _float64_parameter(bits: int) -> Any:
    return float64_of_bits(np.uint64(bits))


@device
def _no_parameter(bits: int) -> Any:
    return np.uint8(0)


def parameter_function(arithmetic: Arithmetic) -> Scalar:
    """Return the function that makes ``finish``'s parameter of the bits of a float64."""
    if arithmetic.finish is scalars.keep:
        return _no_parameter
    return _float64_parameter if arithmetic.wide is np.float64 else _float32_parameter
