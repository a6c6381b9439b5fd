"""Run under mpiexec by the tests: the exchange between nodes, and the ground on which they meet."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

import numpy as np
from mpi4py import MPI

from multiring.bench.cases import COLLECTIVES, make_case
from multiring.bench.ground import Ground
from multiring.bench.peers.mpi import MpiPeer
from multiring.bench.sweep import Settings, Sweep
from multiring.bench.wire_limit import WireLimit, node_flows, rank_flows, wire_limit_bytes
from multiring.bench.world import World
from multiring.kernels.dtypes import DTYPES
from multiring.kernels.operations import OPERATIONS


class StandIn(MpiPeer):
    """MPI in the place of ours."""

    name = "multiring"


def exchanges(world: World, node_of: tuple[int, ...]) -> None:
    """Every rank sends its own number: what arrives says from whom, and how much."""
    limit = WireLimit(world.mpi, node_of, slice_bytes=1000, in_flight=2)
    for collective, shape in COLLECTIVES.items():
        root = world.size - 1 if shape.rooted else -1
        for nbytes in (8, 6000):
            case = make_case(collective, world.size, nbytes, DTYPES["int16"], root=root)
            sent, call = limit.bind(case, False)
            assert sent.size == case.send_count * 2
            other_sent, other = limit.bind(case, True)
            limit._receive.fill(255)
            for array, exchange in ((sent, call), (other_sent, other), (sent, call)):
                array.fill(world.rank)
                exchange()
            flows = [flow for flow in rank_flows(node_flows(case, node_of), node_of) if flow[1] == world.rank]
            got = sum(flow[2] for flow in flows)
            wanted = np.concatenate([np.full(n, source, np.uint8) for source, _, n in flows] or [np.zeros(0, np.uint8)])
            if len(set(node_of)) > 1 and sent.size:
                assert (limit._receive[:got] == wanted).all(), (collective, nbytes)
            world.mpi.Barrier()


def meets(ground: Ground, world: World) -> None:
    """Nobody leaves the barrier before all have come."""
    counter = MPI.Win.Allocate_shared(8 * world.size, 8, comm=world.mpi)
    memory: Any = counter.Shared_query(0)[0]
    here = np.frombuffer(memory, np.int64)
    for turn in range(1, 20):
        here[world.rank] = turn
        ground.barrier()
        assert (here >= turn).all(), (turn, here)
    counter.Free()


def main(text: str) -> None:
    node_of = tuple(map(int, text))
    mpi = MPI.COMM_WORLD
    world = World(None, mpi, node_of[mpi.rank])
    assert world.node_of == node_of
    assert world.n_nodes == len(set(node_of))
    assert world.on_node().size == node_of.count(node_of[world.rank])
    exchanges(world, node_of)
    n_measured = 0
    for collective in COLLECTIVES:
        operations = (("sum", OPERATIONS["sum"]),)
        settings = Settings(collective, (4_000,), (DTYPES["float32"],), operations, (1,), iterations=1, warmup=0)
        cases = list(settings.cases(world.size))
        ground = Ground(world, cases, spin=False)
        assert isinstance(ground.limit, WireLimit)
        assert ground.note == ""
        assert ground.line_times() == {}
        if "MULTIRING_LAB_HOSTS" not in os.environ and collective == "all_reduce":
            meets(ground, world)
        sweep = Sweep(world, settings, [StandIn(mpi)], [MpiPeer(mpi)], ground.limit, ground.barrier)
        for row, case in zip(sweep.rows(), cases, strict=True):
            for half in filter(None, row.halves.values()):
                assert half.n_wrong == 0
                assert half.limit_us
                assert half.limit_us > 0
                assert half.limit_bytes == wire_limit_bytes(case, node_of)
        n_measured += 1
    os.write(1, f"{world.rank}:{n_measured}\n".encode())


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except BaseException:
        traceback.print_exc()
        MPI.COMM_WORLD.Abort(1)
