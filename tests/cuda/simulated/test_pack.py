"""Packing and unpacking many arrays: any counts, any alignments, casts and scales, one launch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multiring.kernels.cuda import calls
from multiring.kernels.dtypes import DTYPES, numpy_dtype
from multiring.kernels.pack import Packing
from tests.cuda.device_arrays import DeviceArray
from tests.kernels.span_harness import Guarded, canonical, same_bits, values

pytestmark = pytest.mark.sim

FEW = settings(max_examples=10) if settings().max_examples < 100 else settings()
COUNTS = st.lists(st.sampled_from([0, 1, 2, 7, 8, 9, 31, 130, 300]) | st.integers(0, 150), min_size=1, max_size=7)
TYPES = [("float32", "bfloat16"), ("bfloat16", "float32"), ("float32", "float16"), ("float16", "bfloat16"),
         ("float32", "float32"), ("uint8", "uint8"), ("complex128", "complex128"), ("float64", "float32")]  # fmt: skip


def cast(x: Any, name: str, scale: float | None) -> Any:
    if x.dtype == numpy_dtype(DTYPES[name]) and scale is None:
        return x
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64 if x.dtype == np.float64 else np.float32)
        if scale is not None:
            wide = wide * wide.dtype.type(scale)
        return canonical(wide.astype(numpy_dtype(DTYPES[name])))


@pytest.mark.parametrize(("source", "destination"), TYPES)
@FEW
@given(data=st.data())
def test_there_and_back(source: str, destination: str, data: st.DataObject) -> None:
    counts = data.draw(COUNTS)
    scale = data.draw(st.sampled_from([None, 0.25])) if source != "uint8" and source != "complex128" else None
    offsets = data.draw(st.lists(st.integers(0, 9), min_size=len(counts), max_size=len(counts)))
    generator = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    xs = [values(DTYPES[source], n, generator) for n in counts]
    arrays = [DeviceArray.of(x, source, offset) for x, offset in zip(xs, offsets, strict=True)]
    buffer = DeviceArray(sum(counts), destination, data.draw(st.integers(0, 9)))
    calls.pack([a.view for a in arrays], buffer.view, scale)()
    packed = cast(np.concatenate(xs), destination, scale)
    same_bits(buffer.get(), packed, "packed")
    outs = [DeviceArray(n, source, offset + 1) for n, offset in zip(counts, offsets, strict=True)]
    calls.unpack(buffer.view, [o.view for o in outs])()
    for out, wanted in zip(outs, np.split(packed, np.cumsum(counts)[:-1]), strict=True):
        same_bits(out.get(), cast(wanted, source, None), "unpacked")


def test_the_host_packs_the_same_bits() -> None:
    counts = [5, 0, 77, 300]
    xs = [values(DTYPES["float32"], n, np.random.default_rng(n)) for n in counts]
    arrays = [DeviceArray.of(x, "float32", k) for k, x in enumerate(xs)]
    buffer = DeviceArray(sum(counts), "bfloat16")
    calls.pack([a.view for a in arrays], buffer.view)()
    host = Guarded(sum(counts), numpy_dtype(DTYPES["bfloat16"]))
    Packing(counts, DTYPES["float32"], DTYPES["bfloat16"]).pack([a.address for a in arrays], host.address)
    same_bits(buffer.get(), host.get())
