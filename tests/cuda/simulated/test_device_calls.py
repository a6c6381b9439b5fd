"""What calls on GPUs accept, refuse, and wait for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import multiring as mr
from multiring.collectives.drivers.device_simulator import SimulatedArray, SimulatedDevice
from tests.cuda.device_ranks import cuda_comm, executor_of
from tests.cuda.driver_cases import address
from tests.support.ranks import results, run_ranks

pytestmark = pytest.mark.sim

ON_THE_HOST = (
    r"ndarray in host memory on a communicator of device 'cuda', wanted an array in CUDA memory; copy it with cupy\."
)
ON_A_GPU = r"all_reduce: x: got SimulatedArray in CUDA memory on a communicator of device 'host', .*device='cuda'"
CAPTURING = (
    "stream: got 0x1f, which is capturing a graph, wanted one that is not: in stepped mode the host waits between steps"
)


class Recorder(SimulatedDevice):
    """A GPU that notes which streams are used, and may be capturing."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[Any] = []
        self.capturing: set[int] = set()
        real = self.launcher.prepare

        def prepare(*args: Any) -> Any:
            prepared = real(*args)
            go = prepared._go

            def noted(stream: int) -> None:
                self.notes.append(("launch", stream))
                go(stream)

            prepared._go = noted
            return prepared

        self.launcher = cast(Any, SimpleNamespace(**{n: getattr(self.launcher, n) for n in NAMES}, prepare=prepare))

    def synchronize(self, stream: int) -> None:
        self.notes.append(("synchronize", stream))

    def follow(self, stream: int, event: int) -> None:
        self.notes.append(("follow", stream))

    def is_capturing(self, stream: int) -> bool:
        return stream in self.capturing


NAMES = ("processors", "allocate", "free", "upload", "download", "table", "synchronize")


class OnStream:
    """An array that says which stream it is ready in."""

    def __init__(self, values: Any, stream: int | None) -> None:
        self._array = SimulatedArray.of(values)
        self.dtype = self._array.dtype
        self.__cuda_array_interface__ = self._array.__cuda_array_interface__ | {"stream": stream}

    def numpy(self) -> Any:
        return self._array.numpy()


def alone(mode: str) -> tuple[Any, Recorder]:
    gpu = Recorder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MULTIRING_CUDA_MODE", mode)
        return cuda_comm(0, lambda payload: [payload], 1, device=gpu), gpu


def ones(count: int = 5) -> Any:
    return np.ones(count, np.float32)


@pytest.mark.parametrize("mode", ["stepped", "fused"])
def test_the_arrays_streams_come_first(mode: str) -> None:
    comm, gpu = alone(mode)
    x, out = OnStream(ones(), 11), OnStream(np.zeros(5, np.float32), 12)
    comm.all_reduce(x, out)
    first = gpu.notes.index(("launch", 11))
    if mode == "stepped":
        assert {("synchronize", 11), ("synchronize", 12)} <= set(gpu.notes[:first])
        assert ("synchronize", 11) in gpu.notes[first:]
    else:
        assert ("follow", 11) in gpu.notes[:first]
        assert ("synchronize", 11) not in gpu.notes, "a fused call does not wait"
    assert (out.numpy() == 1).all()
    gpu.notes.clear()
    comm.all_reduce(x, out, stream=SimpleNamespace(ptr=13))
    launches = [n for n in gpu.notes if n[0] == "launch"]
    assert launches == [("launch", 13)] * len(launches) != []
    gpu.notes.clear()
    comm.raw.all_reduce(address(x), address(out), 5, "float32", "sum", 14)
    assert ("launch", 14) in gpu.notes
    comm.all_reduce(OnStream(ones(), None))
    assert gpu.notes[-2 if mode == "stepped" else -1] == ("launch", 0)
    comm.close()


@pytest.mark.parametrize("mode", ["stepped", "fused"])
def test_one_fused_kernel_after_the_other(mode: str) -> None:
    comm, gpu = alone(mode)
    comm.all_reduce(OnStream(ones(), 21))
    gpu.notes.clear()
    comm.all_reduce(OnStream(ones(), 22))
    assert (("follow", 22) in gpu.notes) == (mode == "fused")
    comm.close()


