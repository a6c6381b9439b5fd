"""CUDA streams of any library, as the driver's handle: by protocol, without importing the library."""

from __future__ import annotations

import sys
from typing import Any

from multiring.errors import ArgumentError, ArgumentTypeError

__all__ = ["DEFAULT_STREAM", "current_torch_stream", "stream_handle"]

DEFAULT_STREAM = 0
"""The legacy default stream."""


def stream_handle(stream: Any, name: str = "stream") -> int:
    """Return the handle of a CUDA stream.

    Parameters
    ----------
    stream : int or object
        A handle (0: the legacy default stream, 1: the same, 2: the thread's default stream), or an object with
        ``__cuda_stream__``, ``ptr`` (CuPy), ``cuda_stream`` (torch) or ``handle`` (Numba, cuda-python).
    name : str
        What errors call it.

    Raises
    ------
    ArgumentTypeError
        If it is none of these.
    ArgumentError
        If the handle is negative or no address.
    """
    found: Any = stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        pair = protocol() if callable(protocol) else protocol
        if not isinstance(pair, tuple) or len(pair) != 2 or pair[0] != 0:
            raise ArgumentTypeError(f"{name}: got __cuda_stream__ that says {pair!r}, wanted (0, handle)")
        found = pair[1]
    elif not hasattr(type(stream), "__index__"):
        found = None
        for attribute in ("ptr", "cuda_stream", "handle"):
            found = getattr(stream, attribute, None)
            if found is not None:
                break
    found = getattr(found, "value", found)  # a ctypes pointer
    if isinstance(found, bool) or not hasattr(type(found), "__index__"):
        raise ArgumentTypeError(
            f"{name}: got {type(stream).__name__}, wanted a CUDA stream: a handle as int, or an object of CuPy, torch, "
            "Numba or another library with __cuda_stream__"
        )
    handle = int(found)
    if not 0 <= handle < 1 << 64:
        raise ArgumentError(f"{name}: got {handle:#x}, wanted a CUDA stream's handle, from 0 to 2**64 - 1")
    return handle


def current_torch_stream(tensor: Any) -> int:
    """Return the stream that torch is using on a tensor's GPU; the tensor shows that torch is loaded."""
    return int(sys.modules["torch"].cuda.current_stream(tensor.device).cuda_stream)
