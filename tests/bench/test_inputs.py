"""Inputs whose result is known: compared with the collectives done by numpy, one rank after the other."""

from __future__ import annotations

import itertools
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiring.bench.cases import COLLECTIVES, Case, make_case
from multiring.bench.inputs import Inputs, count_wrong, poison, write_periodic
from multiring.errors import MultiringError
from multiring.kernels.dtypes import DTYPES, numpy_dtype
from multiring.kernels.operations import OPERATIONS, Reduction, check_operation, premul_sum

REDUCTIONS = {**OPERATIONS, "mulsum": premul_sum(2.0)}


def send_arrays(case: Case, inputs: Inputs) -> list[Any]:
    arrays = []
    for rank in range(case.n_ranks):
        array = np.zeros(case.send_count, numpy_dtype(case.dtype))
        write_periodic(array, inputs.sent(rank))
        arrays.append(array)
    return arrays


def combined(operation: Reduction, arrays: list[Any]) -> Any:
    """Combine in the arrays' own type, two at a time: exact inputs must survive it."""
    kind = arrays[0].dtype.type
    functions: dict[str, Any] = {
        "sum": np.add, "avg": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "band": np.bitwise_and,
        "bor": np.bitwise_or, "bxor": np.bitwise_xor,
    }  # fmt: skip
    if operation.name == "premul_sum":
        return reduce(np.add, [array * kind(operation.scale) for array in arrays])
    result = reduce(functions[operation.name], arrays)
    return result / kind(len(arrays)) if operation.name == "avg" else result


def results(case: Case, arrays: list[Any]) -> list[Any]:
    n, count, root = case.n_ranks, case.count, case.root

    def part(array: Any, index: int) -> Any:
        return array[index * count : (index + 1) * count]

    empty = arrays[0][:0]
    match case.collective:
        case "broadcast":
            return [arrays[root]] * n
        case "all_gather":
            return [np.concatenate(arrays)] * n
        case "gather":
            return [np.concatenate(arrays) if rank == root else empty for rank in range(n)]
        case "scatter":
            return [part(arrays[root], rank) for rank in range(n)]
        case "all_to_all":
            return [np.concatenate([part(array, rank) for array in arrays]) for rank in range(n)]
        case "sendrecv":
            return [arrays[rank - 1] for rank in range(n)]
        case _:
            pass
    assert case.operation is not None
    total = combined(case.operation, arrays)
    match case.collective:
        case "all_reduce":
            return [total] * n
        case "reduce":
            return [total if rank == root else empty for rank in range(n)]
        case _:
            return [part(total, rank) for rank in range(n)]


def every_case() -> list[Any]:
    cases = []
    for collective, shape in COLLECTIVES.items():
        for dtype in DTYPES.values():
            names: list[Any] = list(REDUCTIONS) if shape.reduces else [None]
            for name in names:
                operation = REDUCTIONS.get(name)
                if operation is not None:
                    try:
                        check_operation(operation, dtype)
                    except MultiringError:
                        continue
                cases.append(pytest.param(collective, dtype.name, name, id=f"{collective}-{dtype.name}-{name}"))
    return cases


@pytest.mark.parametrize(("collective", "dtype", "operation"), every_case())
def test_what_is_expected_is_what_numpy_gives(collective: str, dtype: str, operation: str | None) -> None:
    for n_ranks, constant in itertools.product((1, 2, 3, 8), (False, True)):
        element = DTYPES[dtype]
        root = n_ranks - 1 if COLLECTIVES[collective].rooted else -1
        reduction = None if operation is None else REDUCTIONS[operation]
        case = make_case(collective, n_ranks, 300 * n_ranks * element.itemsize, element, reduction, "", root)
        inputs = Inputs(case, seed=n_ranks, constant=constant)
        for rank, wanted in enumerate(results(case, send_arrays(case, inputs))):
            templates = inputs.received(rank)
            array = np.empty(case.receive_count if templates else 0, numpy_dtype(element))
            write_periodic(array, templates)
            assert array.dtype == wanted.dtype
            np.testing.assert_array_equal(array, wanted)


@given(st.integers(1, 5), st.integers(0, 900), st.data())
def test_one_wrong_element_is_counted_and_found(parts: int, length: int, data: st.DataObject) -> None:
    templates = [np.arange(7, dtype=np.float32) + part for part in range(parts)]
    array = np.empty(parts * length, np.float32)
    write_periodic(array, templates)
    assert count_wrong(array, templates) == (0, -1)
    if array.size:
        index = data.draw(st.integers(0, array.size - 1))
        array[index] = np.nan
        assert count_wrong(array, templates) == (1, index)


def test_wrong_elements_beyond_a_block_are_found() -> None:
    template = np.arange(113, dtype=np.int8)
    array = np.empty(300_000, np.int8)
    write_periodic(array, [template])
    np.testing.assert_array_equal(array, np.resize(template, array.size))
    array[[131_072, 299_999]] = -7
    assert count_wrong(array, [template]) == (2, 131_072)


@pytest.mark.parametrize("operation", ["sum", "prod"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_sums_of_short_integers_do_not_overflow(dtype: str, operation: str) -> None:
    for n_ranks in (2, 3, 8):
        case = make_case("all_reduce", n_ranks, 1 << 12, DTYPES[dtype], OPERATIONS[operation])
        sources = [Inputs(case).source(rank, 0).astype(np.int64) for rank in range(n_ranks)]
        exact = combined(OPERATIONS[operation], sources)
        np.testing.assert_array_equal(Inputs(case).received(0)[0].astype(np.int64), exact)


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather", "all_to_all"])
def test_what_was_there_before_is_not_right_by_chance(collective: str) -> None:
    reduction = OPERATIONS["sum"] if COLLECTIVES[collective].reduces else None
    case = make_case(collective, 2, 4096, DTYPES["float32"], reduction)
    first, second = (Inputs(case, seed).received(0)[0] for seed in (0, 1))
    assert (first != second).mean() > 0.9
    one, other = (Inputs(case, seed, constant=True).received(0)[0] for seed in (0, 1))
    assert one != other


def test_poison_is_never_right() -> None:
    for name in ("float16", "bfloat16", "float32", "complex64", "int32", "uint8"):
        array = np.zeros(5, numpy_dtype(DTYPES[name]))
        poison(array)
        case = make_case("broadcast", 2, 1024, DTYPES[name], root=0)
        assert count_wrong(array, [Inputs(case).source(0, 0)])[0] == 5
