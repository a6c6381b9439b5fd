"""A GPU through CuPy's calls of the CUDA runtime."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from multiring.collectives.drivers.device import GRANULE_BYTES
from multiring.errors import ArgumentError, ArgumentTypeError, DeviceError
from multiring.kernels.cuda.launch import launcher
from multiring.kernels.dtypes import DType, numpy_dtype

__all__ = ["CupyDevice"]

_MAPPED, _PORTABLE = 2, 1
"""cudaHostRegisterMapped, cudaHostRegisterPortable."""


@contextlib.contextmanager
def _driver_errors() -> Iterator[None]:
    """Turn what CuPy raises for the driver into DeviceError."""
    try:
        yield
    except Exception as error:
        if type(error).__name__ not in ("CUDARuntimeError", "CUDADriverError"):
            raise
        raise DeviceError(str(error)) from error


class CupyDevice:
    """See :class:`multiring.collectives.drivers.device.Device`.

    Parameters
    ----------
    ordinal : int or None
        CuPy's number of the GPU; None: the thread's current one.
    runtime : module, optional
        In place of ``cupy.cuda.runtime``; for tests.
    launcher_of : callable, optional
        In place of :func:`multiring.kernels.cuda.launch.launcher`; for tests.
    """

    def __init__(self, ordinal: int | None, runtime: Any = None, launcher_of: Any = launcher) -> None:
        if runtime is None:
            import cupy

            runtime = cupy.cuda.runtime
        self._runtime: Any = runtime
        self._pid = os.getpid()
        with _driver_errors():
            if runtime.getDeviceCount() == 0:
                raise DeviceError("no CUDA-capable device is detected")
            self.ordinal = int(runtime.getDevice()) if ordinal is None else ordinal
            # Handles are opened in a context, which the first call of a thread on its device makes.
            runtime.setDevice(self.ordinal)
            runtime.free(0)
            properties = runtime.getDeviceProperties(self.ordinal)
            self.uuid = _uuid(properties, runtime.deviceGetPCIBusId(self.ordinal))
            model = properties["name"]
            model = model.decode() if isinstance(model, bytes) else str(model)
            self.name = f"GPU {self.ordinal} ({model})"
        self.launcher = launcher_of(self.ordinal)

    def use(self) -> None:
        """Make this GPU the calling thread's."""
        if os.getpid() != self._pid:
            raise ArgumentError(
                f"device: process {os.getpid()} was forked from {self._pid}, which used {self.name}, wanted a process"
                " of its own: CUDA does not survive a fork; start processes by spawn, or fork before any use of a GPU"
            )
        self._runtime.setDevice(self.ordinal)

    def allocate(self, n_bytes: int) -> int:
        """Return whole granules by cudaMalloc: pools and managed memory cannot be exported."""
        size = -(-max(n_bytes, 1) // GRANULE_BYTES) * GRANULE_BYTES
        with _driver_errors():
            return int(self._runtime.malloc(size))

    def free(self, address: int) -> None:
        """Give memory back."""
        with _driver_errors():
            self._runtime.free(address)

    def export(self, address: int) -> bytes:
        """Return the allocation's handle."""
        with _driver_errors():
            return bytes(self._runtime.ipcGetMemHandle(address))

    def open(self, handle: bytes) -> int:
        """Map another process's allocation; peer access is enabled for it alone."""
        with _driver_errors():
            return int(self._runtime.ipcOpenMemHandle(handle, self._runtime.cudaIpcMemLazyEnablePeerAccess))

    def close(self, address: int) -> None:
        """Undo :meth:`open`."""
        self.use()
        with _driver_errors():
            self._runtime.ipcCloseMemHandle(address)

    def can_access_peer(self, uuid: str) -> bool:
        """Ask the driver, where it sees the other GPU; one that it does not see is left to the test of pairs."""
        runtime = self._runtime
        with _driver_errors():
            for other in range(runtime.getDeviceCount()):
                if other == self.ordinal:
                    continue
                if _uuid(runtime.getDeviceProperties(other), runtime.deviceGetPCIBusId(other)) == uuid:
                    return bool(runtime.deviceCanAccessPeer(self.ordinal, other))
        return True

    def register_host(self, address: int, n_bytes: int) -> int:
        """Pin host memory, mapped into every context of this process."""
        runtime = self._runtime
        with _driver_errors():
            runtime.hostRegister(address, n_bytes, _MAPPED | _PORTABLE)
            if runtime.deviceGetAttribute(runtime.cudaDevAttrCanUseHostPointerForRegisteredMem, self.ordinal):
                return address
            return int(runtime.pointerGetAttributes(address).devicePointer)

    def unregister_host(self, address: int) -> None:
        """Unpin host memory."""
        with _driver_errors():
            self._runtime.hostUnregister(address)

    def copy(self, destination: int, source: int, n_bytes: int, stream: int) -> None:
        """Copy bytes; the driver sees from the addresses where they lie."""
        if n_bytes:
            with _driver_errors():
                self._runtime.memcpyAsync(destination, source, n_bytes, self._runtime.memcpyDefault, stream)

    def copy_elements(self, destination: NDArray[Any], source: NDArray[Any], stream: int) -> None:
        """Copy by CuPy's own kernel for strided arrays."""
        import cupy

        with cupy.cuda.ExternalStream(stream, self.ordinal):
            cupy.copyto(self._strided(destination), self._strided(source))

    def _strided(self, array: NDArray[Any]) -> Any:
        """Return a CuPy array of the same bytes, as unsigned integers or complex128."""
        import cupy

        kinds = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}
        if 0 in array.shape:
            return cupy.empty(array.shape, kinds[array.itemsize])
        spans = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)]
        below = -sum(s for s in spans if s < 0)
        n_bytes = below + sum(s for s in spans if s > 0) + array.itemsize
        first = array.__array_interface__["data"][0]
        room = cupy.cuda.UnownedMemory(first - below, n_bytes, None, self.ordinal)
        pointer = cupy.cuda.MemoryPointer(room, below)
        return cupy.ndarray(array.shape, kinds[array.itemsize], pointer, array.strides)

    def synchronize(self, stream: int) -> None:
        """Wait for one stream."""
        with _driver_errors():
            self._runtime.streamSynchronize(stream)

    def wait_for_all(self) -> None:
        """Wait for the whole device."""
        with _driver_errors():
            self._runtime.deviceSynchronize()

    def mark(self, stream: int) -> int:
        """Record an event without times."""
        with _driver_errors():
            event = int(self._runtime.eventCreateWithFlags(self._runtime.eventDisableTiming))
            self._runtime.eventRecord(event, stream)
            return event

    def follow(self, stream: int, event: int) -> None:
        """Let a stream wait for an event."""
        with _driver_errors():
            self._runtime.streamWaitEvent(stream, event)

    def reached(self, event: int) -> bool:
        """Whether an event has been reached."""
        # CuPy returns cudaErrorNotReady as a status, and raises what is worse.
        with _driver_errors():
            return int(self._runtime.eventQuery(event) or 0) == 0

    def forget(self, event: int) -> None:
        """Destroy an event."""
        with _driver_errors():
            self._runtime.eventDestroy(event)

    def private_stream(self) -> int:
        """Return a non-blocking stream, which lives as long as the process."""
        with _driver_errors():
            return int(self._runtime.streamCreateWithFlags(self._runtime.streamNonBlocking))

    def is_capturing(self, stream: int) -> bool:
        """Whether a stream records a graph."""
        # Asking the default stream while another one captures is an error itself, and means yes.
        try:
            return bool(self._runtime.streamIsCapturing(stream))
        except Exception as error:
            if "Capture" not in str(error):
                raise
            return True

    def free_bytes(self) -> int:
        """Return the GPU's free memory."""
        with _driver_errors():
            return int(self._runtime.memGetInfo()[0])

    def check_here(self, name: str, address: int) -> None:
        """Ask the driver whose memory it is."""
        with _driver_errors():
            found = int(self._runtime.pointerGetAttributes(address).device)
        if found not in (self.ordinal, -1, -2):
            raise ArgumentError(
                f"{name}: got an array on GPU {found}, wanted one on GPU {self.ordinal}, this communicator's; copy it,"
                f" or make GPU {found} current before multiring.init"
            )

    def array(self, address: int, shape: tuple[int, ...], dtype: DType, owner: Any) -> Any:
        """Return a CuPy array; bfloat16 needs CuPy 14."""
        import cupy

        kind = numpy_dtype(dtype)
        n_bytes = max(dtype.itemsize * _product(shape), 1)
        pointer = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(address, n_bytes, owner, self.ordinal), 0)
        try:
            return cupy.ndarray(shape, kind, pointer)
        except (TypeError, ValueError) as error:
            raise ArgumentTypeError(
                f"empty: dtype: got {dtype.name}, which CuPy {cupy.__version__} has no arrays of ({error}); wanted CuPy"
                " 14 or newer, or another type"
            ) from error


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for extent in shape:
        product *= extent
    return product


def _uuid(properties: dict[str, Any], bus: str) -> str:
    # Parts of one GPU (MIG) have its bus and a uuid of their own; a uuid read as text ends at its first zero byte.
    found = properties.get("uuid")
    return f"{found.hex() if isinstance(found, bytes) else ''} at {bus}"
