"""Where calls meet: one at a time, in order, whether they are synchronous, queued or grouped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from multiring.collectives.communicator.action import Action, FunctionAction
from multiring.collectives.communicator.contract import Executor
from multiring.collectives.communicator.gate import Gate
from multiring.collectives.communicator.work import Queue
from multiring.errors import CommunicatorClosed, MultiringError

__all__ = ["Engine", "OpenGroup"]


class OpenGroup(Protocol):
    """What a group is to the engine.

    Attributes
    ----------
    thread : int
        The thread whose calls it collects.
    """

    thread: int

    def add(self, action: Action, async_op: bool) -> Any:
        """Collect one call."""


class Engine:
    """The executor of a communicator, and the order of the calls to it.

    Attributes
    ----------
    executor : Executor
    gate : Gate
        Owned by whoever may call the executor.
    queue : Queue
        Of asynchronous calls.
    group : OpenGroup or None
        The open group, and its thread.
    closed : bool
        Whether :meth:`close` was called.
    """

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.gate = Gate()
        self.queue = Queue(self.gate)
        self.group: OpenGroup | None = None
        self.closed = False

    def own_group(self) -> OpenGroup | None:
        """Return the group that this thread has open."""
        group = self.group
        return group if group is not None and group.thread == threading.get_ident() else None

    def launch(self, action: Action, async_op: bool = False) -> Any:
        """Run an action when its turn comes.

        Returns
        -------
        object
            ``action.result``; with ``async_op`` a :class:`~multiring.collectives.communicator.work.Work`.
        """
        gate = self.gate
        if not async_op:
            taken, gate.idle = gate.idle, False
            if taken:
                try:
                    action.run()
                finally:
                    gate.idle = True
                    if gate.waiting:
                        gate.wake()
                return action.result
        self.require_open()
        group = self.own_group()
        if group is not None:
            return group.add(action, async_op)
        if async_op:
            return self.queue.submit(action)
        if self.queue.pending:
            return self.queue.submit(action, now=True).wait()
        gate.acquire()
        try:
            self.require_open()
            action.run()
        finally:
            gate.release()
        return action.result

    def require_open(self) -> None:
        """Raise if the communicator was closed here."""
        if self.closed:
            rank, size = self.executor.rank, self.executor.size
            raise CommunicatorClosed(f"rank {rank} of {size}: this communicator was closed here; make a new one")

    def refuse(self) -> None:
        """Publish a call as refused, in its place among the calls: the caller then raises its own error."""
        if self.closed or self.executor.closed:
            return
        with suppress(MultiringError):  # the bad argument is what the user must hear of
            self.launch(FunctionAction("refuse", self.executor.refuse))  # in a group: at its end, in its place

    def enter(self) -> None:
        """Take the gate for a longer time, behind what is queued."""
        self.queue.start()
        self.gate.acquire()
        if self.closed:
            self.gate.release()
            self.require_open()

    def close(self, finish: Callable[[], None]) -> None:
        """Let queued calls end, then close for good; a second time does nothing."""
        if self.closed:
            return
        if self.own_group() is None:
            self.queue.start()
            self.gate.acquire()
        if self.closed:
            self.gate.release()
            return
        self.closed = True
        self.queue.stop()
        try:
            finish()
        finally:
            # The gate stays shut, so that every call takes the long way; those who already wait at it must see why.
            self.gate.shut()
