"""The reduce kernel gives numpy's and the host's bits, for every element type and reduction."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multiring.kernels.cuda import calls
from multiring.kernels.dtypes import DTYPES, numpy_dtype
from multiring.kernels.operations import OPERATIONS, reduction
from tests.cuda.device_arrays import DeviceArray
from tests.kernels.span_harness import (
    FLOATS,
    PAIRS,
    Guarded,
    call,
    canonical,
    edges,
    expected,
    reduce_address,
    same_bits,
    values,
)

pytestmark = pytest.mark.sim

# Four threads: tiles of 128 bf16 elements. Sizes around the vector, the tile and two blocks' tiles.
SIZES = st.sampled_from([0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 129, 260, 521]) | st.integers(0, 600)
FEW = settings(max_examples=6) if settings().max_examples < 100 else settings()


def run(
    arrays: list[Any],
    name: str,
    op: Any,
    offsets: list[int],
    targets: list[int],
    out_name: str | None = None,
    **options: Any,
) -> list[Any]:
    sources = [DeviceArray.of(x, name, offsets[k % len(offsets)]) for k, x in enumerate(arrays)]
    outs = [DeviceArray(len(arrays[0]), out_name or name, offset) for offset in targets]
    operation = OPERATIONS[op] if isinstance(op, str) else op
    calls.reduce([s.view for s in sources], [o.view for o in outs], operation, **options)()
    for source, x in zip(sources, arrays, strict=True):
        assert source.get().tobytes() == x.tobytes(), "a source was written"
    return [out.get() for out in outs]


@pytest.mark.parametrize(("name", "op"), PAIRS)
@FEW
@given(data=st.data())
def test_bits(name: str, op: str, data: st.DataObject) -> None:
    count, n_sources = data.draw(SIZES), data.draw(st.sampled_from([1, 2, 3, 4, 5, 8]))
    aligned = data.draw(st.booleans())
    shift = data.draw(st.integers(0, 9))
    offsets = [shift] if aligned else [shift, shift + 1, 0]
    generator = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    arrays = [values(DTYPES[name], count, generator) for _ in range(n_sources)]
    for out in run(arrays, name, op, offsets, [shift] * data.draw(st.integers(1, 3))):
        same_bits(out, expected(arrays, op), f"{name} {op}")


@pytest.mark.parametrize(
    ("name", "op"), [("bfloat16", "sum"), ("float16", "avg"), ("float32", "max"), ("int8", "prod")]
)
def test_the_host_gives_the_same_bits(name: str, op: str) -> None:
    generator = np.random.default_rng(3)
    arrays = [values(DTYPES[name], 333, generator) for _ in range(5)]
    guarded = [Guarded(333, numpy_dtype(DTYPES[name])).set(x) for x in arrays]
    out = Guarded(333, numpy_dtype(DTYPES[name]))
    call(reduce_address(name, op), [g.address for g in guarded], [out.address], 333)
    same_bits(run(arrays, name, op, [1], [1])[0], out.get())


@pytest.mark.parametrize(("name", "op"), PAIRS)
def test_edge_values_against_each_other(name: str, op: str) -> None:
    special = edges(DTYPES[name])
    a, b = (x.ravel() for x in np.meshgrid(special, special))
    same_bits(run([a, b], name, op, [0], [0])[0], expected([a, b], op), f"{name} {op}")


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("op", ["sum", "max", "avg"])
def test_all_patterns(name: str, op: str) -> None:
    everything = np.arange(1 << 16, dtype=np.uint16)
    mixed = np.random.default_rng(1).permutation(everything)
    arrays = [x.view(numpy_dtype(DTYPES[name])) for x in (everything, mixed)]
    same_bits(run(arrays, name, op, [0], [0])[0], expected(arrays, op), f"{name} {op}")


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("target", [0, 1, 2])
def test_in_place(name: str, target: int) -> None:
    generator = np.random.default_rng(target)
    inputs = [values(DTYPES[name], 150, generator) for _ in range(3)]
    arrays = [DeviceArray.of(x, name, 1) for x in inputs]
    calls.reduce([a.view for a in arrays], [arrays[target].view], "sum")()
    same_bits(arrays[target].get(), expected(inputs, "sum"))


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_many_ones_do_not_stick(name: str) -> None:
    ones = DeviceArray.of(np.ones(9, numpy_dtype(DTYPES[name])), name)
    out = DeviceArray(9, name)
    calls.reduce([ones.view] * 1024, [out.view], "sum")()
    assert out.get().astype(float).tolist() == [1024.0] * 9
    calls.reduce([ones.view] * 1024, [out.view], "avg")()
    assert out.get().astype(float).tolist() == [1.0] * 9


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_sums_of_64_ranks_are_within_the_bound(name: str) -> None:
    generator = np.random.default_rng(7)
    arrays = [generator.normal(size=40).astype(numpy_dtype(DTYPES[name])) for _ in range(64)]
    got = run(arrays, name, "sum", [0], [0])[0].astype(np.float64)
    exact = np.sum([x.astype(np.float64) for x in arrays], axis=0)
    magnitude = np.sum([np.abs(x.astype(np.float64)) for x in arrays], axis=0)
    wide, narrow = 2.0**-24, 2.0**-11 if name == "float16" else 2.0**-8
    assert (np.abs(got - exact) <= ((1 + wide) ** 63 * (1 + narrow) - 1) * magnitude).all()
    # Multiples of 1/8 below 4096: float32 holds every partial sum, so only the last rounding is left.
    eighths = [(generator.integers(-64, 65, 40) / 8).astype(numpy_dtype(DTYPES[name])) for _ in range(64)]
    exact = np.sum([x.astype(np.float64) for x in eighths], axis=0)
    same_bits(run(eighths, name, "sum", [0], [0])[0], exact.astype(np.float32).astype(numpy_dtype(DTYPES[name])))


@pytest.mark.parametrize(("name", "out"), [("bfloat16", "float32"), ("float32", "float16"), ("float16", "bfloat16")])
def test_another_result_type_and_a_scale(name: str, out: str) -> None:
    generator = np.random.default_rng(11)
    arrays = [values(DTYPES[name], 200, generator) for _ in range(3)]
    with np.errstate(all="ignore"):
        total = arrays[0].astype(np.float32)
        for x in arrays[1:]:
            total = total + x.astype(np.float32)
        plain, scaled = (canonical(t.astype(numpy_dtype(DTYPES[out]))) for t in (total, total * np.float32(0.3)))
    same_bits(run(arrays, name, "sum", [0], [0, 3], out)[0], plain)
    same_bits(run(arrays, name, "sum", [2], [2], out, scale=0.3)[0], scaled)


def test_accumulating_in_float64() -> None:
    generator = np.random.default_rng(12)
    arrays = [values(DTYPES["bfloat16"], 90, generator) for _ in range(4)]
    got = run(arrays, "bfloat16", "sum", [0], [0], accumulate=DTYPES["float64"])[0]
    address = reduce_address("bfloat16", "sum", accumulate=DTYPES["float64"])
    guarded = [Guarded(90, ml_dtypes.bfloat16).set(x) for x in arrays]
    out = Guarded(90, ml_dtypes.bfloat16)
    call(address, [g.address for g in guarded], [out.address], 90)
    same_bits(got, out.get())


def test_a_function_of_the_users() -> None:
    def weave(a: Any, b: Any) -> Any:
        return a + np.float32(2) * b

    arrays = [np.arange(50, dtype=np.float32) + k for k in range(3)]
    wanted = (arrays[0] + 2 * arrays[1]) + 2 * arrays[2]
    same_bits(run(arrays, "float32", reduction(weave), [1], [1])[0], wanted)
    numbers = [np.array([1 + 2j, 3 - 1j], np.complex64), np.array([2j, 1], np.complex64)]
    got = run(numbers, "complex64", reduction(lambda a, b: a * b), [0], [0])[0]
    assert got.tolist() == [-4 + 2j, 3 - 1j]
