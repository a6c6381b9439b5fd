"""The rules of ``multiring.optim``: hyper-parameters, and what a step needs of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from multiring.collectives.sharded.elementwise import Elementwise
from multiring.collectives.sharded.rule import Rate, UpdateRule, kernel_of, rate_at
from multiring.errors import ArgumentError, ArgumentTypeError

__all__ = ["LAMB", "LARS", "SGD", "Adafactor", "Adam", "AdamW", "Elementwise", "UpdateRule"]


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
        """Refuse values that no step can use."""
        self.within("lr", 0, math.inf)
        self.within("momentum", 0, 1, high_open=True)
        self.within("weight_decay", 0, math.inf)
        if self.nesterov and not self.momentum:
            raise ArgumentError("SGD: nesterov: got True with momentum 0, wanted momentum above 0")

    @property
    def kernel(self) -> Any:
        """The arithmetic."""
        return kernel_of("sgd_nesterov" if self.nesterov else "sgd_momentum" if self.momentum else "sgd")

    def state_names(self) -> tuple[str, ...]:
        """Return the names of the moments."""
        return ("velocity",) if self.momentum else ()

    def constants(self, done: int) -> dict[str, float]:
        """Return the parameters of a step that are the same for all tensors."""
        return {"rate": rate_at(self.lr, done), "momentum": self.momentum, "decay": self.weight_decay}


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
        """Refuse values that no step can use."""
        self.within("lr", 0, math.inf)
        self.within("eps", 0, math.inf)
        self.within("weight_decay", 0, math.inf)
        _check_betas(self, self.betas)

    @property
    def kernel(self) -> Any:
        """The arithmetic."""
        return kernel_of("adam")

    def constants(self, done: int) -> dict[str, float]:
        """Return the parameters of a step that are the same for all tensors."""
        t = done + 1
        return _moments(self.betas) | {
            "decay": self.weight_decay,
            "step": rate_at(self.lr, done) / (1 - self.betas[0] ** t),
            "correction": 1 / math.sqrt(1 - self.betas[1] ** t),
            "epsilon": self.eps,
        }


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with weight decay apart from the gradient (Loshchilov and Hutter 2019).

    ``w = (1 - lr weight_decay) w - ...``

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
        """The arithmetic."""
        return kernel_of("adamw")

    def constants(self, done: int) -> dict[str, float]:
        """Return the parameters of a step that are the same for all tensors."""
        return super().constants(done) | {"shrink": 1 - rate_at(self.lr, done) * self.weight_decay}


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
        """Refuse values that no step can use."""
        self.within("lr", 0, math.inf)
        self.within("momentum", 0, 1, high_open=True)
        self.within("weight_decay", 0, math.inf)
        self.within("trust", 0, math.inf)

    @property
    def kernel(self) -> Any:
        """The arithmetic."""
        return kernel_of("lars")

    def constants(self, done: int) -> dict[str, float]:
        """Return the parameters of a step that are the same for all tensors."""
        return {"local_rate": rate_at(self.lr, done), "momentum": self.momentum, "decay": self.weight_decay}

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
        """The arithmetic."""
        return kernel_of("lamb_direction")

    def constants(self, done: int) -> dict[str, float]:
        """Return the parameters of a step that are the same for all tensors."""
        t = done + 1
        return _moments(self.betas) | {
            "decay": self.weight_decay,
            "correction1": 1 / (1 - self.betas[0] ** t),
            "correction2": 1 / math.sqrt(1 - self.betas[1] ** t),
            "epsilon": self.eps,
        }

    def step_size(self, done: int, weight_norm: float, direction_norm: float) -> float:
        """Return the rate times the trust ratio of a tensor."""
        rate = rate_at(self.lr, done)
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
        """Refuse values that no step can use."""
        if self.lr is not None:
            self.within("lr", 0, math.inf)
        self.within("decay", 0, math.inf)
        self.within("weight_decay", 0, math.inf)
        if not self.clip > 0:
            raise ArgumentError(f"Adafactor: clip: got {self.clip!r}, wanted above 0")
        if len(self.eps) != 2 or not self.eps[0] > 0:
            raise ArgumentError(f"Adafactor: eps: got {self.eps!r}, wanted two numbers, the first above 0")

    @property
    def kernel(self) -> Any:
        """The arithmetic."""
        return kernel_of("adafactor_direction")

    def share(self, done: int) -> float:
        """Return what the moments keep of their old value."""
        return float(1 - (done + 1) ** -self.decay)

    def constants(self, done: int) -> dict[str, float]:
        """Return the parameters of a step that are the same for all tensors."""
        share = self.share(done)
        return {"beta2": share, "rest2": 1 - share, "floor": self.eps[0]}

    def rate(self, done: int, weight_rms: float) -> float:
        """Return the step size of a tensor."""
        if self.lr is not None:
            return rate_at(self.lr, done)
        return max(self.eps[1], weight_rms) * min(1e-2, 1 / math.sqrt(done + 1))
