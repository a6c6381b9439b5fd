"""Casts and comparisons on one element: plain Python, compiled code, and numpy and ml_dtypes agree bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit, vectorize

from multiring.kernels import bits, scalars
from multiring.kernels.dtypes import DTYPES, numpy_dtype
from tests.kernels.span_harness import canonical, edges

# Signalling NaN and overflow are among the inputs on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

BFLOAT16 = numpy_dtype(DTYPES["bfloat16"])
PATTERNS = np.arange(65536, dtype=np.uint16)
CASES = [
    (0x3E89CCD5, 0x3E8A), (0x3F808000, 0x3F80), (0x3F818000, 0x3F82), (0x7F7F7FFF, 0x7F7F), (0x7F7F8000, 0x7F80),
    (0x7F7FFFFF, 0x7F80), (0x00008000, 0x0000), (0x00008001, 0x0001), (0x00018000, 0x0002), (0x80000000, 0x8000),
    (0x7F800000, 0x7F80), (0xFF800000, 0xFF80), (0x7FFFFFFF, 0x7FC0), (0xFFFFFFFF, 0x7FC0), (0x7F800001, 0x7FC0),
]  # fmt: skip
"""float32 bits and the bfloat16 bits that rounding them to nearest even gives."""


def float32_stimuli() -> Any:
    """Return every upper half with the lower halves that decide a rounding, and random bits."""
    upper = np.arange(65536, dtype=np.uint32) << np.uint32(16)
    lower = np.array([0, 1, 0x0FFF, 0x1000, 0x1001, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    grid = (upper[:, None] | lower[None, :]).ravel()
    halves = PATTERNS.view(np.float16).astype(np.float32).view(np.uint32)
    near_halves = np.concatenate([halves + np.uint32(0x1000), halves + np.uint32(0xFFF), halves + np.uint32(0x1001)])
    random = np.random.default_rng(1).integers(0, 1 << 32, 200_000, dtype=np.uint64).astype(np.uint32)
    return np.concatenate([grid, halves, near_halves, random]).view(np.float32)


def to_bits(values: Any, name: str) -> Any:
    with np.errstate(all="ignore"):
        return canonical(values.astype(numpy_dtype(DTYPES[name]))).view(np.uint16)


@pytest.fixture(scope="module")
def stimuli() -> Any:
    return float32_stimuli()


# body: the Python body compiled; twin: what other compiled code calls, which may be the processor's own instruction.
twin_narrow_float16 = vectorize(["uint16(float32)"])(lambda value: scalars.narrow_float16(value))
twin_widen_float16 = vectorize(["float32(uint16)"])(lambda value: scalars.widen_float16(value))
body_narrow_bfloat16 = vectorize(["uint16(float32)"])(scalars.narrow_bfloat16)
body_widen_bfloat16 = vectorize(["float32(uint16)"])(scalars.widen_bfloat16)
body_narrow_float16 = vectorize(["uint16(float32)"])(scalars.narrow_float16)
body_widen_float16 = vectorize(["float32(uint16)"])(scalars.widen_float16)


def test_bfloat16_narrowing_known_cases() -> None:
    for wide, narrow in CASES:
        value = np.uint32(wide).view(np.float32)
        assert int(scalars.narrow_bfloat16(value)) == narrow
        assert int(body_narrow_bfloat16(value)) == narrow


def test_narrowing_equals_ml_dtypes_and_numpy(stimuli: Any) -> None:
    np.testing.assert_array_equal(body_narrow_bfloat16(stimuli), to_bits(stimuli, "bfloat16"))
    np.testing.assert_array_equal(body_narrow_float16(stimuli), to_bits(stimuli, "float16"))
    np.testing.assert_array_equal(twin_narrow_float16(stimuli), to_bits(stimuli, "float16"))


def test_widening_every_pattern() -> None:
    def wide_bits(values: Any) -> Any:
        return canonical(values).view(np.uint32)

    wanted = wide_bits(PATTERNS.view(np.float16).astype(np.float32))
    np.testing.assert_array_equal(wide_bits(body_widen_float16(PATTERNS)), wanted)
    np.testing.assert_array_equal(wide_bits(twin_widen_float16(PATTERNS)), wanted)
    wanted = wide_bits(PATTERNS.view(BFLOAT16).astype(np.float32))
    np.testing.assert_array_equal(wide_bits(body_widen_bfloat16(PATTERNS)), wanted)


def test_widening_and_narrowing_again_gives_every_pattern_back() -> None:
    for name, widen, narrow in (
        ("bfloat16", body_widen_bfloat16, body_narrow_bfloat16),
        ("float16", twin_widen_float16, twin_narrow_float16),
    ):
        wanted = canonical(PATTERNS.view(numpy_dtype(DTYPES[name]))).view(np.uint16)
        np.testing.assert_array_equal(narrow(widen(PATTERNS)), wanted)


def test_plain_python_equals_compiled_code(stimuli: Any) -> None:
    few = np.concatenate([stimuli[:: len(stimuli) // 3000], edges(DTYPES["float32"])])
    with np.errstate(all="ignore"):
        python = [int(scalars.narrow_bfloat16(x)) for x in few]
        np.testing.assert_array_equal(python, body_narrow_bfloat16(few))
        np.testing.assert_array_equal([int(scalars.narrow_float16(x)) for x in few], body_narrow_float16(few))
        halves = PATTERNS[::17]
        for function, body in (
            (scalars.widen_bfloat16, body_widen_bfloat16), (scalars.widen_float16, body_widen_float16),
        ):  # fmt: skip
            plain = np.array([function(x) for x in halves])
            np.testing.assert_array_equal(plain.view(np.uint32), body(halves).view(np.uint32))


@pytest.mark.parametrize("width", [32, 64])
@pytest.mark.parametrize("kind", ["larger", "smaller"])
def test_extremes_commute_bit_for_bit_and_plain_python_agrees(kind: str, width: int) -> None:
    function = getattr(scalars, f"{kind}_float{width}")
    body = vectorize([f"float{width}(float{width},float{width})"])(function)
    values = edges(DTYPES[f"float{width}"])
    a, b = (grid.ravel() for grid in np.meshgrid(values, values))
    integer = np.uint32 if width == 32 else np.uint64
    both = body(a, b).view(integer)
    np.testing.assert_array_equal(both, body(b, a).view(integer))
    plain = np.array([function(x, y) for x, y in zip(a, b, strict=True)]).view(integer)
    np.testing.assert_array_equal(both, plain)
    reference = (np.maximum if kind == "larger" else np.minimum)(a, b)
    np.testing.assert_array_equal(body(a, b), reference)


ROUND_TO_ODD = {
    "bfloat16": vectorize(["uint16(float64)"])(scalars.narrow_float64_to_bfloat16),
    "float16": vectorize(["uint16(float64)"])(scalars.narrow_float64_to_float16),
}


def nearest_even(value: float, name: str) -> int:
    """Return the bits of the nearest of all 65,536 patterns, found by looking at its neighbours exactly."""
    from fractions import Fraction

    infinity = {"bfloat16": 0x7F80, "float16": 0x7C00}[name]
    finite = PATTERNS[: infinity + 1].view(numpy_dtype(DTYPES[name])).astype(np.float64)
    finite[infinity] = 2.0 * 2.0 ** np.floor(np.log2(finite[infinity - 1]))  # where rounding puts infinity
    magnitude = abs(value)
    low = int(np.searchsorted(finite, magnitude, side="right")) - 1
    if low >= infinity:
        found = infinity
    else:
        below, above = (abs(Fraction(magnitude) - Fraction(float(finite[k]))) for k in (low, low + 1))
        found = low if below < above or (below == above and low % 2 == 0) else low + 1
    return found | (0x8000 if np.signbit(value) else 0)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@given(
    pattern=st.integers(0, 0x7F7E),
    distance=st.sampled_from([0.0, 2.0**-53, -(2.0**-53), 2.0**-30, -(2.0**-30), 0.3]),
    negative=st.booleans(),
)
def test_float64_is_rounded_once(name: str, pattern: int, distance: float, negative: bool) -> None:
    limit = {"bfloat16": 0x7F7F, "float16": 0x7BFF}[name]
    low, high = np.array([pattern % limit, pattern % limit + 1], np.uint16).view(numpy_dtype(DTYPES[name]))
    middle = (float(low) + float(high)) / 2.0  # exact in float64, and a tie
    value = (middle + middle * distance) * (-1.0 if negative else 1.0)
    wanted = nearest_even(value, name)
    assert int(ROUND_TO_ODD[name](value)) == wanted
    with np.errstate(all="ignore"):
        assert int(getattr(scalars, f"narrow_float64_to_{name}")(np.float64(value))) == wanted


def test_float64_to_float16_equals_numpy() -> None:
    raw = np.random.default_rng(2).integers(0, 1 << 64, 100_000, dtype=np.uint64).view(np.float64)
    near = np.random.default_rng(3).normal(size=100_000) * 2.0 ** np.random.default_rng(4).integers(-26, 18, 100_000)
    values = np.concatenate([raw, near, edges(DTYPES["float64"])])
    np.testing.assert_array_equal(ROUND_TO_ODD["float16"](values), to_bits(values, "float16"))


def test_bit_casts_in_plain_python_and_compiled() -> None:
    def python(x: Any, y: Any) -> Any:
        return (
            bits.float32_of_bits(bits.bits_of_float32(x)), bits.bits_of_float32(x),
            bits.float64_of_bits(bits.bits_of_float64(y)), bits.bits_of_float64(y),
        )  # fmt: skip

    x, y = np.float32(-1.5), np.float64(0.1)
    wanted = (x, 0xBFC00000, y, 0x3FB999999999999A)
    assert njit(python)(x, y) == wanted
    assert python(x, y) == wanted
