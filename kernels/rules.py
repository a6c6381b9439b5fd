"""The elementwise parts of weight-update rules, one element at a time.

Plain Python functions on float32 scalars, each the single meaning for plain Python, ``numba.njit`` and CUDA. What is
the same for all elements (``1 - beta1 ** t`` and so on) is computed once, by whoever calls, and handed in as a
parameter, so that no function holds a constant. Nothing is contracted to a fused multiply-add.

Sources: SGD as in Goyal et al. 2017 and PyTorch (``v = mu v + g; w = w - rate v``), Adam of Kingma and Ba 2015, AdamW
of Loshchilov and Hutter 2019, LARS of You et al. 2017, LAMB of You et al. 2020, Adafactor of Shazeer and Stern 2018.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import register_jitable

from multiring.kernels.primitives import primitive
from multiring.kernels.scalars import scalar

__all__ = ["RULES", "Rule", "elementwise", "square_root"]


def _lower_square_root(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return builder.call(builder.module.declare_intrinsic("llvm.sqrt", [ir.FloatType()]), arguments)


@primitive(types.float32(types.float32), _lower_square_root)
def square_root(value: Any) -> Any:
    """Return the square root of a float32, rounded to nearest."""
    return np.float32(math.sqrt(value)) if value >= 0 else np.float32(value if value == 0 else np.nan)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule as the update kernels see it.

    ``function(gradient, *read, *parameters)`` returns a tuple with the new elements of the written arrays. Arrays are
    float32, and ordered: those that are only read, those that are read and written, those that are only written.

    Attributes
    ----------
    name : str
    function : scalar function
    arrays : tuple of str
        Names.
    n_read : int
        How many are read: the first ones.
    first_written : int
        The first that is written; all after it are.
    parameters : tuple of str
        Names; float32.
    weight : int or None
        Which result is the weight, that is also stored in the wire type.
    """

    name: str
    function: Callable[..., tuple[Any, ...]]
    arrays: tuple[str, ...]
    n_read: int
    first_written: int
    parameters: tuple[str, ...]
    weight: int | None

    @property
    def custom(self) -> bool:
        """Whether it is not one of :data:`RULES`: a user's."""
        return RULES.get(self.name) is not self


RULES: dict[str, Rule] = {}
"""By name."""


