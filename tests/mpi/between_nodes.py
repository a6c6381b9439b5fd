"""A rank's program: random calls on communicators of random layouts of nodes, compared with numpy. Run under mpiexec.

``between_nodes.py SEED LAYOUTS CALLS [LAYOUT]``: a layout is the node of each rank, such as 0011.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import multiring as mr
from multiring.collectives.schedules.algorithms import algorithms_for, build
from multiring.errors import ScheduleError

Array = NDArray[Any]

DTYPES = {
    "float32": np.float32,
    "float64": np.float64,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "int32": np.int32,
    "uint8": np.uint8,
    "int64": np.int64,
}
COLLECTIVES = (
    "all_reduce",
    "reduce",
    "broadcast",
    "reduce_scatter",
    "all_gather",
    "all_to_all",
    "gather",
    "scatter",
)
REDUCE: dict[str, Callable[..., Array]] = {"sum": np.sum, "max": np.max, "min": np.min}
COUNTS = (0, 1, 2, 3, 7, 64, 1000, 4096, 30_000, 200_000)


def join(layout: Sequence[int]) -> mr.Communicator:
    """Make a communicator in which ranks with equal numbers are one node."""
    os.environ["MULTIRING_HOST_ID"] = f"host {layout[MPI.COMM_WORLD.rank]}"
    comm = mr.Communicator.from_mpi(MPI.COMM_WORLD, timeout=60.0)
    assert comm.n_nodes == len(set(layout)), (comm.n_nodes, layout)
    assert comm.local_size == list(layout).count(layout[comm.rank])
    return comm


def names(collective: str, n_ranks: int) -> list[str]:
    """Return the algorithms that can be built for so many ranks."""
    found = []
    for name in algorithms_for(collective):
        try:
            build(name, collective, n_ranks)
        except ScheduleError:
            continue
        found.append(name)
    return found


def place(comm: mr.Communicator, rng: np.random.Generator, count: int, dtype: str) -> Array:
    """Return poisoned memory, symmetric or not: each rank decides for itself."""
    array: Array = comm.empty(count, dtype) if rng.random() < 0.5 else np.empty(count, DTYPES[dtype])
    array.view(np.uint8)[...] = 0xFF
    return array


def call(comm: mr.Communicator, shared: np.random.Generator, own: np.random.Generator, only: str | None) -> str:
    """Make one random call; what all ranks must agree on comes from ``shared``."""
    n, rank = comm.size, comm.rank
    name = only or str(shared.choice(COLLECTIVES))
    dtype = str(shared.choice(list(DTYPES)))
    algorithm = str(shared.choice(names(name, n))) if shared.random() < 0.8 else None
    count = int(shared.choice(COUNTS))
    root = int(shared.integers(n))
    op = str(shared.choice(["sum", "max", "min"]))
    wire = "bfloat16" if dtype == "float32" and shared.random() < 0.3 else None
    order = "rank" if algorithm is None and shared.random() < 0.3 else None
    given = [shared.integers(0, 4, n * count).astype(DTYPES[dtype]) for _ in range(n)]
    whole = REDUCE[op](np.stack([g[:count].astype(np.float64) for g in given]), axis=0)
    options: dict[str, Any] = {"algorithm": algorithm, "wire": wire}
    reducing = {**options, "op": op, "order": order}
    out = place(comm, own, n * count if name in ("all_gather", "gather", "all_to_all") else count, dtype)
    x = place(comm, own, n * count if name in ("reduce_scatter", "scatter", "all_to_all") else count, dtype)
    x[:] = given[rank][: len(x)]
    wanted: Array | None = whole
    match name:
        case "all_reduce":
            comm.all_reduce(x, out, **reducing)
        case "reduce":
            comm.reduce(x, out if rank == root else None, root=root, **reducing)
            wanted = whole if rank == root else None
        case "broadcast":
            out[:] = given[rank][:count] if rank == root else out
            comm.broadcast(out, root=root, algorithm=algorithm)
            wanted = given[root][:count]
        case "reduce_scatter":
            every = REDUCE[op](np.stack([g.astype(np.float64) for g in given]), axis=0)
            comm.reduce_scatter(x, out, **reducing)
            wanted = every[rank * count : (rank + 1) * count]
        case "all_gather":
            comm.all_gather(x, out, **options)
            wanted = np.concatenate([g[:count] for g in given])
        case "gather":
            comm.gather(x, out if rank == root else None, root=root, algorithm=algorithm)
            wanted = np.concatenate([g[:count] for g in given]) if rank == root else None
        case "scatter":
            comm.scatter(x if rank == root else None, out, root=root, algorithm=algorithm)
            wanted = given[root][rank * count : (rank + 1) * count]
        case "all_to_all":
            comm.all_to_all(x, out, **options)
            wanted = np.concatenate([g[rank * count : (rank + 1) * count] for g in given])
    what = f"{name} {algorithm} {count} {dtype} {op} root {root} wire {wire} order {order}"
    if wanted is not None:
        got = out.astype(np.float64)
        assert (got == wanted.astype(np.float64)).all(), f"{what}: rank {rank} got {got[:8]}, wanted {wanted[:8]}"
    if name in ("all_reduce", "broadcast", "all_gather"):
        copies = MPI.COMM_WORLD.allgather(out.tobytes())
        assert len(set(copies)) == 1, f"{what}: the ranks' bits differ"
    return what


def talk(comm: mr.Communicator, rng: np.random.Generator) -> None:
    """Send to all others and receive from all, all at once, then around a ring."""
    n, rank = comm.size, comm.rank
    count = int(rng.choice([0, 1, 5000, 300_000]))
    got = np.full((n, count), -1.0)
    with comm.group():
        for peer in range(n):
            if peer != rank:
                comm.send(np.full(count, 100.0 * rank + peer), peer)
        for peer in range(n):
            if peer != rank:
                comm.recv(got[peer], peer)
    for peer in range(n):
        assert peer == rank or (got[peer] == 100.0 * peer + rank).all(), (rank, peer, got[peer][:4])
    token = np.array([rank], dtype=np.int32)
    back = np.array([-1], dtype=np.int32)
    comm.send_recv(token, (rank + 1) % n, back, (rank - 1) % n)
    assert back[0] == (rank - 1) % n


def main() -> None:
    """Run the job."""
    seed, n_layouts, n_calls = (int(word) for word in sys.argv[1:4])
    world = MPI.COMM_WORLD
    shared = np.random.default_rng(seed)
    own = np.random.default_rng([seed, world.rank])
    for number in range(n_layouts):
        layout = (
            [int(node) for node in sys.argv[4]] if len(sys.argv) > 4 else shared.integers(0, 3, world.size).tolist()
        )
        comm = join(layout)
        for index in range(n_calls):
            call(comm, shared, own, COLLECTIVES[index] if number == 0 and index < len(COLLECTIVES) else None)
        talk(comm, shared)
        comm.barrier()
        colors = shared.integers(0, 2, comm.size)
        part = comm.split(int(colors[comm.rank]), -comm.rank)
        assert part is not None
        ones = np.ones(3, dtype=np.float32)
        part.all_reduce(ones)
        assert (ones == part.size).all()
        part.close()
        comm.close()
    sys.stdout.write(f"rank {world.rank} is done\n")


if __name__ == "__main__":
    main()
