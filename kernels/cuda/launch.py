"""Launching: our own cubins through the CUDA driver, or the same functions in Numba's simulator, chosen here.

On a GPU a launch is one call of the driver with a parameter block that is ready: an array with the arguments, and an
array with their addresses. Numba's dispatcher would cost about ten microseconds a launch, and compiles other code
than ours.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from multiring.errors import ArgumentError
from multiring.kernels import memory
from multiring.kernels.cuda.compile import ENTRY, Kernel, build
from multiring.kernels.cuda.homes import SIMULATED

__all__ = ["Driver", "Launcher", "Prepared", "Simulator", "launcher"]


class Prepared:
    """A launch that is ready: ``prepared(stream)``.

    Attributes
    ----------
    arguments : numpy.ndarray, int64
        What the kernel gets. May be rewritten between launches; what a launch gets is read before it returns.
    blocks : int
        Of the grid.
    kept : tuple
        What the arguments point to.
    """

    __slots__ = ("_go", "arguments", "blocks", "kept")

    def __init__(
        self, go: Callable[[int], None], arguments: NDArray[np.int64], blocks: int, kept: tuple[Any, ...] = ()
    ) -> None:
        self._go = go
        self.arguments = arguments
        self.blocks = blocks
        self.kept = kept

    def __call__(self, stream: int = 0) -> None:
        """Launch; ``stream`` is the address of a CUDA stream, 0 the default stream."""
        self._go(stream)


class Launcher(Protocol):
    """Where kernels run, and the memory that they work on."""

    @property
    def processors(self) -> int:
        """Streaming multiprocessors."""

    def prepare(self, kernel: Kernel, arguments: Sequence[int], blocks: int, *kept: Any) -> Prepared:
        """Return a launch of so many blocks; compiles or loads the kernel at its first use."""

    def allocate(self, n_bytes: int) -> int:
        """Return the address of fresh memory, a multiple of 256."""

    def free(self, address: int) -> None:
        """Give memory back."""

    def upload(self, address: int, array: NDArray[Any]) -> None:
        """Copy a host array to the device, and return when it is there."""

    def download(self, array: NDArray[Any], address: int) -> None:
        """Copy from the device to a host array, after everything launched before."""

    def table(self, words: Any) -> tuple[int, Any]:
        """Return the address of a copy of int64 words on the device, and what keeps it there."""

    def synchronize(self) -> None:
        """Wait for everything launched before."""


class _Owned:
    """Device memory that goes with the object."""

    def __init__(self, launcher: Launcher, n_bytes: int) -> None:
        self.launcher = launcher
        self.address = launcher.allocate(n_bytes)

    def __del__(self) -> None:
        self.launcher.free(self.address)


def _table(launcher: Launcher, words: Any) -> tuple[int, Any]:
    words = np.ascontiguousarray(words, np.int64)
    owned = _Owned(launcher, max(words.nbytes, 8))
    launcher.upload(owned.address, words)
    return owned.address, owned


class Simulator:
    """Numba's simulator: host memory, one block after the other, a thread for each thread, every access checked."""

    processors = 2

    def __init__(self) -> None:
        self._memory: dict[int, Any] = {}
        self._jitted: dict[Kernel, Any] = {}

    def prepare(self, kernel: Kernel, arguments: Sequence[int], blocks: int, *kept: Any) -> Prepared:
        """See :class:`Launcher`."""
        from numba import cuda

        jitted = self._jitted.get(kernel)
        if jitted is None:
            jitted = self._jitted[kernel] = cuda.jit(kernel.make())
        block = np.array(arguments, np.int64)

        def go(stream: int) -> None:
            # The simulator's manager spins while it waits for its threads, so they need its interpreter lock often.
            interval = sys.getswitchinterval()
            sys.setswitchinterval(1e-5)
            try:
                jitted[blocks, kernel.threads](*block.tolist())
            finally:
                sys.setswitchinterval(interval)

        return Prepared(go, block, blocks, kept)

    def allocate(self, n_bytes: int) -> int:
        """See :class:`Launcher`."""
        room = np.full(n_bytes + 256, 0xA5, np.uint8)
        address = -(-room.ctypes.data // 256) * 256
        memory.register(address, n_bytes)
        self._memory[address] = room
        return int(address)

    def free(self, address: int) -> None:
        """See :class:`Launcher`."""
        memory.forget(address)
        del self._memory[address]

    def upload(self, address: int, array: NDArray[Any]) -> None:
        """See :class:`Launcher`."""
        array = np.ascontiguousarray(array)
        if array.nbytes:
            ctypes.memmove(memory.check(address, array.nbytes, 1), array.ctypes.data, array.nbytes)

    def download(self, array: NDArray[Any], address: int) -> None:
        """See :class:`Launcher`."""
        if array.nbytes:
            ctypes.memmove(array.ctypes.data, memory.check(address, array.nbytes, 1), array.nbytes)

    def table(self, words: Any) -> tuple[int, Any]:
        """See :class:`Launcher`."""
        return _table(self, words)

    def synchronize(self) -> None:
        """See :class:`Launcher`."""


class Driver:
    """One GPU through CuPy's driver calls.

    Parameters
    ----------
    device : int
        CuPy's number of the GPU.
    """

    def __init__(self, device: int = 0) -> None:
        from cupy.cuda import driver, runtime

        self._driver, self._runtime = driver, runtime
        self.device = device
        runtime.setDevice(device)
        runtime.free(0)  # makes the context
        self.capability = (
            runtime.deviceGetAttribute(runtime.cudaDevAttrComputeCapabilityMajor, device),
            runtime.deviceGetAttribute(runtime.cudaDevAttrComputeCapabilityMinor, device),
        )
        self.processors = int(runtime.deviceGetAttribute(runtime.cudaDevAttrMultiProcessorCount, device))
        self._functions: dict[Kernel, int] = {}

    def function(self, kernel: Kernel) -> int:
        """Return the driver's handle of a kernel."""
        found = self._functions.get(kernel)
        if found is None:
            cubin = build(kernel, [self.capability])[self.capability].cubin
            found = self._driver.moduleGetFunction(self._driver.moduleLoadData(cubin), ENTRY)
            self._functions[kernel] = found
        return found

    def resident_blocks(self, kernel: Kernel) -> int:
        """Return how many blocks of a kernel the GPU holds at once."""
        per_processor = self._driver.occupancyMaxActiveBlocksPerMultiprocessor(self.function(kernel), kernel.threads, 0)
        return int(per_processor) * self.processors

    def prepare(self, kernel: Kernel, arguments: Sequence[int], blocks: int, *kept: Any) -> Prepared:
        """See :class:`Launcher`."""
        function, launch, threads = self.function(kernel), self._driver.launchKernel, kernel.threads
        values = np.array(arguments, np.int64)
        pointers = values.ctypes.data + 8 * np.arange(len(values), dtype=np.int64)
        at = pointers.ctypes.data

        def go(stream: int) -> None:
            launch(function, blocks, 1, 1, threads, 1, 1, 0, stream, at, 0)

        return Prepared(go, values, blocks, (pointers, *kept))

    def allocate(self, n_bytes: int) -> int:
        """See :class:`Launcher`."""
        return int(self._runtime.malloc(max(n_bytes, 1)))

    def free(self, address: int) -> None:
        """See :class:`Launcher`."""
        self._runtime.free(address)

    def upload(self, address: int, array: NDArray[Any]) -> None:
        """See :class:`Launcher`."""
        array = np.ascontiguousarray(array)
        self._runtime.memcpy(address, array.ctypes.data, array.nbytes, self._runtime.memcpyHostToDevice)

    def download(self, array: NDArray[Any], address: int) -> None:
        """See :class:`Launcher`."""
        self._runtime.memcpy(array.ctypes.data, address, array.nbytes, self._runtime.memcpyDeviceToHost)

    def table(self, words: Any) -> tuple[int, Any]:
        """See :class:`Launcher`."""
        return _table(self, words)

    def synchronize(self) -> None:
        """See :class:`Launcher`."""
        self._runtime.deviceSynchronize()


@functools.cache
def launcher(device: int = 0) -> Launcher:
    """Return where kernels run in this process: the simulator if Numba's is on, else a GPU.

    Raises
    ------
    ArgumentError
        If there is neither.
    """
    if SIMULATED:
        return Simulator()
    try:
        return Driver(device)
    except ImportError as error:
        raise ArgumentError(
            f"device: got {device}, and CuPy is not installed ({error}); wanted CuPy and a GPU: "
            "pip install 'multiring[cuda13]', or set NUMBA_ENABLE_CUDASIM=1 for the simulator"
        ) from error
    except Exception as error:
        if type(error).__name__ not in ("CUDARuntimeError", "CUDADriverError"):
            raise
        raise ArgumentError(f"device: got {device}, wanted a GPU that the CUDA driver can open ({error})") from error
