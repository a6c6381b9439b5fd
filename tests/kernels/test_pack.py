"""Many arrays into one buffer and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiring.kernels.dtypes import DTYPES, numpy_dtype
from multiring.kernels.pack import Packing
from tests.kernels.span_harness import Guarded, same_bits, values

# Signalling NaN is among the inputs on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@given(
    counts=st.lists(st.integers(0, 70), max_size=12),
    pair=st.sampled_from([("float32", "float32"), ("float32", "bfloat16"), ("int8", "int8"), ("float16", "float32")]),
    offset=st.integers(0, 15),
)
def test_packing_and_unpacking(counts: list[int], pair: tuple[str, str], offset: int) -> None:
    dtype, packed = DTYPES[pair[0]], DTYPES[pair[1]]
    generator = np.random.default_rng(sum(counts))
    inputs = [values(dtype, count, generator) for count in counts]
    arrays = [Guarded(len(x), numpy_dtype(dtype), (offset * 7 + k) % 16).set(x) for k, x in enumerate(inputs)]
    packing = Packing(counts, dtype, packed)
    assert packing.offsets.tolist() == [sum(counts[:k]) for k in range(len(counts) + 1)]
    buffer = Guarded(sum(counts), numpy_dtype(packed), offset)
    assert packing.n_bytes == buffer.n_bytes
    packing.pack([a.address for a in arrays], buffer.address)
    with np.errstate(all="ignore"):
        everything = np.concatenate([np.zeros(0, numpy_dtype(dtype)), *inputs])
        wanted = everything if pair[0] == pair[1] else everything.astype(numpy_dtype(packed))
    if pair[0] == pair[1]:
        same_bits(buffer.get(), wanted)
    else:
        np.testing.assert_array_equal(buffer.get().astype(np.float64), wanted.astype(np.float64))
    out = [Guarded(len(x), numpy_dtype(dtype), (offset * 3 + k) % 16) for k, x in enumerate(inputs)]
    packing.unpack(buffer.address, [o.address for o in out])
    for k, o in enumerate(out):
        back = wanted[packing.offsets[k] : packing.offsets[k + 1]]
        np.testing.assert_array_equal(o.get().astype(np.float64), back.astype(np.float64))


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"counts: got -1, wanted elements per array, 0 or more"):
        Packing([3, -1], DTYPES["int8"])
    with pytest.raises(ValueError, match=r"addresses: got 1, wanted 2, one per array of the packing"):
        Packing([3, 1], DTYPES["int8"]).pack([0], 0)
