"""Closing a communicator for all its ranks."""

from __future__ import annotations

from numba.extending import register_jitable

from multiring.kernels.primitives import compare_and_swap
from multiring.kernels.records import CONTEXT_CONTROL, CONTROL_ABORT
from multiring.kernels.waiting import get, wake_all

__all__ = ["abort"]


@register_jitable
def abort(context: int, record: int) -> int:
    """Set ABORT, unless somebody already has; return what it held."""
    control = get(context, CONTEXT_CONTROL)
    old = compare_and_swap(control + CONTROL_ABORT, 0, record)
    wake_all(control)
    return old
