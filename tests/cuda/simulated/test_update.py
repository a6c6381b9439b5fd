"""The fused updates: numpy's bits by the papers' formulas, and the bits of the same rule compiled for the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from multiring.kernels.cuda import calls
from multiring.kernels.dtypes import DTYPES, numpy_dtype
from multiring.kernels.rules import RULES, Rule
from tests.cuda.device_arrays import DeviceArray
from tests.kernels.span_harness import canonical, same_bits

pytestmark = pytest.mark.sim

FEW = settings(max_examples=4) if settings().max_examples < 100 else settings()
f = np.float32


def formula(name: str, g: Any, a: list[Any], p: dict[str, Any]) -> list[Any]:
    """Return the written arrays, by numpy in float32, in the order of operations of the papers' formulas."""
    p = {key: f(value) for key, value in p.items()}
    g = g * p["scale"] if "scale" in p else g
    if name == "sgd":
        return [a[0] - p["rate"] * (g + p["decay"] * a[0])]
    if name in ("sgd_momentum", "sgd_nesterov"):
        g = g + p["decay"] * a[0]
        v = p["momentum"] * a[1] + g
        return [a[0] - p["rate"] * (g + p["momentum"] * v if name == "sgd_nesterov" else v), v]
    if name == "lars":
        v = p["momentum"] * a[1] + p["local_rate"] * (g + p["decay"] * a[0])
        return [a[0] - v, v]
    if name in ("adam", "adamw", "lamb_direction"):
        if name == "adam":
            g = g + p["decay"] * a[0]
        m = p["beta1"] * a[1] + p["rest1"] * g
        v = p["beta2"] * a[2] + p["rest2"] * (g * g)
        if name == "lamb_direction":
            return [m, v, (m * p["correction1"]) / (np.sqrt(v) * p["correction2"] + p["epsilon"]) + p["decay"] * a[0]]
        weight = a[0] * p["shrink"] if name == "adamw" else a[0]
        return [weight - p["step"] * (m / (np.sqrt(v) * p["correction"] + p["epsilon"])), m, v]
    if name == "adafactor_direction":
        v = p["beta2"] * a[0] + p["rest2"] * (g * g + p["floor"])
        return [v, g / np.sqrt(v)]
    if name == "adafactor_matrix_direction":
        return [g * p["row"] * a[0]]
    assert name == "follow"
    return [p["shrink"] * a[0] - p["step"] * g]


def parameters(rule: Rule, generator: np.random.Generator) -> dict[str, float]:
    return {name: float(f(generator.uniform(0.1, 1.0))) for name in rule.parameters}


def inputs(rule: Rule, count: int, generator: np.random.Generator) -> list[Any]:
    positive = ("second", "column")
    drawn = [generator.normal(size=count).astype(f) for _ in rule.arrays]
    return [np.abs(x) + f(0.01) if name in positive else x for x, name in zip(drawn, rule.arrays, strict=True)]


def run(
    rule: Rule, gradient: str, weight: str | None, pieces: list[tuple[Any, list[Any], dict[str, float], int]]
) -> Any:
    """Run one launch on (gradient, arrays, parameters, offset) pieces; return the (arrays, weight) of each."""
    tensors, kept = [], []
    for g, arrays, p, offset in pieces:
        slope = DeviceArray.of(g, gradient, offset)
        held = [
            DeviceArray.of(x, "float32", offset) if j < rule.n_read else DeviceArray(len(g), "float32", offset)
            for j, x in enumerate(arrays)
        ]
        out = DeviceArray(len(g), weight, offset) if weight else None
        tensors.append(calls.Tensor(slope.view, [x.view for x in held], p, out.view if out else None))
        kept.append((slope, held, out))
    calls.update(rule, tensors)()
    return [([x.get() for x in held], out.get() if out else None) for _, held, out in kept]


@pytest.mark.parametrize("gradient", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", [*RULES])
@FEW
@given(data=st.data())
def test_formulas(name: str, gradient: str, data: st.DataObject) -> None:
    rule = RULES[name]
    generator = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    weight = data.draw(st.sampled_from([None, "bfloat16", "float16", "float32"])) if rule.weight is not None else None
    counts = data.draw(st.lists(st.sampled_from([0, 1, 7, 8, 9, 33, 70]), min_size=1, max_size=3))
    pieces = []
    for count in counts:
        g = generator.normal(size=count).astype(f).astype(numpy_dtype(DTYPES[gradient]))
        offset = data.draw(st.integers(0, 9))
        pieces.append((g, inputs(rule, count, generator), parameters(rule, generator), offset))
    for (g, arrays, p, _), (got, out) in zip(pieces, run(rule, gradient, weight, pieces), strict=True):
        wanted = formula(name, g.astype(f), arrays, p)
        for j, array in enumerate(got):
            expected = wanted[j - rule.first_written] if j >= rule.first_written else arrays[j]
            same_bits(array, expected, f"{name} {rule.arrays[j]}")
        if weight is not None:
            same_bits(out, canonical(wanted[rule.weight or 0].astype(numpy_dtype(DTYPES[weight]))), "weight")


@pytest.mark.parametrize("name", [*RULES])
def test_the_host_computes_the_same_bits(name: str) -> None:
    rule = RULES[name]
    generator = np.random.default_rng(5)
    compiled = njit(rule.function, error_model="numpy")
    g, arrays, p = generator.normal(size=40).astype(f), inputs(rule, 40, generator), parameters(rule, generator)
    values = [f(p[key]) for key in rule.parameters]
    rows = [compiled(g[i], *(x[i] for x in arrays[: rule.n_read]), *values) for i in range(40)]
    got, _ = run(rule, "float32", None, [(g, arrays, p, 1)])[0]
    for j, column in enumerate(np.array(rows, f).T):
        same_bits(got[rule.first_written + j], np.ascontiguousarray(column), name)


def test_adam_follows_its_definition() -> None:
    """Three steps against the paper's algorithm in float64."""
    generator = np.random.default_rng(9)
    w, m, v = generator.normal(size=30), np.zeros(30), np.zeros(30)
    arrays = [w.astype(f), m.astype(f), v.astype(f)]
    for t in (1, 2, 3):
        g = generator.normal(size=30)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w = w - 0.01 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        p = {"scale": 1.0, "decay": 0.0, "beta1": 0.9, "rest1": 0.1, "beta2": 0.999, "rest2": 0.001,
             "step": 0.01 / (1 - 0.9**t), "correction": 1 / np.sqrt(1 - 0.999**t), "epsilon": 1e-8}  # fmt: skip
        arrays, _ = run(RULES["adam"], "float32", None, [(g.astype(f), arrays, p, 0)])[0]
    assert np.abs(arrays[0] - w).max() < 1e-6


def test_a_rule_of_the_users() -> None:
    def halve(gradient: Any, master: Any, share: Any) -> Any:
        return (master - share * gradient,)

    rule = Rule("halve", halve, ("master",), 1, 0, ("share",), 0)
    g, w = np.arange(20, dtype=f), np.ones(20, f)
    got, out = run(rule, "float32", "bfloat16", [(g, [w], {"share": 0.5}, 0)])[0]
    assert got[0].tolist() == (1 - 0.5 * g).tolist()
    assert out.astype(f).tolist() == (1 - 0.5 * g).tolist()
