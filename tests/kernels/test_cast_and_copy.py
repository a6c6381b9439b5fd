"""The cast and copy kernels against numpy and ml_dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multiring.kernels.build import span_address
from multiring.kernels.dtypes import DTYPES, numpy_dtype
from tests.kernels.span_harness import FLOATS, Guarded, call, canonical, edges, same_bits, values

NARROW = [("float32", "bfloat16"), ("bfloat16", "float32"), ("float32", "float16"), ("float16", "float32"),
          ("float32", "float64"), ("float64", "float32"), ("float64", "float16"), ("float16", "bfloat16"),
          ("bfloat16", "float64")]  # fmt: skip


def cast_address(source: str, destination: str, scale: bool = False) -> int:
    return span_address("cast", source=DTYPES[source], destination=DTYPES[destination], scale=scale)


@pytest.mark.parametrize(("source", "destination"), NARROW)
def test_casts_round_once_to_nearest_even(source: str, destination: str) -> None:
    generator = np.random.default_rng(7)
    address = cast_address(source, destination)
    for count in (*range(71), 1500):
        x = values(DTYPES[source], count, generator)
        array = Guarded(count, numpy_dtype(DTYPES[source]), count % 16).set(x)
        out = [Guarded(count, numpy_dtype(DTYPES[destination]), count * 3 % 16) for _ in range(1 + count % 3)]
        call(address, [array.address], [o.address for o in out], count)
        with np.errstate(all="ignore"):
            wanted = canonical(x.astype(numpy_dtype(DTYPES[destination])))
        for o in out:
            same_bits(o.get(), wanted, f"{source} to {destination} n={count}")
        assert array.get().tobytes() == x.tobytes()


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("scale", [1.0 / 3.0, 0.1, -2.0, 0.0, np.inf])
def test_scaling_rounds_the_product_once(name: str, scale: float) -> None:
    dtype = numpy_dtype(DTYPES[name])
    x = np.concatenate([values(DTYPES[name], 500, np.random.default_rng(3)), edges(DTYPES[name])])
    wide: Any = np.float64 if name == "float64" else np.float32
    with np.errstate(all="ignore"):
        wanted = canonical((x.astype(wide) * wide(scale)).astype(dtype))
    array = Guarded(len(x), dtype, 3).set(x)
    out = Guarded(len(x), dtype, 5)
    call(cast_address(name, name, scale=True), [array.address], [out.address], len(x), scale=scale)
    same_bits(out.get(), wanted, f"{name} times {scale}")
    call(cast_address(name, name, scale=True), [array.address], [array.address], len(x), scale=scale)
    same_bits(array.get(), wanted, f"{name} times {scale} in place")


def test_scaling_to_a_narrower_type() -> None:
    x = np.random.default_rng(3).normal(size=1000).astype(np.float32)
    array, out = Guarded(1000, np.float32).set(x), Guarded(1000, numpy_dtype(DTYPES["bfloat16"]))
    call(cast_address("float32", "bfloat16", scale=True), [array.address], [out.address], 1000, scale=0.3)
    wanted = (x * np.float32(0.3)).astype(numpy_dtype(DTYPES["bfloat16"]))
    same_bits(out.get(), wanted)


def test_a_cast_to_the_same_type_is_a_copy_of_every_bit() -> None:
    pattern = np.array([0x7F800001, 0xFFC12345, 0x80000000], np.uint32)
    array, out = Guarded(3, np.uint32).set(pattern), Guarded(3, np.uint32)
    call(cast_address("float32", "float32"), [array.address], [out.address], 3)
    assert out.get().tolist() == pattern.tolist()
    assert cast_address("int32", "int32")


def test_casts_of_integers_are_refused() -> None:
    with pytest.raises(TypeError, match=r"cast: got int32 to float32, wanted floating-point types .* x\.astype"):
        cast_address("int32", "float32")
    with pytest.raises(TypeError, match=r"cast: got int32 to int32 with a scale, wanted"):
        cast_address("int32", "int32", scale=True)


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8, 16])
def test_copies_of_every_size_at_every_misalignment(itemsize: int) -> None:
    address = span_address("copy", itemsize=itemsize)
    generator = np.random.default_rng(itemsize)
    for count in (*range(0, 71, 3), 20000):
        for offset in range(0, 16, 5):
            x = generator.integers(0, 256, count * itemsize).astype(np.uint8)
            source = Guarded(len(x), np.uint8, offset).set(x)
            out = [Guarded(len(x), np.uint8, (offset + 7 * k) % 16) for k in range(1 + offset % 4)]
            call(address, [source.address], [o.address for o in out], count)
            for o in out:
                assert o.get().tobytes() == x.tobytes()


def test_a_copy_that_is_partly_in_place() -> None:
    x = np.arange(30000, dtype=np.uint8)
    source, out = Guarded(30000, np.uint8).set(x), Guarded(30000, np.uint8)
    call(span_address("copy", itemsize=1), [source.address], [source.address, out.address], 30000)
    assert source.get().tobytes() == out.get().tobytes() == x.tobytes()
