"""Calls on arrays in CUDA memory: in the order of which streams."""

from __future__ import annotations

import functools
from typing import Any

from multiring.collectives.arrays import View
from multiring.collectives.communicator.action import Action
from multiring.collectives.communicator.contract import DeviceCall, Executor, OnDevice
from multiring.collectives.streams import DEFAULT_STREAM, stream_handle
from multiring.errors import ArgumentError

__all__ = ["InStreams", "bind_streams", "streams_of"]


def streams_of(executor: Executor, name: str, stream: Any, *views: View | None) -> tuple[int, ...]:
    """Return the streams of a call: the first one's kernels run, the others' work comes before.

    Parameters
    ----------
    executor : Executor
    name : str
        The call's, for errors.
    stream : object
        The caller's ``stream=``: then it alone counts. None: the arrays' own, else the default stream.
    *views : View or None

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If it is no stream, or there is one for arrays in host memory.
    """
    if executor.on_device is None:
        if stream is not None and stream_handle(stream, f"{name}: stream"):
            raise ArgumentError(f"{name}: stream: got {stream!r}, wanted 0: host memory has no streams")
        return ()
    if stream is not None:
        return (stream_handle(stream, f"{name}: stream"),)
    own = tuple(dict.fromkeys(s for view in views if view is not None for s in view.streams))
    return own or (DEFAULT_STREAM,)


def bind_streams(executor: Executor, action: Action, streams: tuple[int, ...]) -> None:
    """Let an action's copies run in streams, where it has any."""
    device = executor.on_device
    if device is not None:
        action.move = functools.partial(_move, device, streams)


def _move(device: OnDevice, streams: tuple[int, ...], destination: Any, source: Any) -> None:
    device.copy_on_device(destination, source, streams)


class InStreams:
    """A call on device memory as an invocation, bound to streams."""

    __slots__ = ("_call", "_streams")

    def __init__(self, call: DeviceCall, streams: tuple[int, ...]) -> None:
        self._call = call
        self._streams = streams

    def run(self, x_address: int, out_address: int, timeout_s: float | None = None) -> None:
        """See :class:`multiring.collectives.communicator.contract.Invocation`."""
        self._call.run(x_address, out_address, timeout_s, self._streams)
