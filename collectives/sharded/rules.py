"""The rules of ``multiring.optim``: hyper-parameters, and what a step needs of them.

A rule is data. Its arithmetic is a scalar function of :mod:`multiring.kernels.rules`; what is the same for all elements
of a step, bias corrections and the like, is computed here in float64.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np

from multiring.errors import ArgumentError, ArgumentTypeError

__all__ = ["LAMB", "LARS", "SGD", "Adafactor", "Adam", "AdamW", "Elementwise", "Rate", "UpdateRule"]

Rate = float | Callable[[int], float]
"""A learning rate, or a function from the number of updates done so far (0 for the first) to it."""


def _rate_at(rate: Rate, done: int) -> float:
    return float(rate(done)) if callable(rate) else float(rate)


@dataclass(frozen=True)
class UpdateRule:
    """What all rules share.

    Attributes
    ----------
    kernel : str
        Name of the scalar function.
    state : tuple of str
        Moments, one float32 for each element.
    norms : tuple of str
        Whole-tensor quantities that the update needs, of ``"gradient"``, ``"weight"``, ``"direction"``, ``"factors"``.
    """

    state: ClassVar[tuple[str, ...]] = ()
    norms: ClassVar[tuple[str, ...]] = ()

    @property
    def name(self) -> str:
        """What checkpoints and errors call it."""
        return type(self).__name__

    @property
    def kernel(self) -> Any:
        """The arithmetic: a :class:`multiring.kernels.rules.Rule`."""
        raise NotImplementedError

    def state_names(self) -> tuple[str, ...]:
        """Return the names of the moments."""
        return self.state

    def constants(self, done: int) -> dict[str, float]:
        """Return the parameters of a step that are the same for all tensors, by name, without ``scale``.

        Parameters
        ----------
        done : int
            Updates before this one.
        """
        raise NotImplementedError

    def check(self) -> None:
        """Refuse values that no step can use."""

    def _within(self, name: str, low: float, high: float, *, high_open: bool = False) -> None:
        value = getattr(self, name)
        if callable(value):
            return
        if not isinstance(value, (int, float, np.floating, np.integer)) or isinstance(value, bool):
            raise ArgumentTypeError(f"{self.name}: {name}: got {value!r}, wanted a number")
        if not low <= value <= high or math.isnan(value) or (high_open and value == high):
            wanted = f"{low:g} or more" if high == math.inf else f"{low:g} to {'below ' if high_open else ''}{high:g}"
            raise ArgumentError(f"{self.name}: {name}: got {value!r}, wanted {wanted}")

    def __post_init__(self) -> None:
        self.check()


def _kernel(name: str) -> Any:
    from multiring.kernels.rules import RULES  # loads the compiler

    return RULES[name]


def _check_betas(rule: UpdateRule, betas: Any) -> None:
    try:
        first, second = (float(b) for b in betas)
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"{rule.name}: betas: got {betas!r}, wanted two numbers") from None
    if not (0 <= first < 1 and 0 <= second < 1):
        raise ArgumentError(f"{rule.name}: betas: got {betas!r}, wanted two numbers from 0 to below 1")


def _moments(betas: tuple[float, float]) -> dict[str, float]:
    return {"beta1": betas[0], "rest1": 1 - betas[0], "beta2": betas[1], "rest2": 1 - betas[1]}


@dataclass(frozen=True)
class SGD(UpdateRule):
    """Stochastic gradient descent: ``v = momentum v + (g + weight_decay w); w = w - lr v``.

    Parameters
    ----------
    lr : float or callable
    momentum : float
    nesterov : bool
    weight_decay : float

    Notes
    -----
    The convention of PyTorch: the rate is outside the velocity, so that a change of it acts at once (Goyal et al. 2017,
    section 3).
    """

    lr: Rate = 0.01
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def check(self) -> None:
        self._within("lr", 0, math.inf)
        self._within("momentum", 0, 1, high_open=True)
        self._within("weight_decay", 0, math.inf)
        if self.nesterov and not self.momentum:
            raise ArgumentError("SGD: nesterov: got True with momentum 0, wanted momentum above 0")

    @property
    def kernel(self) -> Any:
        return _kernel("sgd_nesterov" if self.nesterov else "sgd_momentum" if self.momentum else "sgd")

    def state_names(self) -> tuple[str, ...]:
        return ("velocity",) if self.momentum else ()

    def constants(self, done: int) -> dict[str, float]:
        return {"rate": _rate_at(self.lr, done), "momentum": self.momentum, "decay": self.weight_decay}


@dataclass(frozen=True)
class Adam(UpdateRule):
    """Adam (Kingma and Ba 2015); ``weight_decay`` is added to the gradient.

    Parameters
    ----------
    lr : float or callable
    betas : (float, float)
    eps : float
        Added to the root of the corrected second moment.
    weight_decay : float
    """

    lr: Rate = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    state: ClassVar[tuple[str, ...]] = ("first", "second")

    def check(self) -> None:
        self._within("lr", 0, math.inf)
        self._within("eps", 0, math.inf)
        self._within("weight_decay", 0, math.inf)
        _check_betas(self, self.betas)

    @property
    def kernel(self) -> Any:
        return _kernel("adam")

    def constants(self, done: int) -> dict[str, float]:
        t = done + 1
        return _moments(self.betas) | {
            "decay": self.weight_decay,
            "step": _rate_at(self.lr, done) / (1 - self.betas[0] ** t),
            "correction": 1 / math.sqrt(1 - self.betas[1] ** t),
            "epsilon": self.eps,
        }


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with weight decay apart from the gradient (Loshchilov and Hutter 2019): ``w = (1 - lr weight_decay) w - ...``.

    Parameters
    ----------
    lr : float or callable
    betas : (float, float)
    eps : float
    weight_decay : float
    """

    weight_decay: float = 0.01

    @property
    def kernel(self) -> Any:
        return _kernel("adamw")

    def constants(self, done: int) -> dict[str, float]:
        return super().constants(done) | {"shrink": 1 - _rate_at(self.lr, done) * self.weight_decay}


