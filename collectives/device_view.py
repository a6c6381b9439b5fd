"""Arrays in CUDA memory: address, element type, layout, and the stream that they are ready in."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.arrays import View
from multiring.collectives.dlpack import cuda_array, strided_array
from multiring.collectives.drivers.device import open_device
from multiring.collectives.streams import DEFAULT_STREAM, current_torch_stream
from multiring.errors import ArgumentError, ArgumentTypeError
from multiring.kernels.dtypes import DType, dtype_of

__all__ = ["DeviceView", "Room", "device_view_of", "is_on_device"]

DLPACK_CUDA = (2, 13)
"""DLDeviceType of CUDA memory, and of managed memory."""


class DeviceView(View):
    """What a call needs to know of an array in CUDA memory.

    Attributes
    ----------
    array : ndarray
        A shadow: shape, strides and address of the elements. **Never read or written**: the memory is the GPU's.
    streams : tuple of int
        In whose order the array is ready; empty where its library does not say.
    """

    __slots__ = ("streams",)

    on_device = True

    def __init__(self, array: NDArray[Any], original: Any, dtype: DType, streams: tuple[int, ...] = ()) -> None:
        super().__init__(array, original, dtype)
        self.streams = streams

    def part(self, array: NDArray[Any]) -> DeviceView:
        """Return the view of a part of the shadow."""
        return DeviceView(array, array, self.dtype, self.streams)

    def packed(self) -> tuple[NDArray[Any], Any]:
        """Return a shadow of new C-ordered memory for the same elements, and what keeps that memory."""
        kept = Room(self.nbytes)
        return strided_array(kept.address, self.shape, None, self.dtype, writable=True, owner=kept), kept


class Room:
    """Ordinary device memory that goes with the object."""

    def __init__(self, n_bytes: int) -> None:
        self._launcher = open_device().launcher
        self.address = self._launcher.allocate(max(n_bytes, 1))

    def __del__(self) -> None:
        self._launcher.free(self.address)


def is_on_device(x: Any) -> bool:
    """Whether an object says that its memory is CUDA's."""
    kind = type(x)
    if hasattr(kind, "__dlpack_device__"):
        return int(x.__dlpack_device__()[0]) in DLPACK_CUDA
    return getattr(x, "__cuda_array_interface__", None) is not None


def device_view_of(x: Any, name: str = "x") -> DeviceView:
    """Return the view of an array in CUDA memory.

    Parameters
    ----------
    x : array
        CuPy's, torch's, or anything with ``__cuda_array_interface__`` or ``__dlpack__``.
    name : str
        What errors call it.

    Raises
    ------
    ArgumentTypeError
        If its element type is none of multiring's.
    """
    if type(x).__module__.partition(".")[0] == "torch":
        # torch's CUDA array interface has no stream, and no bfloat16.
        array, dtype = cuda_array(x, name, -1)
        return DeviceView(array, x, dtype, (current_torch_stream(x),))
    interface = getattr(x, "__cuda_array_interface__", None)
    if interface is None:
        array, dtype = cuda_array(x, name, 1)  # ready in the legacy default stream
        return DeviceView(array, x, dtype, (DEFAULT_STREAM,))
    return _of_interface(x, interface, name)


def _of_interface(x: Any, interface: dict[str, Any], name: str) -> DeviceView:
    if interface.get("mask") is not None:
        raise ArgumentTypeError(f"{name}: got a masked {type(x).__name__}, wanted one without a mask")
    kind = getattr(x, "dtype", None)
    try:
        # What calls itself '<f2' or '|V2' may be bfloat16: the object's own dtype knows.
        dtype = dtype_of(kind if isinstance(kind, np.dtype) else interface["typestr"])
    except ArgumentTypeError as error:
        raise ArgumentTypeError(f"{name}: {error}") from None
    address, read_only = interface["data"]
    shape = tuple(int(n) for n in interface["shape"])
    strides = interface.get("strides")
    array = strided_array(
        int(address or 0),
        shape,
        tuple(int(s) for s in strides) if strides is not None else None,
        dtype,
        writable=not read_only,
        owner=x,
    )
    stream = interface.get("stream")
    if stream == 0:
        raise ArgumentError(f"{name}: got stream 0 in __cuda_array_interface__, wanted None, 1, 2 or a handle")
    return DeviceView(array, x, dtype, (int(stream),) if stream is not None else ())
