"""``multiring tune`` in a world that a launcher started: the ranks there, and the network between their nodes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from multiring.bench import machine
from multiring.bench.console import complain
from multiring.bench.ground import Ground
from multiring.bench.tune_measure import have_own_cores, measure_points
from multiring.bench.tune_model import fitted_network, fitted_rates
from multiring.bench.tune_network import measure_network
from multiring.bench.tune_points import network_design
from multiring.bench.tune_rank import measured_start, read_start
from multiring.bench.world import World, local_place, under_mpi
from multiring.errors import MultiringError
from multiring.topology.measured import HostRates, NetworkRates

__all__ = ["run_world"]


def run_world(path: Path, quick: bool, most_bytes: int | None) -> int:
    """Measure as one rank of a job; rank 0 stores. Return the exit code."""
    os.environ["MULTIRING_TUNING"] = "off"  # what was measured before must not choose what is measured now
    place = local_place()
    cores = len(os.sched_getaffinity(0))
    binding = machine.bind_to_core(place)
    mpi = None
    if under_mpi():
        from mpi4py import MPI

        mpi = MPI.COMM_WORLD
    import multiring

    try:
        with multiring.init(device="host") as comm:
            hosts, network = _measure(comm, mpi, quick, binding, most_bytes, cores)
            if comm.rank == 0:
                from multiring.bench.tune import store

                store(path, hosts, network)
    except MultiringError as error:
        complain(f"rank {place.rank}: {' '.join(str(error).split())}")
        return 1
    return 0


def _measure(
    comm: Any, mpi: Any, quick: bool, binding: str, most_bytes: int | None, cores: int
) -> tuple[list[HostRates], NetworkRates | None]:
    if comm.n_nodes == 1:
        found = measured_start(World(comm), binding, quick, most_bytes)
        return [fitted_rates(read_start(found), comm.size, cores, found["core_to_core_ns"])], None
    world = World(comm, mpi)
    alone = have_own_cores(world, binding)
    bare = measure_network(comm, quick)
    groups = [group for group in network_design(comm.size, comm.topology, quick) if _fits(group[0].nbytes, most_bytes)]
    times_us = dict(measure_points(world, groups, quick, alone, Ground(world, [], spin=alone).barrier))
    # Each node measures its own ranks at the same time; those of rank 0 stand for all.
    inside = comm.split(comm.node, comm.rank)
    host = None
    if inside.size > 1:
        found = measured_start(World(inside), binding, True, most_bytes)
        host = fitted_rates(read_start(found), inside.size, cores, found["core_to_core_ns"])
    comm.barrier()
    inside.close()
    return [], fitted_network(times_us, world.node_of, host, bare)


def _fits(nbytes: int, most_bytes: int | None) -> bool:
    return most_bytes is None or nbytes <= most_bytes
