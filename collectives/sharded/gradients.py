"""Gradients as callers give them: checked, in the order of the parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from multiring.collectives.arrays import View, view_of
from multiring.errors import ArgumentError, ArgumentTypeError

__all__ = ["Gradients"]


class Gradients:
    """Checks gradients.

    Parameters
    ----------
    names : sequence of str
        Of the parameters.
    shapes : sequence of shape
    """

    def __init__(self, names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> None:
        self.names, self.shapes = names, shapes

    def tensor(self, i: Any) -> int:
        """Return the place of a parameter given by place or name."""
        if isinstance(i, str) and i in self.names:
            return list(self.names).index(i)
        if isinstance(i, (int, np.integer)) and not isinstance(i, bool) and 0 <= i < len(self.names):
            return int(i)
        raise ArgumentError(
            f"backward_hook: got parameter {i!r}, wanted a number from 0 to {len(self.names) - 1} or one of the names"
        )

    def views(self, grads: Any) -> list[View | None]:
        """Return the views of all gradients; None for a zero gradient."""
        if isinstance(grads, Mapping):
            unknown = [name for name in grads if name not in self.names]
            missing = [name for name in self.names if name not in grads]
            if unknown or missing:
                raise ArgumentError(
                    f"step: grads: got names {unknown} that no parameter has and none for {missing}, wanted the names "
                    "of the parameters (None for a zero gradient)"
                )
            listed: list[Any] = [grads[name] for name in self.names]
        else:
            listed = list(grads)
        if len(listed) != len(self.names):
            raise ArgumentError(
                f"step: grads: got {len(listed)} gradients, wanted {len(self.names)}, one for each parameter"
            )
        return [None if g is None else self.view(t, g) for t, g in enumerate(listed)]

    def view(self, tensor: int, gradient: Any) -> View:
        """Return the view of one parameter's gradient."""
        if type(gradient) is np.ndarray:
            view = view_of(gradient, f"grads[{self.names[tensor]!r}]")
        else:
            view = view_of(gradient, f"step: grads[{self.names[tensor]!r}]")
        if view.dtype.kind != "float":
            raise ArgumentTypeError(
                f"step: grads[{self.names[tensor]!r}]: got {view.dtype.name}, wanted a floating-point type"
            )
        if view.shape != self.shapes[tensor]:
            raise ArgumentError(
                f"step: grads[{self.names[tensor]!r}]: got shape {view.shape}, wanted {self.shapes[tensor]}, the "
                "parameter's"
            )
        return view
