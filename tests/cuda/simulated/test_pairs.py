"""GPUs that do not all reach each other: what they exchange goes through pinned host memory, with the same results."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import pytest

from multiring.collectives.communicator import Communicator
from multiring.collectives.drivers.cuda_ipc import CudaIpc
from multiring.collectives.drivers.device_simulator import SimulatedDevice
from multiring.collectives.executor import Executor
from multiring.errors import DeviceError
from tests.cuda.device_ranks import Both, cuda_comm, executor_of
from tests.cuda.driver_cases import Case, address, cases
from tests.support.ranks import results, run_ranks

pytestmark = pytest.mark.sim

NAMES = (
    "all_reduce float32 symmetric in place",
    "all_reduce float32 mixed out of place",
    "reduce_scatter bfloat16 symmetric out of place",
    "wire bfloat16",
    "ring int32 symmetric",
    "all_gather of 257 symmetric",
    "all_to_all mixed",
    "messages",
    "layouts",
    "forms",
)


class OwnGpu(SimulatedDevice):
    """A GPU for each rank, which may not reach others."""

    def __init__(self, rank: int, unreachable: tuple[int, ...], lies: bool) -> None:
        super().__init__()
        self.uuid, self._unreachable, self._lies = f"gpu {rank}", unreachable, lies

    def can_access_peer(self, uuid: str) -> bool:
        return self._lies or int(uuid.split()[1]) not in self._unreachable

    def open(self, handle: bytes) -> int:
        if self._lies:
            raise DeviceError("cudaErrorPeerAccessUnsupported: peer access is not supported between these two devices")
        return super().open(handle)


def chosen(size: int) -> dict[str, Case]:
    found = cases(size)
    return {name: found[name] for name in NAMES}


def body(rank: int, exchange: Any, size: int, broken: tuple[int, int], lies: bool) -> tuple[Any, ...]:
    unreachable = tuple(broken[1 - k] for k in range(2) if broken[k] == rank)
    gpu = OwnGpu(rank, unreachable, lies and bool(unreachable))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        comm = cuda_comm(rank, exchange, size, device=gpu)
    both = Both(Communicator(Executor(rank, size, exchange, timeout_s=30.0)), comm)
    for case in chosen(size).values():
        case(both)
    executor = executor_of(comm)
    symmetric = executor.is_symmetric(address(comm.empty(4)), 16)
    node = executor._node
    assert isinstance(node, CudaIpc)
    both.host.close()
    comm.close()
    return executor.mode, sorted(node.broken), node.concerned, symmetric, [str(w.message)[:24] for w in warned]


@cache
def outcome(lies: bool) -> list[Any]:
    answers: list[Any] = results(run_ranks(3, body, 3, (0, 2), lies))
    return answers


def test_a_pair_without_peer_access() -> None:
    for rank, found in enumerate(outcome(False)):
        warned = ["the GPUs of ranks 0 and "] if rank == 0 else []
        assert found == ("stepped", [(0, 2)], [0, 2], rank == 1, warned)


def test_ranks_whose_handles_do_not_open() -> None:
    for found in outcome(True):
        assert found[:3] == ("stepped", [(0, 1), (0, 2), (1, 2)], [0, 1, 2])


def fused(rank: int, exchange: Any) -> str:
    comm = cuda_comm(rank, exchange, 2, device=OwnGpu(rank, (), False))
    mode = executor_of(comm).mode
    comm.close()
    return mode


def test_gpus_of_their_own_run_fused_kernels() -> None:
    assert results(run_ranks(2, fused)) == ["fused", "fused"]
