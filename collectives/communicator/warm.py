"""The short way for calls like one that was checked before: same method, dtypes, shapes and keywords, other arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from multiring.collectives.arrays import DIRECT, DIRECT_WRITABLE, MEMORY, START, unpack_fields
from multiring.collectives.communicator.action import Action, CollectiveAction
from multiring.collectives.communicator.engine import Engine

__all__ = ["MISS", "Warm"]

MISS: Any = object()
"""What :meth:`Warm.call` returns if it did nothing."""

LIMIT = 512
"""Calls remembered; then all are forgotten."""

_ndarray, _unpack = np.ndarray, unpack_fields


class Warm:
    """Remembers checked calls on contiguous numpy arrays.

    What is left to check for other arrays is what the key does not hold: that they are contiguous, aligned and
    writable, and that they overlap only where it is legal. That takes 0.6 us in place of 4.
    """

    def __init__(self, engine: Engine) -> None:
        self._gate = engine.gate
        self._entries: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def call(self, key: tuple[Any, ...], x: Any, out: Any) -> Any:
        """Run the call if one like it is remembered.

        Parameters
        ----------
        key : tuple
            Name and keywords.
        x, out : array
            ``out`` None: in place, or no output on this rank.

        Returns
        -------
        object
            The call's result, or :data:`MISS`.
        """
        if type(x) is not _ndarray:
            return MISS
        address, descr, flags = _unpack(MEMORY, id(x) + START)
        try:
            if out is None:
                entry = self._entries.get((key, descr, x.shape))
                if entry is None or flags & entry[0] != entry[0]:
                    return MISS
                _, run, limit_s, in_place, _ = entry
                target, result = (address, x) if in_place else (0, None)
            elif type(out) is _ndarray:
                target, out_descr, out_flags = _unpack(MEMORY, id(out) + START)
                entry = self._entries.get((key, descr, x.shape, out_descr, out.shape))
                if entry is None or flags & DIRECT != DIRECT or out_flags & DIRECT_WRITABLE != DIRECT_WRITABLE:
                    return MISS
                _, run, limit_s, place, _ = entry
                shift = target - address
                if shift != place and -out.nbytes < shift < x.nbytes:
                    return MISS
                result = out
            else:
                return MISS
        except TypeError:  # a keyword's value that cannot be hashed
            return MISS
        gate = self._gate
        taken, gate.idle = gate.idle, False
        if not taken:
            return MISS
        try:
            run(address, target, limit_s)
        finally:
            gate.idle = True
            if gate.waiting:
                gate.wake()
        return result

    def remember(self, key: tuple[Any, ...], x: Any, out: Any, action: Action) -> None:
        """Remember a call that went well, if it worked on the arrays as they are.

        Parameters
        ----------
        key, x, out
            As given to :meth:`call`.
        action : Action
        """
        if not isinstance(action, CollectiveAction) or action.before or action.after or type(x) is not _ndarray:
            return
        _, descr, flags = _unpack(MEMORY, id(x) + START)
        if not flags:
            return  # array objects cannot be read here
        entry: tuple[Any, ...]
        # The dtype objects are held: their addresses, in the key, must not be used again for others.
        if out is None:
            in_place = action.result is x
            if not in_place and action.out_address:
                return  # a new array each time
            key = (key, descr, x.shape)
            entry = (DIRECT_WRITABLE if in_place else DIRECT, action.call, action.timeout_s, in_place, x.dtype)
        elif type(out) is _ndarray and action.result is out:
            key = (key, descr, x.shape, _unpack(MEMORY, id(out) + START)[1], out.shape)
            shift = action.out_address - action.x_address
            overlaps = -out.nbytes < shift < x.nbytes
            # Legal overlap is found by the first call that has it.
            entry = (DIRECT, action.call, action.timeout_s, shift if overlaps else None, (x.dtype, out.dtype))
        else:
            return
        try:
            if len(self._entries) >= LIMIT:
                self._entries.clear()
            self._entries[key] = entry
        except TypeError:
            return