def test_stepped_calls_are_not_captured() -> None:
    comm, gpu = alone("stepped")
    gpu.capturing.add(31)
    x = OnStream(ones(), 31)
    with pytest.raises(mr.ArgumentError, match=CAPTURING):
        comm.all_reduce(x)
    gpu.capturing.clear()
    assert comm.all_reduce(x) is x
    comm.close()


def test_fused_calls_are_captured_once_they_are_known() -> None:
    comm, gpu = alone("fused")
    gpu.capturing.add(31)
    x = OnStream(ones(), 31)
    with pytest.raises(mr.ArgumentError, match="capturing a graph, for a call on arrays that this communicator has"):
        comm.all_reduce(x)
    gpu.capturing.clear()
    comm.all_reduce(x)
    gpu.capturing.add(31)
    gpu.notes.clear()
    comm.all_reduce(x)
    assert gpu.notes == [("launch", 31)], "nothing but the kernel is captured"
    gpu.capturing.clear()
    comm.close()


def wrong_memory(rank: int, exchange: Any) -> int:
    comm = cuda_comm(rank, exchange, 2, "stepped")
    host, gpu = ones(), SimulatedArray.of(ones())
    calls: list[Any] = [
        lambda: comm.all_reduce(host),
        lambda: comm.all_reduce(gpu, host),
        lambda: comm.all_gather(host),
        lambda: comm.broadcast(host),
        lambda: comm.all_reduce_many([host, ones(3)]),
    ]
    for call in calls:
        with pytest.raises(mr.ArgumentTypeError, match=ON_THE_HOST):
            call()
    with pytest.raises(mr.ArgumentTypeError, match="send: x: got ndarray in host memory"):
        comm.send(host, 1 - rank)
    with pytest.raises(mr.ArgumentTypeError, match="register: x: got ndarray in host memory"):
        comm.register(host)
    with pytest.raises(mr.ArgumentError, match="device memory of another library cannot be made symmetric"):
        comm.register(gpu)
    with pytest.raises(mr.ArgumentTypeError, match=r"ShardedOptimizer: .* in CUDA memory, wanted host memory"):
        mr.ShardedOptimizer(comm, [gpu], mr.optim.SGD(0.1))
    with pytest.raises(mr.ArgumentError, match="got a communicator of device 'cuda', wanted one of"):
        mr.ShardedOptimizer(comm, [host], mr.optim.SGD(0.1))
    comm.all_reduce(gpu)
    assert gpu.numpy().tolist() == [2.0] * 5
    comm.close()
    return 1


def test_arrays_in_host_memory_are_refused() -> None:
    assert results(run_ranks(2, wrong_memory)) == [1, 1]


def test_arrays_in_cuda_memory_are_refused_on_the_host() -> None:
    comm = mr.init(device="host")
    with pytest.raises(mr.ArgumentTypeError, match=ON_A_GPU):
        comm.all_reduce(SimulatedArray.of(ones()))
    with pytest.raises(mr.ArgumentError, match="all_reduce: stream: got 5, wanted 0: host memory has no streams"):
        comm.all_reduce(ones(), stream=5)
    assert comm.all_reduce(ones(), stream=0).tolist() == [1.0] * 5
    comm.close()


def strided(rank: int, exchange: Any, mode: str) -> Any:
    comm = cuda_comm(rank, exchange, 2, mode)
    memory = SimulatedArray.of(np.arange(24, dtype=np.float32).reshape(4, 6))
    every_second = SimpleNamespace(
        dtype=memory.dtype,
        __cuda_array_interface__=memory.__cuda_array_interface__ | {"shape": (4, 3), "strides": (24, 8)},
    )
    comm.all_reduce(every_second)
    comm.close()
    return memory.numpy()


