"""Spans whose results go past the caches give the same bytes, at any alignment."""

from __future__ import annotations

import numpy as np
import pytest

from multiring.kernels.build import span_address
from multiring.kernels.dtypes import DTYPES, numpy_dtype
from tests.kernels.span_harness import Guarded, call, expected, reduce_address, same_bits, values


@pytest.mark.parametrize(("name", "op"), [("float32", "sum"), ("bfloat16", "avg"), ("float64", "sum")])
def test_reductions(name: str, op: str) -> None:
    generator = np.random.default_rng(5)
    dtype = numpy_dtype(DTYPES[name])
    address = reduce_address(name, op, stream=True)
    assert address != reduce_address(name, op)
    for count in (*range(0, 71, 7), 1024, 3001):
        for n_sources in range(1, 6):
            offset = (count + n_sources) % 64
            inputs = [values(DTYPES[name], count, generator) for _ in range(n_sources)]
            sources = [Guarded(count, dtype, offset).set(x) for x in inputs]
            out = [Guarded(count, dtype, (offset * 3 + k) % 64) for k in range(1 + count % 3)]
            targets = [o.address for o in out]
            call(address, [s.address for s in sources], [*targets, sources[-1].address], count)
            for array in (*out, sources[-1]):
                same_bits(array.get(), expected(inputs, op), f"n={count} from {n_sources}")


def test_copies_and_casts() -> None:
    for count in (0, 1, 3, 63, 64, 65, 200, 5000):
        for offset in (0, 1, 32, 63):
            x = np.random.default_rng(count).normal(size=count).astype(np.float32)
            source = Guarded(count, np.float32, 3).set(x)
            out = [Guarded(count, np.float32, (offset + k) % 64) for k in range(2)]
            call(span_address("copy", itemsize=4, stream=True), [source.address], [o.address for o in out], count)
            for o in out:
                same_bits(o.get(), x)
            bfloat16 = numpy_dtype(DTYPES["bfloat16"])
            narrow = Guarded(count, bfloat16, offset)
            address = span_address(
                "cast", source=DTYPES["float32"], destination=DTYPES["bfloat16"], scale=True, stream=True
            )
            call(address, [source.address], [narrow.address], count, scale=0.5)
            same_bits(narrow.get(), (x * np.float32(0.5)).astype(bfloat16))