@dataclass(frozen=True)
class LARS(UpdateRule):
    """Layer-wise adaptive rates (You et al. 2017, algorithm 1).

    ``v = momentum v + lr ratio (g + weight_decay w); w = w - v`` with
    ``ratio = trust |w| / (|g| + weight_decay |w|)``, norms of the whole tensor; 1 where either norm is 0.

    Parameters
    ----------
    lr : float or callable
    momentum : float
    weight_decay : float
    trust : float
    adapt : bool
        False, for groups such as biases: the ratio is 1.
    """

    lr: Rate = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    trust: float = 1e-3
    adapt: bool = True
    state: ClassVar[tuple[str, ...]] = ("velocity",)
    norms: ClassVar[tuple[str, ...]] = ("gradient", "weight")

    def check(self) -> None:
        self._within("lr", 0, math.inf)
        self._within("momentum", 0, 1, high_open=True)
        self._within("weight_decay", 0, math.inf)
        self._within("trust", 0, math.inf)

    @property
    def kernel(self) -> Any:
        return _kernel("lars")

    def constants(self, done: int) -> dict[str, float]:
        return {"local_rate": _rate_at(self.lr, done), "momentum": self.momentum, "decay": self.weight_decay}

    def ratio(self, weight_norm: float, gradient_norm: float) -> float:
        """Return the trust ratio of a tensor."""
        if not self.adapt or weight_norm == 0 or gradient_norm == 0:
            return 1.0
        return self.trust * weight_norm / (gradient_norm + self.weight_decay * weight_norm)


@dataclass(frozen=True)
class LAMB(Adam):
    """LAMB (You et al. 2020): Adam's direction, plus ``weight_decay w``, scaled to the weight's norm.

    ``w = w - lr ratio u`` with ``ratio = |w| / |u|``, norms of the whole tensor; 1 where either is 0.

    Parameters
    ----------
    lr : float or callable
    betas : (float, float)
    eps : float
    weight_decay : float
    adapt : bool
        False, for groups such as biases: the ratio is 1.
    """

    eps: float = 1e-6
    weight_decay: float = 0.01
    adapt: bool = True
    norms: ClassVar[tuple[str, ...]] = ("weight", "direction")

    @property
    def kernel(self) -> Any:
        return _kernel("lamb_direction")

    def constants(self, done: int) -> dict[str, float]:
        t = done + 1
        return _moments(self.betas) | {
            "decay": self.weight_decay,
            "correction1": 1 / (1 - self.betas[0] ** t),
            "correction2": 1 / math.sqrt(1 - self.betas[1] ** t),
            "epsilon": self.eps,
        }

    def step_size(self, done: int, weight_norm: float, direction_norm: float) -> float:
        """Return the rate times the trust ratio of a tensor."""
        rate = _rate_at(self.lr, done)
        return rate * (weight_norm / direction_norm) if self.adapt and weight_norm and direction_norm else rate


