"""Closing a communicator for all ranks of its node."""

from __future__ import annotations

from numba.extending import register_jitable

from multiring.kernels.primitives import compare_and_swap
from multiring.kernels.records import CALL_CONTEXT, CALL_PEER, CONTEXT_CONTROL, CONTROL_ABORT, CONTROL_TEXT_OWNER
from multiring.kernels.waiting import begin_waiting, get, look_around, raise_abort, wake_all

__all__ = ["abort", "claim_text", "give_up", "glance"]


@register_jitable
def abort(context: int, record: int) -> int:
    """Set ABORT, unless somebody already has; return what it held."""
    control = get(context, CONTEXT_CONTROL)
    old = compare_and_swap(control + CONTROL_ABORT, 0, record)
    wake_all(control)
    return old


@register_jitable
def claim_text(context: int, owner: int) -> int:
    """Return 0 if this rank may write the text that goes with ABORT, else who may."""
    return compare_and_swap(get(context, CONTEXT_CONTROL) + CONTROL_TEXT_OWNER, 0, owner)


@register_jitable
def glance(call: int) -> int:
    """Return why a call's wait is hopeless, as an ABORT reason with the culprit in CALL_PEER, or 0."""
    now = begin_waiting(call)
    return look_around(get(call, CALL_CONTEXT), call, get(call, CALL_PEER), now)


@register_jitable
def give_up(call: int, reason: int, culprit: int) -> int:
    """Close the communicator because of what a call has met; return ABORTED."""
    return raise_abort(get(call, CALL_CONTEXT), call, reason, culprit)
