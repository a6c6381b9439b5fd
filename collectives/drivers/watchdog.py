"""A thread that looks after something while there is something to look after."""

from __future__ import annotations

import threading
import weakref
from typing import Protocol

__all__ = ["Watchdog", "Watched"]

INTERVAL_S = 0.002
"""Between two looks."""


class Watched(Protocol):
    """What a watchdog looks after."""

    @property
    def active(self) -> threading.Event:
        """Set while there is something to look after."""
        ...

    def look(self) -> bool:
        """Look once; return whether to go on."""
        ...


class Watchdog:
    """Calls ``look()`` of an object at short intervals while it is active; forgets an object that nobody else holds.

    Parameters
    ----------
    watched : Watched
    """

    def __init__(self, watched: Watched) -> None:
        self._stopped = threading.Event()
        self._active = active = watched.active
        reference = weakref.ref(watched, lambda _: self._end())
        self._thread = threading.Thread(
            target=_watch, args=(reference, active, self._stopped), name="multiring watchdog", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._end()
        if self._thread is not threading.current_thread():
            self._thread.join(1.0)

    def _end(self) -> None:
        self._stopped.set()
        self._active.set()


def _watch(reference: weakref.ref[Watched], active: threading.Event, stopped: threading.Event) -> None:
    while True:
        active.wait()
        if stopped.wait(INTERVAL_S):
            return
        watched = reference()
        if watched is None or not watched.look():
            return
        del watched
