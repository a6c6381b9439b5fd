"""The communicators of this process, for its end and for its forked children."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

__all__ = ["Living", "living", "remember"]


class Living(Protocol):
    """What a communicator lets happen to itself."""

    closed: bool

    @property
    def failed(self) -> bool:
        """Whether an error closed it."""
        ...

    def close(self) -> None:
        """Leave it."""

    def disown(self) -> None:
        """Give it up in a forked child."""


_executors: weakref.WeakSet[Living] = weakref.WeakSet()


def remember(executor: Living) -> None:
    """Note a communicator, for as long as it lives."""
    _executors.add(executor)


def living() -> list[Living]:
    """Return the communicators that are not yet closed, or that an error closed; those of splits too."""
    return [e for e in list(_executors) if not e.closed or e.failed]


def _disown_all() -> None:
    for executor in list(_executors):
        executor.disown()


os.register_at_fork(after_in_child=_disown_all)
