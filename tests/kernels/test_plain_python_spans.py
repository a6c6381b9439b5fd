"""The span functions run in plain Python too, with the same bits, and there check every access."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from multiring.kernels import memory
from multiring.kernels.dtypes import DTYPES, numpy_dtype
from multiring.kernels.kinds import span_function
from multiring.kernels.operations import OPERATIONS, reduction
from tests.kernels.span_harness import expected, values


@pytest.fixture
def registered() -> Iterator[Any]:
    """Copy arrays to registered buffers."""
    kept: list[Any] = []

    def register(array: Any) -> Any:
        kept.append(np.ascontiguousarray(array).copy())
        memory.register(kept[-1].ctypes.data, kept[-1].nbytes)
        return kept[-1]

    yield register
    for array in kept:
        memory.forget(array.ctypes.data)


def run(
    span: Any, registered: Any, sources: list[Any], destinations: list[Any], count: int, scale: float = 1.0
) -> None:
    tables = [registered(np.array([a.ctypes.data for a in arrays], np.int64)) for arrays in (sources, destinations)]
    parameters = registered(np.array([np.float64(scale).view(np.int64), len(sources), 0, 0, 0, 0, 0, 0], np.int64))
    span(tables[0].ctypes.data, len(sources), tables[1].ctypes.data, len(destinations), count, parameters.ctypes.data)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("name", "op"),
    [("float32", "sum"), ("bfloat16", "avg"), ("float16", "max"), ("int8", "sum"), ("bool", "max"),
     ("complex64", "sum")],
)  # fmt: skip
def test_reductions(registered: Any, name: str, op: str, stream: bool) -> None:
    generator = np.random.default_rng(1)
    span = span_function("reduce", dtype=DTYPES[name], operation=OPERATIONS[op], stream=stream)
    for n_sources, n_destinations in ((1, 1), (2, 1), (2, 2), (3, 1), (5, 3)):
        inputs = [values(DTYPES[name], 9, generator) for _ in range(n_sources)]
        sources = [registered(x) for x in inputs]
        out = [registered(np.zeros(9, numpy_dtype(DTYPES[name]))) for _ in range(n_destinations)]
        run(span, registered, sources, out, 9)
        for array in out:
            assert array.tobytes() == expected(inputs, op).tobytes()


def test_casts_copies_and_custom_reductions(registered: Any) -> None:
    x = registered(np.linspace(-3, 3, 11, dtype=np.float32))
    narrow = registered(np.zeros(11, numpy_dtype(DTYPES["bfloat16"])))
    run(span_function("cast", source=DTYPES["float32"], destination=DTYPES["bfloat16"], scale=True), registered,
        [x], [narrow], 11, scale=0.1)  # fmt: skip
    assert narrow.tobytes() == (x * np.float32(0.1)).astype(narrow.dtype).tobytes()
    y = registered(np.zeros(11, np.float32))
    run(span_function("copy", itemsize=4), registered, [x], [y], 11)
    assert y.tobytes() == x.tobytes()
    custom = span_function("reduce", dtype=DTYPES["float32"], operation=reduction(lambda a, b: a - b))
    run(custom, registered, [x, x, y], [y], 11)
    assert y.tobytes() == (x - x - x).tobytes()


def test_an_access_outside_every_buffer_is_named(registered: Any) -> None:
    x = registered(np.zeros(4, np.float32))
    out = registered(np.zeros(3, np.float32))
    span = span_function("reduce", dtype=DTYPES["float32"], operation=OPERATIONS["sum"])
    with pytest.raises(MemoryError, match=f"4 bytes at {out.ctypes.data + 12:#x} lie outside every buffer"):
        run(span, registered, [x], [out], 4)
