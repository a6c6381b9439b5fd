"""One rank of ``gpucheck``'s collectives between processes: started by ``multiring launch``, compared with numpy.

Rank 0 writes one line of JSON to the file that it is given: what differs, and how long calls take.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import multiring as mr
from multiring.collectives.device_view import Room, device_view_of
from multiring.collectives.drivers.device import Device, open_device
from multiring.kernels.dtypes import DTYPES, dtype_of, numpy_dtype

__all__ = ["check_collectives", "main"]

COUNT = 1000
REPEATS = 10


class Arrays:
    """Arrays in device memory, filled from the host and read back.

    Parameters
    ----------
    comm : Communicator
    symmetric : bool
        Whether peers reach them directly.
    """

    def __init__(self, comm: Any, symmetric: bool) -> None:
        self._comm, self._symmetric = comm, symmetric
        self._device: Device = open_device()

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return an array of any content."""
        if self._symmetric:
            return self._comm.empty(shape, dtype)
        kind = dtype_of(dtype)
        room = Room(int(np.prod(shape, dtype=np.int64)) * kind.itemsize)
        return self._device.array(room.address, shape, kind, room)

    def put(self, values: NDArray[Any]) -> Any:
        """Return a copy of a host array."""
        made = self.empty(values.shape, dtype_of(values.dtype).name)
        self._device.copy(device_view_of(made).address, values.ctypes.data, values.nbytes, 0)
        self._device.synchronize(0)
        return made

    def get(self, array: Any) -> NDArray[Any]:
        """Return a copy on the host."""
        view = device_view_of(array)
        found: NDArray[Any] = np.empty(view.shape, numpy_dtype(view.dtype))
        self._device.wait_for_all()
        self._device.copy(found.ctypes.data, view.address, found.nbytes, 0)
        self._device.synchronize(0)
        return found


def _values(dtype: str, count: int, rank: int) -> NDArray[Any]:
    """Return small integers, so that any order of adding gives one exact answer."""
    drawn = np.random.default_rng([rank, count]).integers(-8 if DTYPES[dtype].kind != "uint" else 0, 9, count)
    return drawn.astype(numpy_dtype(DTYPES[dtype]))


def check_collectives(comm: Any, count: int = COUNT) -> dict[str, str]:
    """Compare collectives on arrays of all kinds with numpy; return what differs, by name: empty where nothing does."""
    rank, size = comm.rank, comm.size
    found: dict[str, str] = {}

    def compare(name: str, got: NDArray[Any], wanted: NDArray[Any]) -> None:
        same = np.array_equal(got, wanted)
        found[name] = "ok" if same else f"{int((got != wanted).sum())} of {got.size} elements differ"

    for symmetric in (False, True):
        arrays = Arrays(comm, symmetric)
        place = "symmetric" if symmetric else "ordinary"
        for dtype in ("float32", "bfloat16", "int32"):
            xs = [_values(dtype, count, r) for r in range(size)]
            total = np.sum([x.astype(np.float64) for x in xs], axis=0).astype(xs[0].dtype)
            x = arrays.put(xs[rank])
            compare(f"all_reduce {dtype} {place}", arrays.get(comm.all_reduce(x)), total)
            shares = np.array_split(total, size)
            share = arrays.empty((len(shares[rank]),), dtype)
            x = arrays.put(xs[rank])
            got = arrays.get(comm.reduce_scatter(x, share))
            compare(f"reduce_scatter {dtype} {place}", got, shares[rank])
            compare(f"all_gather {dtype} {place}", arrays.get(comm.all_gather(x)), np.concatenate(xs))
            got = arrays.get(comm.broadcast(arrays.put(xs[rank]), root=size - 1))
            compare(f"broadcast {dtype} {place}", got, xs[size - 1])
            whole = np.resize(xs[rank], size * count)
            got = arrays.get(comm.all_to_all(arrays.put(whole)))
            compare(f"all_to_all {dtype} {place}", got, _exchanged(xs, rank, count))
        x = arrays.put(_values("float32", count, rank))
        y = arrays.empty((count,), "float32")
        comm.send_recv(x, (rank + 1) % size, y, (rank - 1) % size)
        compare(f"send_recv {place}", arrays.get(y), _values("float32", count, (rank - 1) % size))
        x = arrays.put(_values("float32", count, rank))
        comm.all_reduce(x, wire="bfloat16", check=True)
        total = np.sum([_values("float32", count, r) for r in range(size)], axis=0)
        compare(f"all_reduce float32 over bfloat16 {place}", arrays.get(x), total)
    return found


def _exchanged(xs: Sequence[NDArray[Any]], rank: int, count: int) -> NDArray[Any]:
    size = len(xs)
    wholes = [np.resize(x, size * count) for x in xs]
    return np.concatenate([whole[rank * count : (rank + 1) * count] for whole in wholes])


def times_us(comm: Any, sizes: Sequence[int]) -> dict[str, float]:
    """Return the median time of an all_reduce of float32 on symmetric arrays, by bytes."""
    device = open_device()
    found: dict[str, float] = {}
    for n_bytes in sizes:
        x = comm.empty((n_bytes // 4,), "float32")
        taken: list[float] = []

        def call(x: Any = x) -> None:
            comm.all_reduce(x)
            device.synchronize(0)

        for _ in range(REPEATS):
            comm.barrier()
            taken.append(_seconds(call))
        found[str(n_bytes)] = 1e6 * float(np.median(taken))
    return found


def _seconds(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main(arguments: Sequence[str]) -> int:
    """Join, check, and write what rank 0 has found: ``FILE [BYTES ...]``."""
    path, sizes = Path(arguments[0]), [int(a) for a in arguments[1:]]
    with mr.init(device="cuda", timeout=60.0) as comm:
        found = check_collectives(comm)
        comm.check()
        answers = {"mode": _mode(comm), "collectives": found, "times_us": times_us(comm, sizes)}
        wrong = sum(text != "ok" for text in found.values())
        if comm.rank == 0:
            path.write_text(json.dumps(answers))
    return 1 if wrong else 0


def _mode(comm: Any) -> str:
    # The communicator says "cuda"; how is its executor's matter.
    return str(comm._engine.executor.mode)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
