"""A GPU that is none: device memory is shared memory of the host, and kernels run in Numba's simulator.

Every access of a kernel is checked against the memory that was handed out here.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import struct
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.dlpack import strided_array
from multiring.collectives.drivers.device import GRANULE_BYTES, HANDLE_BYTES
from multiring.collectives.drivers.room import available_bytes
from multiring.collectives.drivers.segment import Segment
from multiring.errors import DeviceError, SharedMemoryError
from multiring.kernels import memory
from multiring.kernels.cuda.launch import launcher
from multiring.kernels.dtypes import DType, numpy_dtype

__all__ = ["SimulatedArray", "SimulatedDevice"]

_HANDLE = struct.Struct("<qqq")


class SimulatedArray:
    """An array in simulated device memory.

    It has ``__cuda_array_interface__`` and no other interface, so that it is taken for what a GPU's array would be.

    Parameters
    ----------
    address : int
    shape : tuple of int
    dtype : DType
    owner : object
        What keeps the memory.
    """

    def __init__(self, address: int, shape: tuple[int, ...], dtype: DType, owner: Any) -> None:
        self.shape = shape
        self.dtype = numpy_dtype(dtype)
        self.size = int(np.prod(shape, dtype=np.int64))
        self.nbytes = self.size * self.dtype.itemsize
        self._array = strided_array(address, shape, None, dtype, writable=True, owner=owner)
        self._address = address
        self._owner = owner

    @classmethod
    def of(cls, values: Any) -> SimulatedArray:
        """Return a copy of a host array in ordinary device memory, which peers cannot reach."""
        from multiring.kernels.dtypes import dtype_of

        values = np.ascontiguousarray(values).reshape(np.shape(values))
        room = np.empty(values.nbytes + 256, np.uint8)
        address = -(-room.ctypes.data // 256) * 256
        made = cls(address, values.shape, dtype_of(values.dtype), room)
        if values.nbytes:
            memory.register(address, values.nbytes)
            weakref.finalize(made, memory.forget, address)
            made.numpy()[...] = values
        return made

    def numpy(self) -> NDArray[Any]:
        """Return the memory itself as a numpy array."""
        return self._array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The protocol's version 3; the default stream."""
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self._address, False),
            "version": 3,
            "strides": None,
            "stream": 1,
        }


class SimulatedDevice:
    """See :class:`multiring.collectives.drivers.device.Device`; all ranks of a machine share one."""

    def __init__(self) -> None:
        self.uuid = "simulated"
        self.name = "Numba's simulator"
        self.launcher = launcher()
        self._segments: dict[int, Segment] = {}
        self._opened: dict[int, Segment] = {}
        self._events = itertools.count(1)

    def use(self) -> None:
        """Nothing to do."""

    def allocate(self, n_bytes: int) -> int:
        """Make a segment."""
        size = -(-max(n_bytes, 1) // GRANULE_BYTES) * GRANULE_BYTES
        try:
            segment = Segment.create(size, "simulated device memory")
        except SharedMemoryError as error:
            raise DeviceError(str(error)) from None
        memory.register(segment.address, segment.n_bytes)
        self._segments[segment.address] = segment
        return segment.address

    def free(self, address: int) -> None:
        """Forget a segment."""
        memory.forget(address)
        del self._segments[address]

    def export(self, address: int) -> bytes:
        """Return process, descriptor and size."""
        segment = self._segments[address]
        return _HANDLE.pack(os.getpid(), segment.descriptor, segment.n_bytes).ljust(HANDLE_BYTES, b"\0")

    def open(self, handle: bytes) -> int:
        """Map another process's segment."""
        pid, descriptor, n_bytes = _HANDLE.unpack(handle[: _HANDLE.size])
        if pid == os.getpid():
            raise DeviceError("invalid device context: a process cannot open its own handle")
        try:
            segment = Segment.attach(pid, descriptor, n_bytes, "a peer's simulated device memory")
        except SharedMemoryError as error:
            raise DeviceError(str(error)) from None
        memory.register(segment.address, n_bytes)
        self._opened[segment.address] = segment
        return segment.address

    def close(self, address: int) -> None:
        """Forget a mapping."""
        memory.forget(address)
        del self._opened[address]

    def can_access_peer(self, uuid: str) -> bool:
        """Every simulated GPU reaches every other."""
        return True

    def register_host(self, address: int, n_bytes: int) -> int:
        """Let kernels use host memory."""
        memory.register(address, n_bytes)
        return address

    def unregister_host(self, address: int) -> None:
        """Forget host memory."""
        memory.forget(address)

    def copy(self, destination: int, source: int, n_bytes: int, stream: int) -> None:
        """Copy at once."""
        if n_bytes:
            ctypes.memmove(destination, source, n_bytes)

    def copy_elements(self, destination: NDArray[Any], source: NDArray[Any], stream: int) -> None:
        """Copy at once."""
        destination[...] = source

    def synchronize(self, stream: int) -> None:
        """Nothing to do: a launch returns when it is done."""

    def wait_for_all(self) -> None:
        """Nothing to do."""

    def mark(self, stream: int) -> int:
        """Return an event, which is reached."""
        return next(self._events)

    def follow(self, stream: int, event: int) -> None:
        """Nothing to do."""

    def reached(self, event: int) -> bool:
        """Every event is."""
        return True

    def forget(self, event: int) -> None:
        """Nothing to do."""

    def private_stream(self) -> int:
        """Return the one stream."""
        return 0

    def is_capturing(self, stream: int) -> bool:
        """The simulator has no graphs."""
        return False

    def free_bytes(self) -> int:
        """Return the host's free memory."""
        return available_bytes()

    def check_here(self, name: str, address: int) -> None:
        """There is one device."""

    def array(self, address: int, shape: tuple[int, ...], dtype: DType, owner: Any) -> SimulatedArray:
        """Return a :class:`SimulatedArray`."""
        return SimulatedArray(address, shape, dtype, owner)
