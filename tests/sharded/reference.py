"""The replicated optimizers, written out in numpy: what a sharded step must give."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Tensors = list[NDArray[Any]]
TYPES: dict[str, Any] = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


def averaged(grads: list[Tensors], wire: Any = np.float32) -> Tensors:
    """Return the mean over ranks: contributions rounded to the wire, float32 sums in order of rank, one rounding."""
    result = []
    for parts in zip(*grads, strict=True):
        rounded = [np.asarray(p, np.float32).astype(wire).astype(np.float32) for p in parts]
        total = rounded[0]
        for part in rounded[1:]:
            total = (total + part).astype(np.float32)
        result.append(np.asarray(total / np.float32(len(parts)), np.float32).astype(wire).astype(np.float32))
    return result


class Replicated:
    """One optimizer over whole tensors, in a precision of choice.

    With ``wide=np.float32`` every operation is rounded as the kernels must; with float64 it is the exact formula.
    """

    def __init__(
        self, params: Tensors, rule: Any, wide: Any, overrides: dict[int, dict[str, Any]] | None = None
    ) -> None:
        self.rule, self.wide, self.t = rule, wide, 0
        self.overrides = overrides or {}
        self.w = [np.asarray(p, np.float32).astype(wide) for p in params]
        self.m = [np.zeros_like(w) for w in self.w]
        self.v = [np.zeros_like(w) for w in self.w]
        self.rows: dict[int, Any] = {}
        self.columns: dict[int, Any] = {}

    def get(self, i: int, name: str) -> Any:
        value = self.overrides.get(i, {}).get(name, getattr(self.rule, name))
        return value(self.t - 1) if name == "lr" and callable(value) else value

    def step(self, grads: Tensors, scale: float = 1.0) -> None:
        self.t += 1
        with np.errstate(all="ignore"):
            for i, g in enumerate(grads):
                getattr(self, f"_{type(self.rule).__name__.lower()}")(
                    i, self.wide(scale) * np.asarray(g).astype(self.wide)
                )

    def _sgd(self, i: int, g: Any) -> None:
        c = self.wide
        lr, mu, decay = c(self.get(i, "lr")), c(self.get(i, "momentum")), c(self.get(i, "weight_decay"))
        slope = g + decay * self.w[i]
        if mu:
            self.m[i] = mu * self.m[i] + slope
            slope = slope + mu * self.m[i] if self.get(i, "nesterov") else self.m[i]
        self.w[i] = self.w[i] - lr * slope

    def _adam(self, i: int, g: Any) -> None:
        c = self.wide
        b1, b2 = self.get(i, "betas")
        slope = g + c(self.get(i, "weight_decay")) * self.w[i]
        self._move(i, slope, c(b1), c(1 - b1), c(b2), c(1 - b2))
        step = c(self.get(i, "lr") / (1 - b1**self.t))
        self.w[i] = self.w[i] - step * (self.m[i] / self._root(i, b2))

    def _adamw(self, i: int, g: Any) -> None:
        c = self.wide
        b1, b2 = self.get(i, "betas")
        self._move(i, g, c(b1), c(1 - b1), c(b2), c(1 - b2))
        lr = self.get(i, "lr")
        step, shrink = c(lr / (1 - b1**self.t)), c(1 - lr * self.get(i, "weight_decay"))
        self.w[i] = self.w[i] * shrink - step * (self.m[i] / self._root(i, b2))

    def _move(self, i: int, g: Any, b1: Any, r1: Any, b2: Any, r2: Any) -> None:
        self.m[i] = b1 * self.m[i] + r1 * g
        self.v[i] = b2 * self.v[i] + r2 * (g * g)

    def _root(self, i: int, b2: float) -> Any:
        return np.sqrt(self.v[i]) * self.wide(1 / math.sqrt(1 - b2**self.t)) + self.wide(self.get(i, "eps"))

    def _lars(self, i: int, g: Any) -> None:
        w, decay = self.w[i], self.get(i, "weight_decay")
        weight_norm, gradient_norm = np.sqrt((w * w).sum()), np.sqrt((g * g).sum())
        ratio = 1.0
        if weight_norm > 0 and gradient_norm > 0 and self.get(i, "adapt"):
            ratio = self.get(i, "trust") * weight_norm / (gradient_norm + decay * weight_norm)
        self.m[i] = self.get(i, "momentum") * self.m[i] + self.get(i, "lr") * ratio * (g + decay * w)
        self.w[i] = w - self.m[i]

    def _lamb(self, i: int, g: Any) -> None:
        b1, b2 = self.get(i, "betas")
        self._move(i, g, b1, 1 - b1, b2, 1 - b2)
        u = (self.m[i] / (1 - b1**self.t)) / self._root(i, b2) + self.get(i, "weight_decay") * self.w[i]
        weight_norm, direction_norm = np.sqrt((self.w[i] ** 2).sum()), np.sqrt((u * u).sum())
        ratio = weight_norm / direction_norm if weight_norm > 0 and direction_norm > 0 and self.get(i, "adapt") else 1.0
        self.w[i] = self.w[i] - self.get(i, "lr") * ratio * u

    def _adafactor(self, i: int, g: Any) -> None:
        w = self.w[i]
        keep = 1 - self.t**-self.rule.decay
        q = g * g + self.rule.eps[0]
        if g.ndim == 2 and g.size:
            self.rows[i] = keep * self.rows.get(i, 0.0) + (1 - keep) * q.mean(axis=1)
            self.columns[i] = keep * self.columns.get(i, 0.0) + (1 - keep) * q.mean(axis=0)
            u = g / np.sqrt(np.outer(self.rows[i], self.columns[i]) / self.rows[i].mean())
        else:
            self.v[i] = keep * self.v[i] + (1 - keep) * q
            u = g / np.sqrt(self.v[i])
        if not g.size:
            return
        u = u / max(1.0, np.sqrt((u * u).mean()) / self.rule.clip)
        lr = self.get(i, "lr")
        rate = max(self.rule.eps[1], np.sqrt((w * w).mean())) * min(1e-2, self.t**-0.5) if lr is None else lr
        self.w[i] = w * (1 - rate * self.get(i, "weight_decay")) - rate * u


def tensors(rng: Any, shapes: list[tuple[int, ...]], scale: float = 1.0) -> Tensors:
    return [np.asarray(rng.standard_normal(s) * scale, np.float32) for s in shapes]


def whole_numbers(rng: Any, shapes: list[tuple[int, ...]], low: int = -8, high: int = 8) -> Tensors:
    """Return small whole numbers: any sum of a few is exact in every wire type."""
    return [np.asarray(rng.integers(low, high + 1, s), np.float32) for s in shapes]
