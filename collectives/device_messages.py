"""Sends and receives of arrays in device memory: through host memory, in the order of a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.drivers.device import Device
from multiring.kernels.dtypes import DType

__all__ = ["exchange_staged"]

Message = tuple[int, int, DType, int]
"""(address, count, dtype, peer)."""


def exchange_staged(
    device: Device,
    exchange: Callable[[Sequence[Message], Sequence[Message], float | None], None],
    sends: Sequence[Message],
    receives: Sequence[Message],
    timeout_s: float | None,
    streams: tuple[int, ...],
) -> None:
    """Carry out sends and receives of arrays in device memory, and return when they are done.

    Parameters
    ----------
    device : Device
    exchange : callable
        Of arrays in host memory.
    sends, receives, timeout_s
        See :meth:`multiring.collectives.executor.Executor.exchange`.
    streams : tuple of int
        The first one's the copies are made in; what is in the others comes before.
    """
    device.use()
    for stream in streams:
        device.synchronize(stream)
    stream = streams[0]
    staged: list[NDArray[Any]] = []

    def stage(message: Message) -> Message:
        _, count, dtype, peer = message
        room: NDArray[np.uint8] = np.empty(max(count * dtype.itemsize, 1), np.uint8)
        staged.append(room)
        return room.ctypes.data, count, dtype, peer

    outgoing, incoming = [stage(m) for m in sends], [stage(m) for m in receives]
    for (source, count, dtype, _), there in zip(sends, outgoing, strict=True):
        device.copy(there[0], source, count * dtype.itemsize, stream)
    if sends:
        device.synchronize(stream)
    exchange(outgoing, incoming, timeout_s)
    for (destination, count, dtype, _), here in zip(receives, incoming, strict=True):
        device.copy(destination, here[0], count * dtype.itemsize, stream)
    if receives:
        device.synchronize(stream)
