"""Several calls launched as one."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

from multiring.collectives.communicator.action import Action, TransferAction
from multiring.collectives.communicator.engine import Engine, OpenGroup
from multiring.collectives.communicator.work import Task
from multiring.errors import ArgumentError, MultiringError

__all__ = ["Group"]


class Group:
    """Collects the calls of one thread between ``with comm.group():`` and the end of the block, and launches them
    there.

    All sends and receives of the group progress together, first; then the collectives run in their order. So the calls
    of one group must not depend on each other's results. Arrays are returned at once and hold their results after the
    block. If the block raises, nothing is launched.

    Groups may be nested: the inner one's calls are launched with the outer one.
    """

    def __init__(self, engine: Engine) -> None:
        self.thread = 0
        self._engine = engine
        self._actions: list[tuple[Action, Task | None]] = []
        self._outer: OpenGroup | None = None

    def __enter__(self) -> Group:
        if self.thread:
            raise ArgumentError("group: this group is or was open already; make another with comm.group()")
        self._outer = self._engine.own_group()
        self.thread = threading.get_ident()
        if self._outer is None:
            self._engine.require_open()
            self._engine.enter()
            self._engine.group = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._outer is not None:
            return
        engine = self._engine
        engine.group = None
        try:
            if kind is None:
                self._run()
            elif self._collective() and not engine.executor.closed and not engine.closed:
                engine.executor.refuse()
        except MultiringError:
            if kind is None:  # else the block's own error is what the user must hear of
                raise
        finally:
            actions, self._actions = self._actions, []
            engine.gate.release()
            for _, work in actions:
                if work is not None and not work.finished:
                    work.finish(error or ArgumentError("group: the group was not launched"))

    def add(self, action: Action, async_op: bool) -> Any:
        """Collect one call."""
        work = Task(action, self._not_yet) if async_op else None
        self._actions.append((action, work))
        return work if work is not None else action.result

    def _not_yet(self) -> None:
        raise ArgumentError(
            "work: waited for inside its group, wanted after it; the group's calls are launched at its end"
        )

    def _collective(self) -> bool:
        return any(not isinstance(action, TransferAction) for action, _ in self._actions)

    def _run(self) -> None:
        """Launch: the group owns the gate."""
        transfers = [(a, w) for a, w in self._actions if isinstance(a, TransferAction)]
        others = [(a, w) for a, w in self._actions if not isinstance(a, TransferAction)]
        failure: BaseException | None = None
        try:
            if transfers:
                TransferAction.joined([a for a, _ in transfers]).run()
            for _, work in transfers:
                if work is not None:
                    work.finish()
            for action, work in others:
                action.run()
                if work is not None:
                    work.finish()
        except BaseException as error:
            failure = error
            raise
        finally:
            if failure is not None:
                for _, work in self._actions:
                    if work is not None and not work.finished:
                        work.finish(failure)
