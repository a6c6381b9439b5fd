"""Casts and copies give numpy's and ml_dtypes' bits."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multiring.kernels.cuda import calls
from multiring.kernels.dtypes import DTYPES, numpy_dtype
from tests.cuda.device_arrays import DeviceArray
from tests.kernels.span_harness import BITS, FLOATS, canonical, edges, same_bits, values

pytestmark = pytest.mark.sim

SIZES = st.sampled_from([0, 1, 3, 7, 8, 9, 16, 63, 129, 261]) | st.integers(0, 400)
FEW = settings(max_examples=8) if settings().max_examples < 100 else settings()
OTHERS = [(a, b) for a, b in itertools.product(FLOATS, FLOATS) if a != b]


def converted(x: Any, name: str, scale: float | None = None) -> Any:
    """Return what one rounding gives; ml_dtypes rounds a float64 twice, so those go by way of round to odd."""
    target = numpy_dtype(DTYPES[name])
    with np.errstate(all="ignore"):
        if scale is not None:
            wide = np.float64 if np.float64 in (x.dtype, target) else np.float32
            x = x.astype(wide) * wide(scale)
        if x.dtype == np.float64 and name == "bfloat16":
            near = x.astype(np.float32)
            bits = near.view(np.uint32) - ((np.abs(near.astype(np.float64)) > np.abs(x)) & np.isfinite(x))
            inexact = (near.astype(np.float64) != x) & ~np.isnan(x)
            near = np.where(inexact, bits.astype(np.uint32) | np.uint32(1), near.view(np.uint32)).view(np.float32)
            x = near
        return canonical(x.astype(target))


def run(x: Any, source: str, destination: str, offsets: tuple[int, int], scale: float | None = None) -> Any:
    a, b = DeviceArray.of(x, source, offsets[0]), DeviceArray(len(x), destination, offsets[1])
    calls.cast(a.view, b.view, scale)()
    assert a.get().tobytes() == x.tobytes()
    return b.get()


@pytest.mark.parametrize(("source", "destination"), OTHERS)
@FEW
@given(data=st.data())
def test_bits(source: str, destination: str, data: st.DataObject) -> None:
    x = values(DTYPES[source], data.draw(SIZES), np.random.default_rng(data.draw(st.integers(0, 1 << 32))))
    scale = data.draw(st.sampled_from([None, 0.3, 2.0]))
    offsets = (data.draw(st.integers(0, 9)), data.draw(st.integers(0, 9)))
    if data.draw(st.booleans()):
        offsets = (offsets[0], offsets[0])
    same_bits(run(x, source, destination, offsets, scale), converted(x, destination, scale))


@pytest.mark.parametrize("source", ["float16", "bfloat16"])
@pytest.mark.parametrize("destination", ["float32", "float64", "float16", "bfloat16"])
def test_all_patterns(source: str, destination: str) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(numpy_dtype(DTYPES[source]))
    wanted = x if source == destination else converted(x, destination)
    same_bits(run(x, source, destination, (0, 0)), wanted)


@pytest.mark.parametrize("destination", ["float16", "bfloat16"])
def test_around_every_result(destination: str) -> None:
    """Every 16-bit number, the float32 halfway to the next, and the neighbours of both."""
    target = numpy_dtype(DTYPES[destination])
    exact = np.arange(0, 1 << 16, 3, dtype=np.uint16).view(target).astype(np.float32).view(np.uint32)
    half = 0x8000 if destination == "bfloat16" else 0x1000
    bits = np.concatenate([exact + np.uint32(half), exact + np.uint32(half - 1), exact + np.uint32(half + 1)])
    x = bits.view(np.float32)
    same_bits(run(x, "float32", destination, (0, 0)), converted(x, destination))


@pytest.mark.parametrize(("source", "destination"), OTHERS)
def test_edge_values(source: str, destination: str) -> None:
    x = edges(DTYPES[source])
    same_bits(run(x, source, destination, (1, 2)), converted(x, destination))
    largest = np.array([np.finfo(np.float32).max], np.float32)
    assert np.isinf(run(largest, "float32", "bfloat16", (0, 0)).astype(np.float32)[0])


@pytest.mark.parametrize("name", [*DTYPES])
@pytest.mark.parametrize("offsets", [(0, 0), (1, 1), (1, 2)])
def test_copies_keep_every_bit(name: str, offsets: tuple[int, int]) -> None:
    for count in (0, 1, 5, 67, 300):
        x = values(DTYPES[name], count, np.random.default_rng(count))
        a, b = DeviceArray.of(x, name, offsets[0]), DeviceArray(count, name, offsets[1])
        calls.copy(a.view, b.view)()
        assert b.get().tobytes() == x.tobytes()


def test_in_place_between_types_of_one_size() -> None:
    x = values(DTYPES["bfloat16"], 77, np.random.default_rng(0))
    array = DeviceArray.of(x, "bfloat16", 1)
    other = type(array.view)(array.address, 77, DTYPES["float16"])
    calls.cast(array.view, other)()
    same_bits(array.get().view(BITS[2]), converted(x, "float16").view(BITS[2]))
