"""One call, checked and bound to addresses: what is launched, queued, grouped and prepared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.arrays import View, address_of
from multiring.collectives.communicator.contract import Executor, Invocation, Span
from multiring.collectives.dlpack import strided_array
from multiring.errors import MismatchError

__all__ = ["Action", "CollectiveAction", "FunctionAction", "SequenceAction", "TransferAction"]

Copy = tuple[NDArray[Any], NDArray[Any]]
"""(destination, source)."""


class Action:
    """A call that can be run, and run again.

    Attributes
    ----------
    result : object
        What the public method returns; valid after :meth:`run`.
    held : tuple
        The arrays, kept alive as long as the action.
    before, after : list of (destination, source)
        Copies of arrays that no peer can use as they are: packed before, written back after, once each.
    move : callable
        ``move(destination, source)``: numpy's copy, or the device's.
    """

    __slots__ = ("after", "before", "held", "move", "name", "result")

    def __init__(self, name: str, result: Any, held: tuple[Any, ...] = ()) -> None:
        self.name = name
        self.result = result
        self.held = held
        self.before: list[Copy] = []
        self.after: list[Copy] = []
        self.move: Callable[[NDArray[Any], NDArray[Any]], None] = np.copyto

    def pack(self, view: View) -> int:
        """Return an address that holds a view's elements in C order once :attr:`before` is done."""
        if view.direct:
            return view.address
        packed, kept = view.packed()
        self.held += (kept,)
        self.before.append((packed, view.array))
        return address_of(packed)

    def unpack(self, view: View) -> int:
        """Return an address whose elements, in C order, are a view's once :attr:`after` is done."""
        if view.direct:
            return view.address
        packed, kept = view.packed()
        self.held += (kept,)
        self.after.append((view.array, packed))
        return address_of(packed)

    def pack_in_place(self, view: View) -> int:
        """Return an address for an array that is read and written."""
        if view.direct:
            return view.address
        address = self.pack(view)
        packed, array = self.before[-1]
        self.after.append((array, packed))
        return address

    def run(self) -> None:
        """Pack, do, write back."""
        for destination, source in self.before:
            self.move(destination, source)
        self.do()
        for destination, source in self.after:
            self.move(destination, source)

    def do(self) -> None:
        """Move the data: a subclass's."""
        raise NotImplementedError


class CollectiveAction(Action):
    """One invocation."""

    __slots__ = ("call", "out_address", "timeout_s", "x_address")

    def __init__(
        self,
        name: str,
        result: Any,
        held: tuple[Any, ...],
        invocation: Invocation,
        timeout_s: float | None,
    ) -> None:
        super().__init__(name, result, held)
        self.call = invocation.run
        self.x_address = 0
        self.out_address = 0
        self.timeout_s = timeout_s

    def do(self) -> None:
        """Run the invocation."""
        self.call(self.x_address, self.out_address, self.timeout_s)


class TransferAction(Action):
    """Sends and receives that progress together."""

    __slots__ = ("executor", "receives", "sends", "streams", "timeout_s")

    def __init__(
        self, name: str, result: Any, held: tuple[Any, ...], executor: Executor, timeout_s: float | None
    ) -> None:
        super().__init__(name, result, held)
        self.executor = executor
        self.sends: list[Span] = []
        self.receives: list[Span] = []
        self.streams: tuple[int, ...] = ()
        self.timeout_s = timeout_s

    @classmethod
    def joined(cls, parts: list[TransferAction]) -> TransferAction:
        """Return one action of several, in their order."""
        limits = [p.timeout_s for p in parts if p.timeout_s is not None]
        whole = cls(
            "exchange", None, tuple(parts), parts[0].executor, max(limits) if len(limits) == len(parts) else None
        )
        for part in parts:
            whole.before += part.before
            whole.after += part.after
            whole.sends += part.sends
            whole.receives += part.receives
            whole.streams = tuple(dict.fromkeys((*whole.streams, *part.streams)))
            whole.move = part.move
        return whole

    def do(self) -> None:
        """Send and receive, with this rank itself too."""
        executor, rank = self.executor, self.executor.rank
        own_sends = [s for s in self.sends if s[3] == rank]
        own_receives = [r for r in self.receives if r[3] == rank]
        if own_sends or own_receives:
            self._copy_own(own_sends, own_receives)
        sends = [s for s in self.sends if s[3] != rank]
        receives = [r for r in self.receives if r[3] != rank]
        if executor.on_device is not None:
            executor.on_device.exchange_on_device(sends, receives, self.timeout_s, self.streams)
        elif len(sends) == 1 and not receives:
            executor.send(*sends[0], self.timeout_s)
        elif len(receives) == 1 and not sends:
            executor.recv(*receives[0], self.timeout_s)
        elif sends or receives:
            executor.exchange(sends, receives, self.timeout_s)

    def _copy_own(self, sends: list[Span], receives: list[Span]) -> None:
        """Messages to this rank itself: matched in order, as those to a peer are."""
        if [(s[1], s[2]) for s in sends] != [(r[1], r[2]) for r in receives]:
            raise MismatchError(
                f"rank {self.executor.rank} to itself: sends {[(s[1], s[2].name) for s in sends]}, "
                f"receives {[(r[1], r[2].name) for r in receives]} (elements, dtype); wanted equal lists"
            )
        for (source, count, dtype, _), (destination, *_rest) in zip(sends, receives, strict=True):
            there, here = (
                strided_array(a, (count,), None, dtype, writable=True, owner=None) for a in (destination, source)
            )
            self.move(there, here)


class SequenceAction(Action):
    """Several actions, one after the other."""

    __slots__ = ("parts",)

    def __init__(self, name: str, result: Any, parts: list[Action]) -> None:
        super().__init__(name, result)
        self.parts = parts

    def do(self) -> None:
        """Run the parts in order."""
        for part in self.parts:
            part.run()


class FunctionAction(Action):
    """Anything else that must keep its place among the calls: a split, a refusal."""

    __slots__ = ("function",)

    def __init__(self, name: str, function: Callable[[], Any]) -> None:
        super().__init__(name, None)
        self.function = function

    def do(self) -> None:
        """Call the function."""
        self.result = self.function()
