"""Asynchronous calls: a handle for each, and the queue that one thread works through."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from multiring.collectives.communicator.action import Action, TransferAction
from multiring.collectives.communicator.gate import Gate
from multiring.collectives.time_limit import seconds_of
from multiring.errors import CollectiveTimeout

__all__ = ["Queue", "Task", "Work"]


class Work:
    """Handle of a call that may still be running.

    It keeps the call's arrays alive until the call is done.
    """

    __slots__ = ("__weakref__", "_action", "_done", "_error", "_finished", "_name", "_result", "_start")

    def __init__(self, action: Action, start: Callable[[], None] | None = None) -> None:
        self._action: Action | None = action
        self._name = action.name
        self._result: Any = None
        self._error: BaseException | None = None
        self._finished = False
        self._start = start
        self._done = threading.Lock()  # held until the call is done: 20 times cheaper to make than an Event
        self._done.acquire()

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until the call is done.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait, from 0 (only ask) to 1e9; None: as long as the call takes, which has a limit of its own.

        Returns
        -------
        array
            What the call would have returned.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            If the timeout is not such a number, also when the call is done.
        MultiringError
            What the call raised; the same on every ``wait``.
        CollectiveTimeout
            If it is not done in time. The call goes on, and so may the waiting.
        """
        limit_s = -1.0 if timeout is None else seconds_of("wait: timeout", timeout, zero=True, or_none=True)
        if not self._finished:
            if self._start is not None:
                self._start()
            if not self._done.acquire(timeout=limit_s):
                raise CollectiveTimeout(
                    f"{self._name}: not done after waiting {timeout} s, and still running; "
                    f"wait again, or abort the communicator"
                )
            self._done.release()
        if self._error is not None:
            raise self._error
        return self._result

    def is_completed(self) -> bool:
        """Return whether the call is done, well or not."""
        if not self._finished and self._start is not None:
            self._start()
        return self._finished

    def exception(self) -> BaseException | None:
        """Return what the call raised; None if it went well or is still running."""
        return self._error

    def __repr__(self) -> str:
        state = "running" if not self._finished else "failed" if self._error is not None else "done"
        return f"Work({self._name}, {state})"


class Task(Work):
    """A work as those see it who do it."""

    __slots__ = ()

    @property
    def finished(self) -> bool:
        """Whether :meth:`finish` was called."""
        return self._finished

    @property
    def action(self) -> Action | None:
        """The call; None once it is done."""
        return self._action

    def run(self) -> BaseException | None:
        """Run the call, and return what it raised."""
        if self._action is not None:
            try:
                self._action.run()
            except BaseException as error:
                return error
        return None

    def finish(self, error: BaseException | None = None) -> None:
        """Tell those who wait how the call went, and let go of its arrays."""
        self._error = error
        if error is None and self._action is not None:
            self._result = self._action.result
        self._action = self._start = None
        self._finished = True
        self._done.release()


class Queue:
    """Runs actions in the order of their submission, in one thread that is started for the first.

    Sends and receives wait until something else is submitted or one of them is waited for, and then progress together:
    a receive that is submitted before a send cannot block it.

    Notes
    -----
    The queue owns the communicator's gate from the first submission until it is empty, so that a later call of the same
    thread cannot overtake.
    """

    def __init__(self, gate: Gate) -> None:
        self.pending = 0
        self._gate = gate
        self._mutex = threading.Lock()
        self._batch: list[Task] = []
        self._inbox: queue.SimpleQueue[list[Task] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, action: Action, *, now: bool = False) -> Task:
        """Append an action; sends and receives too are started at once if ``now``."""
        with self._mutex:
            if self.pending == 0:
                self._gate.acquire()
            self.pending += 1
            if isinstance(action, TransferAction) and not now:
                work = Task(action, self.start)
                self._batch.append(work)
                return work
            work = Task(action)
            self._start_batch()
            self._put([work])
        return work

    def start(self) -> None:
        """Let the sends and receives go that are waiting for company."""
        with self._mutex:
            self._start_batch()

    def stop(self) -> None:
        """End the thread, after what it has to do."""
        if self._thread is not None:
            self._inbox.put(None)

    def _start_batch(self) -> None:
        if self._batch:
            batch, self._batch = self._batch, []
            self._put(batch)

    def _put(self, works: list[Task]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="multiring async", daemon=True)
            self._thread.start()
        self._inbox.put(works)

    def _loop(self) -> None:
        work: Task | None
        while (works := self._inbox.get()) is not None:
            error = self._run(works)
            with self._mutex:
                self.pending -= len(works)
                if self.pending == 0:
                    self._gate.release()
            for work in works:
                work.finish(error)
            works, work, error = [], None, None  # an idle thread keeps no array alive

    @staticmethod
    def _run(works: list[Task]) -> BaseException | None:
        if len(works) == 1:
            return works[0].run()
        try:
            TransferAction.joined([w.action for w in works if isinstance(w.action, TransferAction)]).run()
        except BaseException as error:
            return error
        return None
