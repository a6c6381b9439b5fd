"""A CUDA runtime that is none, with CuPy's names: it moves bytes in host memory, and refuses what CUDA refuses.

One :class:`Machine` has several GPUs; each process of it is a :class:`Runtime`.
"""

from __future__ import annotations

import ctypes
import itertools
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np

from multiring.collectives.drivers.device_cupy import CupyDevice
from multiring.kernels.cuda.launch import Simulator


class CUDARuntimeError(RuntimeError):
    """As CuPy's, which is known by its name."""


class Machine:
    """GPUs, their memory, and what is open where.

    Parameters
    ----------
    n_gpus : int
    unreachable : set of (int, int)
        Pairs of GPUs without peer access, in both orders.
    lying : set of (int, int)
        Pairs that say they have it, and whose copies bring zeros.
    """

    def __init__(
        self, n_gpus: int, unreachable: set[tuple[int, int]] | None = None, lying: set[tuple[int, int]] | None = None
    ) -> None:
        self.n_gpus = n_gpus
        self.unreachable = {p for a, b in unreachable or set() for p in ((a, b), (b, a))}
        self.lying = {p for a, b in lying or set() for p in ((a, b), (b, a))}
        self.memory: dict[int, tuple[Any, int, Runtime]] = {}
        self.handles: dict[bytes, int] = {}
        self.opened: Counter[int] = Counter()
        self.numbers = itertools.count(1)

    def owner(self, address: int) -> Runtime | None:
        """Return whose device memory an address is."""
        for start, (room, _, runtime) in self.memory.items():
            if start <= address < start + room.nbytes:
                return runtime
        return None


class Runtime:
    """``cupy.cuda.runtime`` of one process."""

    cudaIpcMemLazyEnablePeerAccess = 1  # noqa: N815
    cudaDevAttrCanUseHostPointerForRegisteredMem = 91  # noqa: N815
    memcpyDefault = 4  # noqa: N815
    eventDisableTiming = 2  # noqa: N815
    streamNonBlocking = 1  # noqa: N815

    def __init__(self, machine: Machine, gpu: int) -> None:
        self.machine, self.gpu = machine, gpu
        self.calls: Counter[str] = Counter()
        self.refused: set[str] = set()
        self.mine: set[int] = set()
        self.pinned: dict[int, int] = {}
        self._opened: set[int] = set()
        self.events: dict[int, int] = {}
        self.capturing: set[int] = set()
        self._numbers = itertools.count(1)

    def _called(self, name: str) -> None:
        self.calls[name] += 1
        if name in self.refused:
            raise CUDARuntimeError(f"cudaErrorInvalidValue: {name}: invalid argument")

    def getDeviceCount(self) -> int:
        return self.machine.n_gpus

    def getDevice(self) -> int:
        return self.gpu

    def setDevice(self, ordinal: int) -> None:
        assert ordinal == self.gpu

    def getDeviceProperties(self, ordinal: int) -> dict[str, Any]:
        return {"name": b"Fake GPU", "uuid": bytes([ordinal] * 16)}

    def deviceGetPCIBusId(self, ordinal: int) -> str:
        return f"0000:{ordinal:02x}:00.0"

    def deviceGetAttribute(self, attribute: int, ordinal: int) -> int:
        return 1

    def deviceCanAccessPeer(self, device: int, peer: int) -> int:
        self._called("deviceCanAccessPeer")
        return int((device, peer) not in self.machine.unreachable)

    def malloc(self, n_bytes: int) -> int:
        self._called("malloc")
        assert n_bytes % (2 << 20) == 0, "a smaller allocation shares its handle"
        room = np.full(n_bytes, 0xA5, np.uint8)
        address = int(room.ctypes.data)
        self.machine.memory[address] = room, self.gpu, self
        self.mine.add(address)
        return address

    def free(self, address: int) -> None:
        self._called("free")
        if address == 0:
            return
        assert self.machine.opened[address] == 0, "freed while a peer has it open"
        self.mine.remove(address)
        del self.machine.memory[address]
        self.machine.handles = {h: a for h, a in self.machine.handles.items() if a != address}

    def ipcGetMemHandle(self, address: int) -> bytes:
        self._called("ipcGetMemHandle")
        assert address in self.mine, "a handle names an allocation"
        assert address not in self.machine.handles.values(), "exported twice"
        handle = next(self.machine.numbers).to_bytes(64, "little")
        self.machine.handles[handle] = address
        return handle

    def ipcOpenMemHandle(self, handle: bytes, flags: int) -> int:
        self._called("ipcOpenMemHandle")
        assert flags == self.cudaIpcMemLazyEnablePeerAccess
        address = self.machine.handles.get(handle)
        if address is None:
            raise CUDARuntimeError("cudaErrorInvalidValue: invalid argument")
        if address in self.mine:
            raise CUDARuntimeError("cudaErrorDeviceUninitialized: invalid device context")
        if address in self.opened_here:
            raise CUDARuntimeError("cudaErrorAlreadyMapped: resource already mapped")
        self.opened_here.add(address)
        self.machine.opened[address] += 1
        return address

    @property
    def opened_here(self) -> set[int]:
        return self._opened

    def ipcCloseMemHandle(self, address: int) -> None:
        self._called("ipcCloseMemHandle")
        self.opened_here.remove(address)
        self.machine.opened[address] -= 1

    def hostRegister(self, address: int, n_bytes: int, flags: int) -> None:
        self._called("hostRegister")
        assert flags == 3
        self.pinned[address] = n_bytes

    def hostUnregister(self, address: int) -> None:
        self._called("hostUnregister")
        del self.pinned[address]

    def memcpyAsync(self, destination: int, source: int, n_bytes: int, kind: int, stream: int) -> None:
        self._called("memcpyAsync")
        owners = [self.machine.owner(a) for a in (destination, source)]
        pair = owners[0] and owners[1] and (owners[0].gpu, owners[1].gpu)
        if pair in self.machine.lying:
            ctypes.memset(destination, 0, n_bytes)
        else:
            ctypes.memmove(destination, source, n_bytes)

    def streamSynchronize(self, stream: int) -> None:
        self._called("streamSynchronize")

    def deviceSynchronize(self) -> None:
        self._called("deviceSynchronize")

    def streamCreateWithFlags(self, flags: int) -> int:
        assert flags == self.streamNonBlocking
        return 77

    def streamIsCapturing(self, stream: int) -> bool:
        if stream == 0 and self.capturing:
            raise CUDARuntimeError("cudaErrorStreamCaptureImplicit: operation would make the legacy stream depend")
        return stream in self.capturing

    def eventCreateWithFlags(self, flags: int) -> int:
        assert flags == self.eventDisableTiming
        event = next(self._numbers)
        self.events[event] = 0
        return event

    def eventRecord(self, event: int, stream: int) -> None:
        self.events[event] = 600  # cudaErrorNotReady

    def eventQuery(self, event: int) -> int:
        return self.events[event]

    def eventDestroy(self, event: int) -> None:
        del self.events[event]

    def streamWaitEvent(self, stream: int, event: int) -> None:
        assert event in self.events

    def memGetInfo(self) -> tuple[int, int]:
        return 1 << 34, 1 << 35

    def pointerGetAttributes(self, address: int) -> Any:
        owner = self.machine.owner(address)
        return SimpleNamespace(device=owner.gpu if owner else -2, devicePointer=address)


def device(runtime: Runtime) -> CupyDevice:
    """Return the device layer over a process's runtime."""
    return CupyDevice(runtime.gpu, runtime, lambda _: Simulator())
