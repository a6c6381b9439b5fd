"""What all update rules share.

A rule is data. Its arithmetic is a scalar function of :mod:`multiring.kernels.rules`; what is the same for all elements
of a step, bias corrections and the like, is computed here in float64.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from multiring.errors import ArgumentError, ArgumentTypeError

__all__ = ["Rate", "UpdateRule", "kernel_of", "rate_at", "replaced"]

Rate = float | Callable[[int], float]
"""A learning rate, or a function from the number of updates done so far (0 for the first) to it."""


def rate_at(rate: Rate, done: int) -> float:
    """Return a rate after so many updates."""
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

    def within(self, name: str, low: float, high: float, *, high_open: bool = False) -> None:
        """Refuse a number outside of a range."""
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


def kernel_of(name: str) -> Any:
    """Return a rule of the kernels by its name."""
    from multiring.kernels.rules import RULES  # loads the compiler

    return RULES[name]


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
