"""Bit casts: the only way from a floating-point number to its bits and back, in Python and in machine code."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from multiring.kernels.primitives import Lowering, primitive

__all__ = ["bits_of_float32", "bits_of_float64", "float32_of_bits", "float64_of_bits"]


def _cast_to(llvm_type: Any) -> Lowering:
    def lowering(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], llvm_type)

    return lowering


@primitive(types.uint32(types.float32), _cast_to(ir.IntType(32)))
def bits_of_float32(value: Any) -> Any:
    """Return the bits of a float32 as a uint32."""
    return np.float32(value).view(np.uint32)


@primitive(types.float32(types.uint32), _cast_to(ir.FloatType()))
def float32_of_bits(bits: Any) -> Any:
    """Return the float32 that has these bits."""
    return np.uint32(bits).view(np.float32)


@primitive(types.uint64(types.float64), _cast_to(ir.IntType(64)))
def bits_of_float64(value: Any) -> Any:
    """Return the bits of a float64 as a uint64."""
    return np.float64(value).view(np.uint64)


@primitive(types.float64(types.uint64), _cast_to(ir.DoubleType()))
def float64_of_bits(bits: Any) -> Any:
    """Return the float64 that has these bits."""
    return np.uint64(bits).view(np.float64)
