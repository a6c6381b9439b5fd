"""The driver's launches, with a driver that writes down what it is told: no GPU, no compiler."""

from __future__ import annotations

import ctypes
import sys
import types
from typing import Any

import numpy as np
import pytest

from multiring.errors import ArgumentError
from multiring.kernels.cuda import launch
from multiring.kernels.cuda.compile import Built, Kernel
from multiring.kernels.cuda.homes import SIMULATED

pytestmark = pytest.mark.skipif(SIMULATED, reason="this process is the simulator's")


class Calls(list[tuple[Any, ...]]):
    """What the driver was told."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    told = Calls()
    memory: dict[int, Any] = {}

    def launch_kernel(function: int, *rest: int) -> None:
        *shape, stream, parameters, extra = rest
        pointers = (ctypes.c_void_p * 3).from_address(parameters)
        values = [ctypes.c_int64.from_address(int(p or 0)).value for p in pointers]
        told.append((function, tuple(shape), stream, values, extra))

    def allocate(n_bytes: int) -> int:
        room = ctypes.create_string_buffer(n_bytes)
        memory[ctypes.addressof(room)] = room
        return ctypes.addressof(room)

    def load(cubin: bytes) -> int:
        told.append(("load", cubin))
        return 7

    driver = types.SimpleNamespace(
        launchKernel=launch_kernel,
        moduleLoadData=load,
        moduleGetFunction=lambda module, name: module * 10,
        occupancyMaxActiveBlocksPerMultiprocessor=lambda function, threads, shared: 2,
    )
    runtime = types.SimpleNamespace(
        setDevice=lambda device: None,
        free=lambda address: memory.pop(address, None),
        malloc=allocate,
        memcpy=lambda to, source, n, kind: ctypes.memmove(to, source, n),
        memcpyHostToDevice=1,
        memcpyDeviceToHost=2,
        deviceGetAttribute=lambda attribute, device: {75: 9, 76: 0, 16: 132}[attribute],
        cudaDevAttrComputeCapabilityMajor=75,
        cudaDevAttrComputeCapabilityMinor=76,
        cudaDevAttrMultiProcessorCount=16,
    )
    cuda = types.SimpleNamespace(driver=driver, runtime=runtime)
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    monkeypatch.setattr(
        launch, "build", lambda kernel, capabilities: {c: Built(b"cubin", "", 1, 0, 0) for c in capabilities}
    )
    return told


KERNEL = Kernel("test", lambda: pytest.fail("was compiled"), 3, 256, 1024)


def test_a_launch_passes_the_parameter_block(calls: Calls) -> None:
    where = launch.Driver(0)
    assert where.capability == (9, 0)
    assert where.resident_blocks(KERNEL) == 264
    prepared = where.prepare(KERNEL, [1 << 40, -5, 3], 12, "kept")
    prepared(99)
    prepared.arguments[1] = 6
    prepared()
    assert calls == [
        ("load", b"cubin"),
        (70, (12, 1, 1, 256, 1, 1, 0), 99, [1 << 40, -5, 3], 0),
        (70, (12, 1, 1, 256, 1, 1, 0), 0, [1 << 40, 6, 3], 0),
    ]


def test_memory_and_tables(calls: Calls) -> None:
    where = launch.Driver(0)
    address, kept = where.table([1, 2, 3])
    back = np.zeros(3, np.int64)
    where.download(back, address)
    assert back.tolist() == [1, 2, 3]
    del kept


def test_without_cupy_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    launch.launcher.cache_clear()
    with pytest.raises(
        ArgumentError, match=r"CuPy is not installed .* wanted CuPy and a GPU: pip install .*NUMBA_ENABLE"
    ):
        launch.launcher(0)


def test_without_a_gpu_the_reason_is_named(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    class CUDARuntimeError(RuntimeError):
        pass

    def fail(device: int) -> None:
        raise CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")

    monkeypatch.setattr(sys.modules["cupy.cuda"].runtime, "setDevice", fail)
    launch.launcher.cache_clear()
    with pytest.raises(
        ArgumentError, match=r"device: got 0, wanted a GPU that the CUDA driver can open \(cudaErrorNoDevice"
    ):
        launch.launcher(0)