def _rule(
    arrays: tuple[str, ...],
    parameters: tuple[str, ...],
    *,
    n_read: int | None = None,
    first_written: int = 0,
    weight: int | None = 0,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        reads = len(arrays) if n_read is None else n_read
        RULES[function.__name__] = Rule(
            function.__name__, scalar(function), arrays, reads, first_written, parameters, weight
        )
        return function

    return register


@_rule(("master",), ("scale", "rate", "decay"))
def sgd(gradient: Any, master: Any, scale: Any, rate: Any, decay: Any) -> Any:
    """``w - rate (scale g + decay w)``."""
    return (master - rate * (scale * gradient + decay * master),)


@_rule(("master", "velocity"), ("scale", "rate", "momentum", "decay"))
def sgd_momentum(gradient: Any, master: Any, velocity: Any, scale: Any, rate: Any, momentum: Any, decay: Any) -> Any:
    """``v = momentum v + (scale g + decay w); w - rate v``."""
    moved = momentum * velocity + (scale * gradient + decay * master)
    return master - rate * moved, moved


@_rule(("master", "velocity"), ("scale", "rate", "momentum", "decay"))
def sgd_nesterov(gradient: Any, master: Any, velocity: Any, scale: Any, rate: Any, momentum: Any, decay: Any) -> Any:
    """As :func:`sgd_momentum`, looking one step ahead: ``w - rate (g + momentum v)``."""
    slope = scale * gradient + decay * master
    moved = momentum * velocity + slope
    return master - rate * (slope + momentum * moved), moved


_MOMENTS = ("beta1", "rest1", "beta2", "rest2")


@_rule(("master", "first", "second"), ("scale", "decay", *_MOMENTS, "step", "correction", "epsilon"))
def adam(
    gradient: Any,
    master: Any,
    first: Any,
    second: Any,
    scale: Any,
    decay: Any,
    beta1: Any,
    rest1: Any,
    beta2: Any,
    rest2: Any,
    step: Any,
    correction: Any,
    epsilon: Any,
) -> Any:
    """Adam; ``decay w`` is added to the gradient.

    ``rest1 = 1 - beta1``, ``rest2 = 1 - beta2``, ``step = rate / (1 - beta1 ** t)``,
    ``correction = 1 / sqrt(1 - beta2 ** t)``.
    """
    slope = scale * gradient + decay * master
    mean = beta1 * first + rest1 * slope
    square = beta2 * second + rest2 * (slope * slope)
    size = square_root(square) * correction + epsilon
    return master - step * (mean / size), mean, square


@_rule(("master", "first", "second"), ("scale", "shrink", *_MOMENTS, "step", "correction", "epsilon"))
def adamw(
    gradient: Any,
    master: Any,
    first: Any,
    second: Any,
    scale: Any,
    shrink: Any,
    beta1: Any,
    rest1: Any,
    beta2: Any,
    rest2: Any,
    step: Any,
    correction: Any,
    epsilon: Any,
) -> Any:
    """AdamW: the weight is multiplied by ``shrink = 1 - rate decay``; otherwise as :func:`adam`."""
    slope = scale * gradient
    mean = beta1 * first + rest1 * slope
    square = beta2 * second + rest2 * (slope * slope)
    size = square_root(square) * correction + epsilon
    return master * shrink - step * (mean / size), mean, square


@_rule(("master", "velocity"), ("scale", "local_rate", "momentum", "decay"))
def lars(gradient: Any, master: Any, velocity: Any, scale: Any, local_rate: Any, momentum: Any, decay: Any) -> Any:
    """``v = momentum v + local_rate (scale g + decay w); w - v``; the local rate is the tensor's, from its norms."""
    moved = momentum * velocity + local_rate * (scale * gradient + decay * master)
    return master - moved, moved


@_rule(
    ("master", "first", "second", "direction"),
    ("scale", "decay", *_MOMENTS, "correction1", "correction2", "epsilon"),
    n_read=3,
    first_written=1,
    weight=None,
)
def lamb_direction(
    gradient: Any,
    master: Any,
    first: Any,
    second: Any,
    scale: Any,
    decay: Any,
    beta1: Any,
    rest1: Any,
    beta2: Any,
    rest2: Any,
    correction1: Any,
    correction2: Any,
    epsilon: Any,
) -> Any:
    """Adam's moments, and LAMB's direction, whose norm over the tensor scales the step of :func:`follow`.

    ``correction1 = 1 / (1 - beta1 ** t)``, ``correction2 = 1 / sqrt(1 - beta2 ** t)``.
    """
    slope = scale * gradient
    mean = beta1 * first + rest1 * slope
    square = beta2 * second + rest2 * (slope * slope)
    size = square_root(square) * correction2 + epsilon
    return mean, square, (mean * correction1) / size + decay * master


@_rule(("second", "direction"), ("scale", "beta2", "rest2", "floor"), n_read=1, first_written=0, weight=None)
def adafactor_direction(gradient: Any, second: Any, scale: Any, beta2: Any, rest2: Any, floor: Any) -> Any:
    """Adafactor for what is not a matrix: ``v = beta2 v + rest2 (g g + floor); g / sqrt(v)``."""
    slope = scale * gradient
    square = beta2 * second + rest2 * (slope * slope + floor)
    return square, slope / square_root(square)


@_rule(("column", "direction"), ("scale", "row"), n_read=1, first_written=1, weight=None)
def adafactor_matrix_direction(gradient: Any, column: Any, scale: Any, row: Any) -> Any:
    """Adafactor for a row of a matrix: ``g / sqrt(r c)``, from the reciprocal roots of the two moments.

    The product of two small moments is 0 in float32 where no gradient has come through a row and a column: this has no
    such product.
    """
    return (scale * gradient * row * column,)


@_rule(("master",), ("step", "shrink"))
def follow(direction: Any, master: Any, step: Any, shrink: Any) -> Any:
    """``shrink w - step direction``: the second pass of LAMB and Adafactor, whose steps hold norms of the first."""
    return (shrink * master - step * direction,)


def elementwise(function: Callable[..., Any], name: str, moments: tuple[str, ...], parameters: tuple[str, ...]) -> Rule:
    """Return the rule of a user's function ``(gradient, weight, *moments, *parameters) -> (weight, *moments)``.

    It is given the scaled gradient.
    """
    from numba import njit

    inner = function if hasattr(function, "py_func") else njit(function, error_model="numpy")
    arrays = [f"a{k}" for k in range(1 + len(moments))]
    values = [f"p{k}" for k in range(len(parameters))]
    # Numba cannot take star arguments apart, so the function is written out for its number of arguments.
    takes = ", ".join(["gradient", *arrays, "scale", *values])
    gives = ", ".join(["scale * gradient", *arrays, *values])
    scaled = eval(f"lambda {takes}: inner({gives})", {"inner": inner})
    whole = register_jitable(error_model="numpy")(scaled)
    return Rule(name, whole, ("master", *moments), len(arrays), 0, ("scale", *parameters), 0)
