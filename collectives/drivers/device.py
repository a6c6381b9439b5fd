"""The device layer: what the CUDA drivers ask of a GPU, as few calls as that takes.

Two things have them: :class:`multiring.collectives.drivers.device_cupy.CupyDevice`, and
:class:`multiring.collectives.drivers.device_simulator.SimulatedDevice`, whose memory is shared memory of the host.
Everything above this line runs on both.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from multiring.errors import ArgumentError, DeviceError
from multiring.kernels.cuda.homes import SIMULATED
from multiring.kernels.dtypes import DType

if TYPE_CHECKING:
    from multiring.kernels.cuda.launch import Launcher

__all__ = ["GRANULE_BYTES", "HANDLE_BYTES", "Device", "open_device", "why_no_device"]

GRANULE_BYTES = 2 << 20
"""Exported memory is a multiple of this: a smaller allocation shares its page, and so its handle, with others."""

HANDLE_BYTES = 64
"""Bytes of a handle that other processes open."""


class Device(Protocol):
    """One GPU as this process sees it.

    Attributes
    ----------
    uuid : str
        The same for every process that uses this GPU, and for no other GPU.
    name : str
        For messages.
    launcher : Launcher
        Where kernels run.

    Notes
    -----
    Addresses are those of unified addressing: host and device memory never share one. Calls raise
    :class:`multiring.DeviceError` where the driver refuses.
    """

    uuid: str
    name: str
    launcher: Launcher

    def use(self) -> None:
        """Make this GPU the calling thread's; anything else may follow."""

    def allocate(self, n_bytes: int) -> int:
        """Return the address of memory that can be exported: whole granules, of any content."""
        ...

    def free(self, address: int) -> None:
        """Give back what :meth:`allocate` returned."""

    def export(self, address: int) -> bytes:
        """Return the handle of a whole allocation."""
        ...

    def open(self, handle: bytes) -> int:
        """Map another process's allocation; once for each handle."""
        ...

    def close(self, address: int) -> None:
        """Undo :meth:`open`, before the owner frees."""

    def can_access_peer(self, uuid: str) -> bool:
        """Whether this GPU says that it reads and writes the memory of another."""
        ...

    def register_host(self, address: int, n_bytes: int) -> int:
        """Pin host memory and let kernels use it; return its address for kernels."""
        ...

    def unregister_host(self, address: int) -> None:
        """Undo :meth:`register_host`, of the host's address."""

    def copy(self, destination: int, source: int, n_bytes: int, stream: int) -> None:
        """Copy bytes in stream order, from and to anywhere; ordinary host memory may be used again at once."""

    def copy_elements(self, destination: NDArray[Any], source: NDArray[Any], stream: int) -> None:
        """Copy between two arrays of any strides, of equal shape and type, in stream order.

        They say where the elements lie, and are not read: their memory is the device's.
        """

    def synchronize(self, stream: int) -> None:
        """Wait for one stream."""

    def wait_for_all(self) -> None:
        """Wait for all streams: before memory is lent again that kernels may still use, and nowhere else."""

    def mark(self, stream: int) -> int:
        """Return an event that is reached when all that is in a stream now is done."""
        ...

    def follow(self, stream: int, event: int) -> None:
        """Let a stream wait for an event."""

    def reached(self, event: int) -> bool:
        """Whether an event has been reached."""
        ...

    def forget(self, event: int) -> None:
        """Give back an event."""

    def private_stream(self) -> int:
        """Return a stream of the library's own, which the default stream does not wait for."""
        ...

    def is_capturing(self, stream: int) -> bool:
        """Whether a stream records a graph."""
        ...

    def free_bytes(self) -> int:
        """Return how much memory is free."""
        ...

    def check_here(self, name: str, address: int) -> None:
        """Refuse an array that lies on another GPU.

        Raises
        ------
        ArgumentError
        """

    def array(self, address: int, shape: tuple[int, ...], dtype: DType, owner: Any) -> Any:
        """Return what the user gets: an array over memory that ``owner`` keeps."""
        ...


@functools.cache
def open_device(ordinal: int | None = None) -> Device:
    """Return this process's GPU: the simulator's if Numba's is on, else CuPy's.

    Parameters
    ----------
    ordinal : int, optional
        CuPy's number; None: the thread's current GPU.

    Raises
    ------
    ArgumentError
        If there is none.
    """
    if SIMULATED:
        from multiring.collectives.drivers.device_simulator import SimulatedDevice

        return SimulatedDevice()
    try:
        from multiring.collectives.drivers.device_cupy import CupyDevice

        return CupyDevice(ordinal)
    except ImportError as error:
        raise ArgumentError(
            f"device: got 'cuda', and CuPy is not installed ({error}); wanted CuPy and a GPU: pip install"
            " 'multiring[cuda13]' (or cuda12), or use device='host'"
        ) from error
    except DeviceError as error:
        raise ArgumentError(
            f"device: got 'cuda', wanted a GPU that the CUDA driver can open ({error}); use device='host', or look at"
            " nvidia-smi and CUDA_VISIBLE_DEVICES"
        ) from error


def why_no_device() -> str | None:
    """Return why this process has no GPU to use, or None."""
    try:
        open_device()
    except ArgumentError as error:
        return str(error)
    return None
