"""Arithmetic on one element: widening, combining, rounding.

Plain Python functions on numpy scalars, each the single meaning for plain Python, for ``numba.njit`` and for CUDA.
Integer results are wrapped in their type because Numba widens ``uint32 + uint32`` to 64 bits and numpy does not, and
every literal carries its type. Nothing here may be contracted to a fused multiply-add or be flushed to zero.

NaN is one bit pattern per type after a store: 0x7FC0 (bfloat16), 0x7E00 (float16), 0x7FC00000 (float32) and
0x7FF8000000000000 (float64).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.extending import register_jitable

from multiring.kernels.bits import (
    bits_of_float32,
    bits_of_float64,
    float32_of_bits,
    float64_of_bits,
    has_half_conversions,
    lower_narrow_half,
    lower_widen_half,
)
from multiring.kernels.primitives import Lowering, primitive

U16 = np.uint16
U32 = np.uint32
U64 = np.uint64

SCALARS: list[Callable[..., Any]] = []
"""Every function of this module that compiled code may call."""


def scalar(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let compiled code call a plain function; division by zero follows IEEE 754 as in numpy."""
    SCALARS.append(function)
    return register_jitable(error_model="numpy")(function)


def half_precision(signature: Any, lowering: Lowering) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """As :func:`scalar`, but with the processor's own conversion where it has one."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        if not has_half_conversions():
            return scalar(function)
        SCALARS.append(function)
        return primitive(signature, lowering)(function)

    return register


# --- from memory to the accumulate type -----------------------------------------------------------------------------


@scalar
def same(value: Any) -> Any:
    """Return the value as it is."""
    return value


@scalar
def widen_float32(value: Any) -> Any:
    """Return a float32 as a float64, exactly."""
    return np.float64(value)


@scalar
def widen_bfloat16(half: Any) -> Any:
    """Return the float32 that 16 bits of bfloat16 stand for, exactly."""
    return float32_of_bits(U32(U32(half) << U32(16)))


@half_precision(types.float32(types.uint16), lower_widen_half)
def widen_float16(half: Any) -> Any:
    """Return the float32 that 16 bits of float16 stand for, exactly; NaN becomes the canonical NaN."""
    bits = U32(half)
    sign = U32(U32(bits & U32(0x8000)) << U32(16))
    magnitude = U32(bits & U32(0x7FFF))
    if magnitude > U32(0x7C00):
        return float32_of_bits(U32(0x7FC00000))
    # Half a unit plus magnitude * 2**-24 is exact, and free of subnormals, where the float16 is subnormal.
    shifted = np.float32(float32_of_bits(U32(magnitude | U32(0x3F000000))) - np.float32(0.5))
    if magnitude >= U32(0x7C00):
        wide = U32(0x7F800000)
    elif magnitude >= U32(0x400):
        wide = U32(U32(magnitude << U32(13)) + U32(0x38000000))
    else:
        wide = bits_of_float32(shifted)
    return float32_of_bits(U32(sign | wide))


@scalar
def widen_bfloat16_twice(half: Any) -> Any:
    """Return the float64 that 16 bits of bfloat16 stand for, exactly."""
    return np.float64(widen_bfloat16(half))


@scalar
def widen_float16_twice(half: Any) -> Any:
    """Return the float64 that 16 bits of float16 stand for, exactly."""
    return np.float64(widen_float16(half))


@scalar
def truth(byte: Any) -> Any:
    """Return 1 for a true byte and 0 for a false one."""
    return np.uint8(byte != np.uint8(0))


# --- from the accumulate type to memory -----------------------------------------------------------------------------


@scalar
def narrow_float32(value: Any) -> Any:
    """Return a float32 with NaN made canonical."""
    return value if value == value else float32_of_bits(U32(0x7FC00000))


@scalar
def narrow_float64(value: Any) -> Any:
    """Return a float64 with NaN made canonical."""
    return value if value == value else float64_of_bits(U64(0x7FF8000000000000))


@scalar
def narrow_bfloat16(value: Any) -> Any:
    """Round a float32 to bfloat16, nearest even; subnormals are kept, overflow gives infinity."""
    bits = bits_of_float32(value)
    odd = U32(U32(bits >> U32(16)) & U32(1))
    rounded = U32(U32(bits + U32(U32(0x7FFF) + odd)) >> U32(16))
    # The addition carries a NaN with a full payload into the sign, so NaN is chosen afterwards, by value.
    return U16(rounded) if value == value else U16(0x7FC0)


@half_precision(types.uint16(types.float32), lower_narrow_half)
def narrow_float16(value: Any) -> Any:
    """Round a float32 to float16, nearest even; subnormals are kept, overflow gives infinity."""
    bits = bits_of_float32(value)
    sign = U32(U32(bits >> U32(16)) & U32(0x8000))
    magnitude = U32(bits & U32(0x7FFFFFFF))
    # Adding a half lets the processor round to multiples of 2**-24, float16's subnormals.
    lifted = U32(bits_of_float32(np.float32(float32_of_bits(magnitude) + np.float32(0.5))) - U32(0x3F000000))
    odd = U32(U32(magnitude >> U32(13)) & U32(1))
    rounded = U32(U32(U32(magnitude - U32(0x38000000)) + U32(U32(0xFFF) + odd)) >> U32(13))
    if magnitude > U32(0x7F800000):
        return U16(0x7E00)
    if magnitude >= U32(0x477FF000):
        narrow = U32(0x7C00)
    elif magnitude >= U32(0x38800000):
        narrow = rounded
    else:
        narrow = lifted
    return U16(U32(sign | narrow))


@scalar
def round_to_odd(value: Any) -> Any:
    """Return a float64 as a float32 whose last bit is set when it is not exact.

    Rounding that once more, to a type at least two bits narrower, gives what rounding the float64 directly gives.
    """
    near = np.float32(value)
    bits = bits_of_float32(near)
    back = np.float64(near)
    inexact = back != value
    # Nearest went away from zero: take the neighbour nearer to zero. Infinity's neighbour is the largest finite.
    away = abs(back) > abs(value)
    toward_zero = U32(bits - U32(1)) if away else bits
    return float32_of_bits(U32(toward_zero | U32(1))) if inexact and value == value else near


@scalar
def narrow_float64_to_float32(value: Any) -> Any:
    """Round a float64 to float32, nearest even, with NaN made canonical."""
    return np.float32(value) if value == value else float32_of_bits(U32(0x7FC00000))


@scalar
def narrow_float64_to_bfloat16(value: Any) -> Any:
    """Round a float64 to bfloat16, nearest even, once."""
    return narrow_bfloat16(round_to_odd(value))


@scalar
def narrow_float64_to_float16(value: Any) -> Any:
    """Round a float64 to float16, nearest even, once."""
    return narrow_float16(round_to_odd(value))


# --- two accumulated values into one --------------------------------------------------------------------------------


@scalar
def add(a: Any, b: Any) -> Any:
    """Return the sum; integers wrap."""
    return a + b


@scalar
def multiply(a: Any, b: Any) -> Any:
    """Return the product; integers wrap."""
    return a * b


@scalar
def larger(a: Any, b: Any) -> Any:
    """Return the larger of two integers."""
    return a if a > b else b


@scalar
def smaller(a: Any, b: Any) -> Any:
    """Return the smaller of two integers."""
    return a if a < b else b


@scalar
def larger_float32(a: Any, b: Any) -> Any:
    """Return the larger float32; NaN if either is NaN; +0 of -0 and +0."""
    # Equal values differ in the sign of zero at most, and both zeros must win the same way round.
    tied = float32_of_bits(U32(bits_of_float32(a) & bits_of_float32(b)))
    chosen = tied if a == b else (a if a > b else b)
    return chosen if a == a and b == b else float32_of_bits(U32(0x7FC00000))


@scalar
def smaller_float32(a: Any, b: Any) -> Any:
    """Return the smaller float32; NaN if either is NaN; -0 of -0 and +0."""
    tied = float32_of_bits(U32(bits_of_float32(a) | bits_of_float32(b)))
    chosen = tied if a == b else (a if a < b else b)
    return chosen if a == a and b == b else float32_of_bits(U32(0x7FC00000))


@scalar
def larger_float64(a: Any, b: Any) -> Any:
    """Return the larger float64; NaN if either is NaN; +0 of -0 and +0."""
    tied = float64_of_bits(U64(bits_of_float64(a) & bits_of_float64(b)))
    chosen = tied if a == b else (a if a > b else b)
    return chosen if a == a and b == b else float64_of_bits(U64(0x7FF8000000000000))


@scalar
def smaller_float64(a: Any, b: Any) -> Any:
    """Return the smaller float64; NaN if either is NaN; -0 of -0 and +0."""
    tied = float64_of_bits(U64(bits_of_float64(a) | bits_of_float64(b)))
    chosen = tied if a == b else (a if a < b else b)
    return chosen if a == a and b == b else float64_of_bits(U64(0x7FF8000000000000))


@scalar
def bits_and(a: Any, b: Any) -> Any:
    """Return the bits that both have."""
    return a & b


@scalar
def bits_or(a: Any, b: Any) -> Any:
    """Return the bits that either has."""
    return a | b


@scalar
def bits_xor(a: Any, b: Any) -> Any:
    """Return the bits that one of them has."""
    return a ^ b


# --- after the last contribution ------------------------------------------------------------------------------------


@scalar
def keep(value: Any, parameter: Any) -> Any:
    """Return the value; the parameter does not matter."""
    return value


@scalar
def divide(value: Any, parameter: Any) -> Any:
    """Return the value divided by the parameter, rounded once."""
    return value / parameter


@scalar
def scale(value: Any, parameter: Any) -> Any:
    """Return the value times the parameter, rounded once."""
    return value * parameter
