"""Parameter groups: which parameter has which hyper-parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from multiring.collectives.sharded.rule import UpdateRule, replaced
from multiring.errors import ArgumentError, ArgumentTypeError

__all__ = ["Group", "rules_of"]


class Group:
    """Parameters with hyper-parameters of their own.

    Parameters
    ----------
    members : sequence of int or str, or callable
        Places or names; or ``members(name, shape) -> bool``, such as ``lambda name, shape: len(shape) < 2``.
    **hyper_parameters
        In place of the rule's: ``weight_decay=0.0``, ``lr=...``, ``adapt=False``.
    """

    def __init__(self, members: Any, **hyper_parameters: Any) -> None:
        if not callable(members):
            if isinstance(members, str):
                raise ArgumentTypeError(f"Group: members: got {members!r}, wanted a list of names or a function")
            members = list(members)
        self.members: Any = members
        self.hyper_parameters = hyper_parameters

    def places(self, names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> set[int]:
        """Return the places of its parameters.

        Raises
        ------
        ArgumentError
            If one does not exist.
        """
        if callable(self.members):
            return {i for i, (name, shape) in enumerate(zip(names, shapes, strict=True)) if self.members(name, shape)}
        found = set()
        for member in self.members:
            if isinstance(member, str) and member in names:
                found.add(list(names).index(member))
            elif isinstance(member, int) and 0 <= member < len(names):
                found.add(member)
            else:
                raise ArgumentError(
                    f"Group: members: got {member!r}, wanted names of parameters or numbers from 0 to {len(names) - 1}"
                )
        return found


def rules_of(
    rule: UpdateRule, groups: Iterable[Any], names: Sequence[str], shapes: Sequence[tuple[int, ...]]
) -> list[UpdateRule]:
    """Return the rule of every parameter; the first group that has it counts."""
    chosen: list[UpdateRule | None] = [None] * len(names)
    for number, group in enumerate(groups):
        if not isinstance(group, Group):
            raise ArgumentTypeError(f"groups[{number}]: got {type(group).__name__}, wanted multiring.sharded.Group")
        other = replaced(rule, group.hyper_parameters, f"groups[{number}]")
        for place in group.places(names, shapes):
            if chosen[place] is None:
                chosen[place] = other
    return [rule if each is None else each for each in chosen]
