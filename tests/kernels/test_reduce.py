"""The reduce kernels against numpy: every type and reduction, sizes, misalignment, in place, canaries."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from multiring.kernels.build import span_address
from multiring.kernels.dtypes import DTYPES, numpy_dtype
from multiring.kernels.operations import OPERATIONS, premul_sum, reduction
from tests.kernels.span_harness import PAIRS, Guarded, call, expected, reduce_address, same_bits, values

GRID = [("float32", "sum"), ("bfloat16", "sum"), ("float16", "avg"), ("int8", "sum"), ("complex128", "sum")]


def check(name: str, op: str, count: int, n_sources: int, n_destinations: int, offset: int, seed: int = 0) -> None:
    generator = np.random.default_rng([seed, count, n_sources, offset])
    dtype = numpy_dtype(DTYPES[name])
    inputs = [values(DTYPES[name], count, generator) for _ in range(n_sources)]
    sources = [Guarded(count, dtype, (offset + 3 * k) % 16).set(x) for k, x in enumerate(inputs)]
    destinations = [Guarded(count, dtype, (offset * 5 + k) % 16) for k in range(n_destinations)]
    call(reduce_address(name, op), [s.address for s in sources], [d.address for d in destinations], count)
    wanted = expected(inputs, op)
    for k, destination in enumerate(destinations):
        same_bits(destination.get(), wanted, f"{name} {op} n={count} destination {k} offset {offset}")
    for source, values_before in zip(sources, inputs, strict=True):
        assert source.get().tobytes() == values_before.tobytes()


@pytest.mark.parametrize(("name", "op"), PAIRS)
def test_every_size_with_some_sources_and_alignments(name: str, op: str) -> None:
    for count in range(71):
        check(name, op, count, 1 + count % 7, 1 + count % 4, count * 7 % 16)
    for n_sources in range(1, 8):
        check(name, op, 1500, n_sources, 1 + n_sources % 4, n_sources)


@pytest.mark.parametrize(("name", "op"), GRID)
def test_every_size_at_every_misalignment(name: str, op: str) -> None:
    for count in range(71):
        for offset in range(16):
            check(name, op, count, 1 + (count + offset) % 5, 1 + (count + offset) % 2, offset)


@pytest.mark.parametrize(("name", "op"), GRID)
@pytest.mark.parametrize("count", [1023, 1024, 1025, 2049, 4097, 10587])
def test_around_the_blocks(name: str, op: str, count: int) -> None:
    for n_sources in range(1, 8):
        for n_destinations in range(1, 5):
            check(name, op, count, n_sources, n_destinations, (count + n_sources) % 16)


@pytest.mark.parametrize(("name", "op"), [*GRID, ("uint8", "max"), ("float64", "min")])
@pytest.mark.parametrize("count", [1, 69, 1500])
@pytest.mark.parametrize(
    ("n_sources", "targets"),
    [(2, (0,)), (2, (1,)), (2, (0, 1)), (2, (1, 0)), (3, (0, 1, 2)), (5, (4,)), (5, (3, 1)), (7, (0, 1, 2, 3, 4, 5, 6)),
     (1, (0,)), (2, (1, None)), (2, (None, 0)), (4, (None, 2, 3))],
)  # fmt: skip
def test_in_place(name: str, op: str, count: int, n_sources: int, targets: tuple[int | None, ...]) -> None:
    generator = np.random.default_rng(count)
    dtype = numpy_dtype(DTYPES[name])
    for offset in (0, 1):
        inputs = [values(DTYPES[name], count, generator) for _ in range(n_sources)]
        arrays = [Guarded(count, dtype, offset * (k + 1)).set(x) for k, x in enumerate(inputs)]
        destinations = [Guarded(count, dtype) if k is None else arrays[k] for k in targets]
        call(reduce_address(name, op), [a.address for a in arrays], [d.address for d in destinations], count)
        for destination in destinations:
            same_bits(destination.get(), expected(inputs, op), f"{name} {op}")
        for k in set(range(n_sources)) - set(targets):
            assert arrays[k].get().tobytes() == inputs[k].tobytes()


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@pytest.mark.parametrize("n", [300, 1024])
def test_many_ones_do_not_stick(name: str, n: int) -> None:
    ones = Guarded(5, numpy_dtype(DTYPES[name])).set(np.ones(5, numpy_dtype(DTYPES[name])))
    out = Guarded(5, numpy_dtype(DTYPES[name]))
    call(reduce_address(name, "sum"), [ones.address] * n, [out.address], 5)
    assert out.get().astype(float).tolist() == [float(n)] * 5
    call(reduce_address(name, "avg"), [ones.address] * n, [out.address], 5)
    assert out.get().astype(float).tolist() == [1.0] * 5


def _reduce(name: str, op: str, *columns: list[Any], **spec: Any) -> list[Any]:
    dtype = numpy_dtype(DTYPES[name])
    arrays = [np.array(column).astype(dtype) for column in columns]
    sources = [Guarded(len(a), dtype).set(a) for a in arrays]
    out = Guarded(len(arrays[0]), dtype)
    call(reduce_address(name, op, **spec), [s.address for s in sources], [out.address], len(arrays[0]))
    return out.get().tolist()  # type: ignore[no-any-return]


def test_float16_average_does_not_overflow() -> None:
    assert _reduce("float16", "avg", [60000.0], [60000.0], [60000.0]) == [60000.0]
    assert _reduce("float16", "sum", [60000.0], [60000.0]) == [np.inf]


def test_average_left_to_a_later_step_is_a_sum() -> None:
    assert _reduce("float32", "avg", [1.0], [2.0], final=False) == [3.0]
    assert _reduce("float32", "avg", [1.0], [2.0], final=True) == [1.5]


def test_average_divides_by_the_ranks_and_not_by_the_sources() -> None:
    x = Guarded(3, np.float32).set(np.array([3, 6, 7], np.float32))
    out = Guarded(3, np.float32)
    call(reduce_address("float32", "avg"), [x.address], [out.address], 3, n_ranks=3)
    assert out.get().tolist() == [1.0, 2.0, float(np.float32(7) / np.float32(3))]


def test_integers_wrap_as_numpys_do() -> None:
    assert _reduce("int8", "sum", [120, -128], [100, -1]) == [-36, 127]
    assert _reduce("uint8", "sum", [200], [100]) == [44]
    assert _reduce("int32", "prod", [1 << 30], [4]) == [0]


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_extremes_keep_nan_in_any_order(name: str, order: tuple[int, ...]) -> None:
    numbers = [[np.nan, -0.0], [1.0, 0.0], [2.0, -0.0]]
    columns = [numbers[k] for k in order]
    largest, smallest = _reduce(name, "max", *columns), _reduce(name, "min", *columns)
    assert np.isnan(largest[0])
    assert np.isnan(smallest[0])
    assert (np.signbit(largest[1]), np.signbit(smallest[1])) == (False, True)
    assert np.isnan(_reduce(name, "min", [np.nan], [np.nan])[0])


def test_any_non_zero_byte_is_true() -> None:
    bytes_in = [Guarded(4, np.uint8).set(np.array(b, np.uint8)) for b in ([0, 2, 0, 255], [0, 4, 128, 0])]
    out = Guarded(4, np.uint8)
    for op, wanted in (("max", [0, 1, 1, 1]), ("min", [0, 1, 0, 0])):
        call(reduce_address("bool", op), [b.address for b in bytes_in], [out.address], 4)
        assert out.get().tolist() == wanted
    call(reduce_address("bool", "max"), [bytes_in[0].address], [out.address], 4)
    assert out.get().tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_accumulating_wider_rounds_once(name: str) -> None:
    generator = np.random.default_rng(4)
    dtype = numpy_dtype(DTYPES[name])
    inputs = [generator.normal(size=4000).astype(dtype) * 10.0**k for k in range(5)]
    inputs = [x.astype(dtype) for x in inputs]
    sources = [Guarded(4000, dtype).set(x) for x in inputs]
    out = Guarded(4000, dtype)
    for op in ("sum", "avg", "max"):
        address = reduce_address(name, op, accumulate=DTYPES["float64"])
        call(address, [s.address for s in sources], [out.address], 4000)
        wide = [x.astype(np.float64) for x in inputs]
        total = np.maximum.reduce(wide) if op == "max" else sum(wide[1:], wide[0]) / (5.0 if op == "avg" else 1.0)
        # Two candidates on either side; the nearer one must have been taken (ties do not occur in these inputs).
        error = np.abs(out.get().astype(np.float64) - total)
        bits = out.get().view(np.uint16 if dtype.itemsize == 2 else np.uint32)
        for step in (-1, 1):
            neighbour = (bits.astype(np.int64) + step).astype(bits.dtype).view(dtype).astype(np.float64)
            assert (error <= np.abs(neighbour - total)).all()


def test_equal_kernels_are_built_once() -> None:
    plain = reduce_address("float32", "sum")
    assert span_address("reduce", dtype=DTYPES["float32"], operation=premul_sum(0.5)) == plain
    assert reduce_address("float32", "avg", final=False) == plain
    assert reduce_address("float32", "sum", accumulate=DTYPES["float32"]) == plain
    assert reduce_address("float32", "avg") != plain


def first_times_ten_plus_second(a, b):  # type: ignore[no-untyped-def]
    return a * 10 + b


@pytest.mark.parametrize("name", ["int32", "float32", "bfloat16", "complex64"])
def test_custom_reductions_fold_in_the_given_order(name: str) -> None:
    dtype = numpy_dtype(DTYPES[name])
    address = span_address("reduce", dtype=DTYPES[name], operation=reduction(first_times_ten_plus_second))
    for n_sources in range(1, 7):
        n_good = min(n_sources, 3) if name == "bfloat16" else n_sources
        sources = [Guarded(1100, dtype).set(np.full(1100, k + 1, dtype)) for k in range(n_good)]
        out = [Guarded(1100, dtype) for _ in range(3)]
        call(address, [s.address for s in sources], [o.address for o in out], 1100)
        wanted = int("".join(str(k + 1) for k in range(n_good)))
        for o in out:
            assert (o.get() == np.full(1100, wanted).astype(dtype)).all()


def test_the_operations_that_a_type_lacks_are_refused() -> None:
    with pytest.raises(TypeError, match=r"op='avg' is not defined for dtype int32: use op='sum' and divide"):
        span_address("reduce", dtype=DTYPES["int32"], operation=OPERATIONS["avg"])


def test_accumulate_types_that_cannot_hold_the_elements_are_refused() -> None:
    with pytest.raises(TypeError, match=r"accumulate: got 'float16' for dtype float16, wanted float32 or float64"):
        reduce_address("float16", "sum", accumulate=DTYPES["float16"])
    with pytest.raises(TypeError, match=r"accumulate: got 'int64' for dtype int32, wanted int32; leave"):
        reduce_address("int32", "sum", accumulate=DTYPES["int64"])


def two_of_them(a, b):  # type: ignore[no-untyped-def]
    return a, b


def of_three(a, b, c):  # type: ignore[no-untyped-def]
    return a + b + c


@pytest.mark.parametrize("function", [two_of_them, of_three])
def test_custom_reductions_that_cannot_be_compiled_are_refused(function: Any) -> None:
    message = (
        rf"op: Numba cannot compile {function.__name__}\(a, b\) .* for two float32 scalars: got .*, wanted a function"
    )
    with pytest.raises(TypeError, match=message):
        span_address("reduce", dtype=DTYPES["float16"], operation=reduction(function))


def test_custom_reductions_of_bool_give_a_bool() -> None:
    address = span_address("reduce", dtype=DTYPES["bool"], operation=reduction(lambda a, b: a + b + 1))
    x = Guarded(3, np.uint8).set(np.array([0, 1, 7], np.uint8))
    out = Guarded(3, np.uint8)
    call(address, [x.address, x.address], [out.address], 3)
    assert out.get().tolist() == [1, 1, 1]


UNIT_ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}


@pytest.mark.parametrize(("name", "accumulate"), [(n, a) for n in UNIT_ROUNDOFF for a in ("default", "float64")])
def test_the_documented_error_bound(name: str, accumulate: str) -> None:
    wide = {"float64": "float64"}.get(name, "float32") if accumulate == "default" else accumulate
    generator = np.random.default_rng(11)
    dtype = numpy_dtype(DTYPES[name])
    inputs = [(generator.normal(size=500) * 2.0 ** generator.integers(-3, 4, 500)).astype(dtype) for _ in range(9)]
    sources, out = [Guarded(500, dtype).set(x) for x in inputs], Guarded(500, dtype)
    call(reduce_address(name, "sum", accumulate=DTYPES[wide]), [s.address for s in sources], [out.address], 500)
    factor = (1 + Fraction(UNIT_ROUNDOFF[wide])) ** 8 * (1 + Fraction(UNIT_ROUNDOFF[name])) - 1
    for i, got in enumerate(out.get().astype(np.float64)):
        column = [Fraction(float(x[i])) for x in inputs]
        assert abs(Fraction(float(got)) - sum(column)) <= factor * sum(map(abs, column))
