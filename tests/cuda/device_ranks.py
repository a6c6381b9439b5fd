"""Ranks of simulated GPUs: a host's communicator and a GPU's in each process, and calls made on both alike."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

import multiring as mr
from multiring.collectives.communicator import Communicator
from multiring.collectives.cuda_executor import CudaExecutor
from multiring.collectives.drivers.device_simulator import SimulatedArray
from multiring.collectives.executor import Executor
from multiring.kernels.dtypes import DTYPES, numpy_dtype
from tests.kernels.span_harness import same_bits

SLOT_BYTES = 1024
POISON = 0xEE
PLACES = ("ordinary", "symmetric", "mixed")


def executor_of(comm: Communicator) -> CudaExecutor:
    """Return what a communicator of GPUs runs on."""
    executor = comm._engine.executor
    assert isinstance(executor, CudaExecutor)
    return executor


def cuda_comm(rank: int, exchange: Any, size: int, mode: str | None = None, **options: Any) -> Communicator:
    """Return this rank's communicator of simulated GPUs."""
    if mode is not None:
        os.environ["MULTIRING_CUDA_MODE"] = mode
    return Communicator(
        CudaExecutor(rank, size, exchange, **cast(Any, {"timeout_s": 30.0, "slot_bytes": SLOT_BYTES} | options))
    )


@dataclass
class Both:
    """A host's communicator and a GPU's of the same ranks.

    Attributes
    ----------
    place : str
        Where arrays of the GPU lie: see :data:`PLACES`; mixed: differently on each rank, and inputs than outputs.
    """

    host: Communicator
    cuda: Communicator
    place: str = "ordinary"
    arrays: int = field(default=0)

    @property
    def rank(self) -> int:
        return self.host.rank

    @property
    def size(self) -> int:
        return self.host.size

    def values(self, dtype: str, count: int, seed: int = 0) -> Any:
        """Return this rank's values: numbers near one, and where the type has them zeros of both signs, inf and NaN."""
        generator = np.random.default_rng([seed, self.rank, count])
        kind = numpy_dtype(DTYPES[dtype])
        if DTYPES[dtype].kind not in ("float", "complex"):
            if dtype == "bool":
                return generator.integers(0, 2, count).astype(bool)
            return generator.integers(-50 if dtype.startswith("i") else 0, 50, count).astype(kind)
        found = generator.normal(size=count).astype(kind)
        odd = np.array([-0.0, 0.0, np.inf, np.nan, 1e-40, -1.5, 60000.0])
        with np.errstate(over="ignore"):
            found[: len(odd)] = np.roll(odd, self.rank)[: len(found)].astype(kind)
        return found

    def on_gpu(self, values: Any) -> Any:
        """Return a copy in the GPU's memory."""
        self.arrays += 1
        symmetric = self.place == "symmetric" or (self.place == "mixed" and (self.arrays + self.rank) % 2)
        if not symmetric:
            return SimulatedArray.of(values)
        made = cast(Any, self.cuda.empty(np.shape(values), str(np.asarray(values).dtype)))
        made.numpy()[...] = values
        return made

    def poison(self, dtype: str, count: int) -> Any:
        """Return what no result is."""
        kind = numpy_dtype(DTYPES[dtype])
        return np.full(count * kind.itemsize, POISON if dtype != "bool" else 1, np.uint8).view(kind)

    def compare(self, call: Callable[[Communicator, Callable[[Any], Any]], list[Any]], what: str) -> list[Any]:
        """Make a call on both, ``call(comm, array_of)``, compare all arrays that it returns, and return the host's."""
        wanted = call(self.host, np.array)
        got = call(self.cuda, self.on_gpu)
        assert len(wanted) == len(got)
        for k, (a, b) in enumerate(zip(got, wanted, strict=True)):
            if isinstance(a, SimulatedArray):
                same_bits(a.numpy().ravel(), np.asarray(b).ravel(), f"{what}, array {k}, rank {self.rank}")
                assert a.numpy().shape == np.shape(b), what
            else:
                assert a is None
                assert b is None
        return wanted


def run_cases(
    rank: int, exchange: Any, size: int, mode: str, cases: dict[str, Callable[[Both], None]]
) -> dict[str, str]:
    """Run every case in this rank's process; return what failed, by name."""
    host = Communicator(Executor(rank, size, exchange, timeout_s=30.0))
    both = Both(host, cuda_comm(rank, exchange, size, mode))
    assert executor_of(both.cuda).mode == mode
    found = dict.fromkeys(cases, "not reached")
    for name, case in cases.items():
        try:
            case(both)
            del found[name]
        except mr.MultiringError:
            found[name] = traceback.format_exc()
            break  # The communicator is closed.
        except BaseException:
            found[name] = traceback.format_exc()
    both.host.close()
    both.cuda.close()
    return found
