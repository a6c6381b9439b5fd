"""Bit casts: from a floating-point number to its bits and back; and the processor's own float16 conversions."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from multiring.kernels.primitives import Lowering, primitive

__all__ = [
    "bits_of_float32",
    "bits_of_float64",
    "float32_of_bits",
    "float64_of_bits",
    "has_half_conversions",
    "lower_narrow_half",
    "lower_widen_half",
]


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
    # A word of memory is signed, and negative where the float is.
    return np.uint64(int(bits) & 0xFFFFFFFFFFFFFFFF).view(np.float64)


@functools.cache
def has_half_conversions() -> bool:
    """Return whether the processor that Numba compiles for converts between float16 and float32 by itself."""
    from numba.core.registry import cpu_target

    triple, _, features = cpu_target.target_context.codegen().magic_tuple()
    return "+f16c" in features.split(",") or triple.startswith(("aarch64", "arm64"))


def lower_widen_half(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Convert the bits of a float16 to a float32: x86's ``vcvtph2ps``, which keeps subnormals whatever MXCSR says."""
    return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())


def lower_narrow_half(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Round a float32 to the bits of a float16: x86's ``vcvtps2ph``, with NaN made canonical."""
    value = arguments[0]
    rounded = builder.bitcast(builder.fptrunc(value, ir.HalfType()), ir.IntType(16))
    return builder.select(builder.fcmp_unordered("uno", value, value), ir.Constant(ir.IntType(16), 0x7E00), rounded)
