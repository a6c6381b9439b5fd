"""The fused update: machine code against numpy and against plain Python, and what the machine code looks like."""

from __future__ import annotations

import platform
import re
from typing import Any

import numpy as np
import pytest
from numba import njit

from multiring.kernels import memory
from multiring.kernels.dtypes import DTYPES, numpy_dtype
from multiring.kernels.rules import RULES, Rule
from multiring.kernels.update import SquareSums, make_update, row_words, sum_of_squares, update_kernel

VALUES = {"scale": 0.5, "rate": 0.1, "decay": 0.01, "momentum": 0.9, "beta1": 0.9, "rest1": 0.1, "beta2": 0.99,
          "rest2": 0.01,
          "step": 0.2, "correction": 1.5, "epsilon": 1e-3, "shrink": 0.95, "local_rate": 0.3, "correction1": 1.1,
          "correction2": 1.2, "floor": 1e-6, "row": 0.7}  # fmt: skip


class Row:
    """A piece of n elements at odd addresses, with guards around every array."""

    def __init__(self, rule: Rule, n: int, gradient: str, weight: str | None) -> None:
        rng = np.random.default_rng(n)
        self.n = n
        self.gradient = self._guarded(rng.standard_normal(n), numpy_dtype(DTYPES[gradient]))
        self.weight = self._guarded(np.zeros(n), numpy_dtype(DTYPES[weight or "float32"]))
        self.arrays = [self._guarded(np.abs(rng.standard_normal(n)) + 0.1, np.dtype(np.float32)) for _ in rule.arrays]
        self.parameters = np.array([VALUES[name] for name in rule.parameters], np.float32)
        held = [self.gradient, self.weight, *self.arrays]
        g, w, *arrays = (x.ctypes.data + x.dtype.itemsize for x in held)
        self.table = np.array([[g, w, n, 0, self.parameters.ctypes.data, *arrays]], np.int64)
        assert self.table.shape[1] == row_words(rule)
        for x in (*held, self.parameters, self.table):
            memory.register(x.ctypes.data, x.nbytes)
        self.held = [*held, self.parameters, self.table]

    def _guarded(self, values: Any, dtype: np.dtype[Any]) -> Any:
        whole = np.full(len(values) + 2, 77, dtype)
        whole[1:-1] = values.astype(dtype)
        return whole

    def run(self, update: Any) -> list[bytes]:
        update(self.table.ctypes.data, 1)
        for x in (self.weight, *self.arrays):
            assert x[0] == x[-1] == 77
        return [x.tobytes() for x in (self.gradient, self.weight, *self.arrays)]

    def forget(self) -> None:
        for x in self.held:
            memory.forget(x.ctypes.data)


@pytest.mark.parametrize("name", sorted(RULES))
@pytest.mark.parametrize(("gradient", "weight"), [("float32", None), ("bfloat16", "bfloat16")])
def test_machine_code_and_plain_python_agree(name: str, gradient: str, weight: str | None) -> None:
    rule = RULES[name]
    for n in (0, 1, 37):
        rows = [Row(rule, n, gradient, weight) for _ in range(2)]
        wire = DTYPES[weight] if weight else None
        compiled = rows[0].run(update_kernel(rule, DTYPES[gradient], wire))
        plain = rows[1].run(make_update(rule, DTYPES[gradient], wire))
        assert compiled == plain
        for row in rows:
            row.forget()


def test_adam_has_numpys_bits_and_rounds_the_weight_once() -> None:
    row = Row(RULES["adam"], 1001, "bfloat16", "bfloat16")
    g, w, m, v = (x[1:-1].astype(np.float32) for x in (row.gradient, *row.arrays))
    c = {name: np.float32(value) for name, value in VALUES.items()}
    slope = c["scale"] * g + c["decay"] * w
    m = c["beta1"] * m + c["rest1"] * slope
    v = c["beta2"] * v + c["rest2"] * (slope * slope)
    w = w - c["step"] * (m / (np.sqrt(v) * c["correction"] + c["epsilon"]))
    row.run(update_kernel(RULES["adam"], DTYPES["bfloat16"], DTYPES["bfloat16"]))
    for got, want in zip(row.arrays, (w, m, v), strict=True):
        np.testing.assert_array_equal(got[1:-1], want)
    np.testing.assert_array_equal(row.weight[1:-1], w.astype(row.weight.dtype))
    row.forget()


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="reads x86 assembly")
@pytest.mark.parametrize(("gradient", "weight"), [("float32", None), ("bfloat16", "bfloat16")])
def test_adam_is_vector_code(gradient: str, weight: str | None) -> None:
    function = make_update(RULES["adam"], DTYPES[gradient], DTYPES[weight] if weight else None)
    kernel = njit("void(int64,int64)", error_model="numpy")(function)
    (code,), (assembly,) = kernel.inspect_llvm().values(), kernel.inspect_asm().values()
    assert re.search(r"^vector\.body\d*:", code, re.MULTILINE)
    assert "vector.memcheck" not in code, "an in-place call would fall into the scalar loop"
    for instruction in ("sqrtps", "divps", "mulps"):
        assert re.search(rf"\bv?{instruction}\b.*[xyz]mm", assembly), instruction
    assert not re.search(r"vfn?m(add|sub)|vcvtneps2bf16|vrsqrt|vrcp", assembly)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("n", [0, 1, 15, 16, 100, 5000])
def test_sums_of_squares(dtype: str, n: int) -> None:
    x = np.random.default_rng(n).standard_normal(n).astype(numpy_dtype(DTYPES[dtype]))
    sums = np.array([7.0, 1.0, 7.0])
    SquareSums([(x.ctypes.data, n, 1), (x.ctypes.data, 0, 0)], DTYPES[dtype]).add_to(sums)
    np.testing.assert_allclose(sums, [7.0, 1.0 + (x.astype(np.float64) ** 2).sum(), 7.0], rtol=1e-14)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("at", [0, 99])
def test_a_sum_of_squares_is_finite_just_where_all_elements_are(bad: float, at: int) -> None:
    x = np.full(100, 3e38, np.float32)
    sums = np.zeros(2)
    add = SquareSums([(x.ctypes.data, 100, 0)], DTYPES["float32"])
    add.add_to(sums)
    assert np.isfinite(sums[0])
    x[at] = bad
    add.add_to(sums)
    assert not np.isfinite(sums[0])


def test_sums_in_plain_python() -> None:
    from multiring.kernels.scalars import same

    x = np.random.default_rng(1).standard_normal(100).astype(np.float32)
    memory.register(x.ctypes.data, x.nbytes)
    sums = np.zeros(1)
    SquareSums([(x.ctypes.data, 100, 0)], DTYPES["float32"]).add_to(sums)
    assert sum_of_squares(same, np.float32, x.ctypes.data, 100) == sums[0]
    memory.forget(x.ctypes.data)