@dataclass(frozen=True)
class Adafactor(UpdateRule):
    """Adafactor (Shazeer and Stern 2018) without momentum; second moments of matrices are kept as row and column means.

    Parameters
    ----------
    lr : float, callable or None
        None: ``max(eps[1], rms(w)) min(1e-2, 1 / sqrt(t))``. A number: that times nothing.
    decay : float
        The moments' share at step t is ``1 - t ** -decay``.
    clip : float
        The root mean square that an update may have.
    eps : (float, float)
        Added to squares of gradients; the least scale of a tensor.
    weight_decay : float
        ``w`` is multiplied by ``1 - rate weight_decay`` as in :class:`AdamW`.

    Notes
    -----
    Tensors of two dimensions are factored; others have a moment for each element. Row and column means are the same on
    every rank (R + C numbers for a matrix); all else is sharded.
    """

    lr: Rate | None = None
    decay: float = 0.8
    clip: float = 1.0
    eps: tuple[float, float] = (1e-30, 1e-3)
    weight_decay: float = 0.0
    state: ClassVar[tuple[str, ...]] = ("second",)
    norms: ClassVar[tuple[str, ...]] = ("weight", "factors", "direction")

    def check(self) -> None:
        if self.lr is not None:
            self._within("lr", 0, math.inf)
        self._within("decay", 0, math.inf)
        self._within("weight_decay", 0, math.inf)
        if not self.clip > 0:
            raise ArgumentError(f"Adafactor: clip: got {self.clip!r}, wanted above 0")
        if len(self.eps) != 2 or not self.eps[0] > 0:
            raise ArgumentError(f"Adafactor: eps: got {self.eps!r}, wanted two numbers, the first above 0")

    @property
    def kernel(self) -> Any:
        return _kernel("adafactor_direction")

    def share(self, done: int) -> float:
        """Return what the moments keep of their old value."""
        return float(1 - (done + 1) ** -self.decay)

    def constants(self, done: int) -> dict[str, float]:
        share = self.share(done)
        return {"beta2": share, "rest2": 1 - share, "floor": self.eps[0]}

    def rate(self, done: int, weight_rms: float) -> float:
        """Return the step size of a tensor."""
        if self.lr is not None:
            return _rate_at(self.lr, done)
        return max(self.eps[1], weight_rms) * min(1e-2, 1 / math.sqrt(done + 1))


@dataclass(frozen=True)
class Elementwise(UpdateRule):
    """A rule of your own, element by element.

    Parameters
    ----------
    function : callable
        ``function(gradient, weight, *moments, *parameters) -> (weight, *moments)``: scalars that Numba can compile,
        float32 each. The gradient is averaged and clipped already.
    moments : tuple of str
        Names of the state; it starts as zeros.
    parameters : mapping of str to float or callable
        In the order of the function's arguments; a callable gets the number of updates done so far.
    """

    function: Callable[..., Any]
    moments: tuple[str, ...] = ()
    parameters: Mapping[str, Rate] = field(default_factory=lambda: cast("dict[str, Rate]", {}))

    def check(self) -> None:
        if not callable(self.function):
            raise ArgumentTypeError(f"Elementwise: function: got {self.function!r}, wanted a function of scalars")
        object.__setattr__(self, "moments", tuple(self.moments))
        object.__setattr__(self, "parameters", dict(self.parameters))
        for name in ("scale", "master"):
            if name in self.parameters or name in self.moments:
                raise ArgumentError(f"Elementwise: got the name {name!r}, wanted another: it is taken")

    @property
    def name(self) -> str:
        return f"Elementwise:{getattr(self.function, '__name__', 'function')}"

    @property
    def kernel(self) -> Any:
        return _elementwise(self.function, self.name, self.moments, tuple(self.parameters))

    def state_names(self) -> tuple[str, ...]:
        return self.moments

    def constants(self, done: int) -> dict[str, float]:
        return {name: _rate_at(value, done) for name, value in self.parameters.items()}


_made: dict[Any, Any] = {}


def _elementwise(function: Any, name: str, moments: tuple[str, ...], parameters: tuple[str, ...]) -> Any:
    key = (function, name, moments, parameters)
    if key not in _made:
        from multiring.kernels.rules import elementwise

        _made[key] = elementwise(function, name, moments, parameters)
    return _made[key]


def replaced(rule: UpdateRule, overrides: Mapping[str, Any], where: str) -> UpdateRule:
    """Return a rule with other hyper-parameters, for a group.

    Raises
    ------
    ArgumentError
        If it has no such hyper-parameter, or would need other state.
    """
    known = [f.name for f in dataclasses.fields(rule)]
    for name in overrides:
        if name not in known:
            raise ArgumentError(f"{where}: got {name!r}, wanted hyper-parameters of {rule.name}: {', '.join(known)}")
    other = dataclasses.replace(rule, **overrides)
    if other.state_names() != rule.state_names():
        raise ArgumentError(
            f"{where}: got hyper-parameters whose state is {other.state_names()}, wanted {rule.state_names()}, that of "
            f"the other groups; give {rule.name} a momentum above 0 in both, or use two optimizers"
        )
    return other
