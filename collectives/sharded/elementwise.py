"""A user's own update rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from multiring.collectives.sharded.rule import Rate, UpdateRule, rate_at
from multiring.errors import ArgumentError, ArgumentTypeError

__all__ = ["Elementwise"]


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
        """Refuse values that no step can use."""
        if not callable(self.function):
            raise ArgumentTypeError(f"Elementwise: function: got {self.function!r}, wanted a function of scalars")
        object.__setattr__(self, "moments", tuple(self.moments))
        object.__setattr__(self, "parameters", dict(self.parameters))
        for name in ("scale", "master"):
            if name in self.parameters or name in self.moments:
                raise ArgumentError(f"Elementwise: got the name {name!r}, wanted another: it is taken")

    @property
    def name(self) -> str:
        """What checkpoints and errors call it."""
        return f"Elementwise:{getattr(self.function, '__name__', 'function')}"

    @property
    def kernel(self) -> Any:
        """The arithmetic."""
        return _elementwise(self.function, self.name, self.moments, tuple(self.parameters))

    def state_names(self) -> tuple[str, ...]:
        """Return the names of the moments."""
        return self.moments

    def constants(self, done: int) -> dict[str, float]:
        """Return the parameters of a step that are the same for all tensors."""
        return {name: rate_at(value, done) for name, value in self.parameters.items()}


_made: dict[Any, Any] = {}


def _elementwise(function: Any, name: str, moments: tuple[str, ...], parameters: tuple[str, ...]) -> Any:
    key = (function, name, moments, parameters)
    if key not in _made:
        from multiring.kernels.rules import elementwise

        _made[key] = elementwise(function, name, moments, parameters)
    return _made[key]
