"""What the compiler made of the main kernels: vector code, no guards by address, no contraction."""

from __future__ import annotations

import platform
import re
from typing import Any

import numpy as np
import pytest
from numba import cfunc, njit, types

from multiring.kernels import bits
from multiring.kernels.build import span_address
from multiring.kernels.dtypes import DTYPES
from multiring.kernels.kinds import span_function
from multiring.kernels.operations import OPERATIONS
from multiring.kernels.primitives import call_span, restore_float_control, set_float_control
from tests.kernels.span_harness import Guarded

x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="reads x86 assembly")

FOLDS = 7
"""Loops of a reduce kernel: 1, 2 and 3 sources to one, 2 to two, and three that go through the scratch."""

LOOPS = [
    ({"dtype": "float32", "operation": "sum"}, [r"\bv?addps\b.*[xyz]mm"], FOLDS),
    ({"dtype": "float64", "operation": "sum"}, [r"\bv?addpd\b.*[xyz]mm"], FOLDS),
    ({"dtype": "bfloat16", "operation": "sum"}, [r"\bv?addps\b.*[xyz]mm", r"\bv?psrld\b.*[xyz]mm"], FOLDS),
    ({"dtype": "float16", "operation": "avg"}, [r"\bv?addps\b.*[xyz]mm", r"\bv?divps\b.*[xyz]mm"], FOLDS),
    ({"dtype": "float32", "operation": "max"}, [r"\bvp?cmp\w*ps\b|\bv?cmp\w*ps\b|\bv?maxps\b"], FOLDS),
    ({"dtype": "int8", "operation": "sum"}, [r"\bv?paddb\b.*[xyz]mm"], FOLDS),
    ({"dtype": "int64", "operation": "max"}, [r"\bvpmaxsq\b|\bv?pcmpgt[dq]\b|\bvpcmp\w*q\b"], FOLDS),
]


def compiled(kind: str, **spec: Any) -> Any:
    """Compile afresh: what comes from the disk cache cannot be looked into."""
    function = span_function(kind, **spec)
    return cfunc(types.void(*[types.int64] * 6), error_model="numpy")(function)


@x86
@pytest.mark.parametrize(("spec", "instructions", "loops"), LOOPS, ids=lambda value: str(value)[:60])
def test_loops_are_vector_code(spec: dict[str, str], instructions: list[str], loops: int) -> None:
    kernel = compiled("reduce", dtype=DTYPES[spec["dtype"]], operation=OPERATIONS[spec["operation"]])
    code = kernel.inspect_llvm()
    assembly = kernel._library.get_asm_str()
    assert len(re.findall(r"^vector\.body\d*:", code, re.MULTILINE)) >= loops
    assert "vector.memcheck" not in code, "an in-place call would fall into the scalar loop"
    natural = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2, "int8": 0, "int64": 8}[spec["dtype"]]
    assert not re.search(rf"(load|store) .*<\d+ x .*, align {natural}\b", code), "elements may be unaligned"
    for instruction in instructions:
        assert re.search(instruction, assembly), instruction
    assert not re.search(r"vfn?m(add|sub)|vcvtneps2bf16", assembly)
    if spec["dtype"] == "float16" and bits.has_half_conversions():
        assert re.search(r"vcvtph2ps.*[yz]mm", assembly)
        assert re.search(r"vcvtps2ph.*[yz]mm", assembly)


@x86
def test_casts_are_vector_code() -> None:
    kernel = compiled("cast", source=DTYPES["float32"], destination=DTYPES["bfloat16"], scale=True)
    assert "vector.memcheck" not in kernel.inspect_llvm()
    assert re.search(r"\bv?mulps\b.*[xyz]mm", kernel._library.get_asm_str())


@x86
def test_streaming_uses_non_temporal_stores_and_a_fence() -> None:
    assembly = compiled("copy", itemsize=4, stream=True)._library.get_asm_str()
    assert re.search(r"movnt(dq|ps|pd)", assembly)
    assert re.search(r"mfence|sfence|lock", assembly)


FLUSH = 0x9FC0
"""MXCSR with flush to zero and denormals are zero, as -ffast-math libraries leave it."""


@njit  # type: ignore[untyped-decorator]
def halve_three_times(span: int, first: int, second: int, third: int, parameters: int) -> int:
    old = set_float_control()
    restore_float_control(FLUSH)
    call_span(span, first, 1, first + 8, 1, 1, parameters)
    found = set_float_control()
    call_span(span, second, 1, second + 8, 1, 1, parameters)
    restore_float_control(found)
    call_span(span, third, 1, third + 8, 1, 1, parameters)
    set_float_control()
    restore_float_control(old)
    return found  # type: ignore[no-any-return]


@x86
def test_set_float_control_keeps_subnormals_and_gives_the_setting_back() -> None:
    span = span_address("cast", source=DTYPES["float32"], destination=DTYPES["float32"], scale=True)
    x = Guarded(1, np.float32).set(np.array([2.0**-126], np.float32))
    out = [Guarded(1, np.float32) for _ in range(3)]
    tables = [np.array([x.address, o.address], np.int64) for o in out]
    parameters = np.array([np.float64(0.5).view(np.int64), 1, 0, 0, 0, 0, 0, 0], np.int64)
    first, second, third = (t.ctypes.data for t in tables)
    found = halve_three_times(span, first, second, third, parameters.ctypes.data)
    assert found & 0xFFC0 == FLUSH
    assert [float(o.get()[0]) for o in out] == [0.0, 2.0**-127, 0.0]