@pytest.mark.parametrize("mode", ["stepped", "fused"])
def test_strided_arrays_are_packed_and_written_back(mode: str) -> None:
    wanted = np.arange(24, dtype=np.float32).reshape(4, 6)
    wanted[:, ::2] *= 2
    for found in results(run_ranks(2, strided, mode)):
        assert (found == wanted).all()


def direct(rank: int, exchange: Any) -> Any:
    """Fused calls on symmetric arrays go past the slots once the peers have opened their segment."""
    comm = cuda_comm(rank, exchange, 2, "fused")
    line = executor_of(comm)._line
    assert line is not None
    big = cast(Any, comm.empty(20 << 20, "uint8"))  # a segment of its own
    address = big.__cuda_array_interface__["data"][0]
    x = SimulatedArray.of(ones())
    before = line.reference(address, 100)
    for _ in range(2):
        comm.all_reduce(x)
        comm.barrier()
    after = line.reference(address, 100)
    comm.close()
    return before, after


def test_segments_are_published_when_all_peers_have_them() -> None:
    for before, after in results(run_ranks(2, direct)):
        assert (before, after) == (-1, 1 << 48)


def test_auto_does_not_take_the_simulator() -> None:
    comm = mr.init()
    assert comm.device == "host"
    comm.close()
    comm = mr.init(device="cuda")
    assert (comm.device, repr(comm)) == ("cuda", "Communicator(rank=0, size=1, device='cuda')")
    assert comm.all_reduce(SimulatedArray.of(ones())).numpy().tolist() == [1.0] * 5
    assert (comm.local_rank, comm.local_size, comm.n_nodes) == (0, 1, 1)
    comm.close()


class Part:
    """Some elements of a symmetric array, as a library's slice would be."""

    def __init__(self, comm: Any, first: int, count: int, *, over_dlpack: bool) -> None:
        self.whole: Any = comm.empty(first + count, "float32")
        self.whole.numpy()[:] = comm.rank + 1
        self._part = self.whole.numpy()[first:]
        self._over_dlpack = over_dlpack
        if not over_dlpack:
            interface = self.whole.__cuda_array_interface__
            self.__cuda_array_interface__ = interface | {
                "shape": (count,),
                "data": (interface["data"][0] + 4 * first, False),
            }

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, *, stream: int, **options: Any) -> Any:
        assert stream == 1
        return self._part.__dlpack__(**options)


def slices(rank: int, exchange: Any, mode: str) -> Any:
    comm = cuda_comm(rank, exchange, 2, mode)
    found = []
    for over_dlpack in (False, True):
        part = Part(comm, 5, 40, over_dlpack=over_dlpack)
        comm.barrier()
        assert comm.all_reduce(part) is part
        comm.check()
        found.append((part.whole.numpy()[:5].tolist(), set(part.whole.numpy()[5:].tolist())))
    comm.close()
    return found


@pytest.mark.parametrize("mode", ["stepped", "fused"])
def test_parts_of_symmetric_arrays(mode: str) -> None:
    for rank, found in enumerate(results(run_ranks(2, slices, mode))):
        assert found == [([rank + 1.0] * 5, {3.0})] * 2


def a_failing_gpu(rank: int, exchange: Any) -> Any:
    class Failing(SimulatedDevice):
        broken = False

        def synchronize(self, stream: int) -> None:
            if self.broken:
                raise mr.DeviceError("cudaErrorIllegalAddress: an illegal memory access was encountered")

    gpu = Failing()
    comm = cuda_comm(rank, exchange, 2, "stepped", device=gpu)
    x = SimulatedArray.of(ones())
    comm.all_reduce(x)
    gpu.broken = rank == 1
    with pytest.raises(mr.MultiringError) as raised:
        comm.all_reduce(x)
    with pytest.raises(mr.CommunicatorClosed, match="rank 1 aborted the communicator: cudaErrorIllegalAddress"):
        comm.barrier()
    return type(raised.value).__name__


def test_a_gpu_that_fails_is_told_to_all() -> None:
    assert results(run_ranks(2, a_failing_gpu)) == ["CommunicatorClosed", "DeviceError"]
