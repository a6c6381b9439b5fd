"""Persistent calls: checked and bound once, called often."""

from __future__ import annotations

from typing import Any, Protocol, cast

from multiring.collectives.communicator.action import Action, CollectiveAction
from multiring.collectives.communicator.engine import Engine

__all__ = ["PreparedCall", "prepared"]


class PreparedCall(Protocol):
    """A call bound to its arrays, which it keeps alive.

    Attributes
    ----------
    name : str
    action : Action
        The checked call.
    result : object
        What calling it returns: the output array.
    """

    name: str
    action: Action
    result: Any

    def __call__(self) -> Any:
        """Do it: as the method that it was made from, with the arrays' present contents."""


def prepared(engine: Engine, action: Action) -> PreparedCall:
    """Return the quickest callable for an action.

    Notes
    -----
    A closure is called in 55 ns, an object with ``__call__`` in 85.
    """

    def launch() -> Any:
        return engine.launch(action)

    quick = isinstance(action, CollectiveAction) and not (action.before or action.after)
    call = cast(PreparedCall, _quick(engine, cast(CollectiveAction, action)) if quick else launch)
    call.name, call.action, call.result = action.name, action, action.result
    return call


def _quick(engine: Engine, action: CollectiveAction) -> Any:
    gate, launch = engine.gate, engine.launch
    run, x_address, out_address, timeout_s, result = (
        action.call,
        action.x_address,
        action.out_address,
        action.timeout_s,
        action.result,
    )

    def call() -> Any:
        taken, gate.idle = gate.idle, False
        if taken:
            try:
                run(x_address, out_address)
            finally:
                gate.idle = True
                if gate.waiting:
                    gate.wake()
            return result
        return launch(action)

    def call_with_limit() -> Any:
        taken, gate.idle = gate.idle, False
        if taken:
            try:
                run(x_address, out_address, timeout_s)
            finally:
                gate.idle = True
                if gate.waiting:
                    gate.wake()
            return result
        return launch(action)

    return call if timeout_s is None else call_with_limit
