"""``multiring tune`` in a world that a launcher started: the ranks there, and the network between their nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from multiring.bench import machine
from multiring.bench.console import complain
from multiring.bench.tune_model import fitted_rates
from multiring.bench.tune_network import measure_network
from multiring.bench.tune_rank import measured_start, read_start
from multiring.bench.world import World, local_place
from multiring.errors import MultiringError

__all__ = ["run_world"]


def run_world(path: Path, quick: bool, most_bytes: int | None) -> int:
    """Measure as one rank of a job; rank 0 stores. Return the exit code."""
    import os

    os.environ["MULTIRING_TUNING"] = "off"  # what was measured before must not choose what is measured now
    place = local_place()
    cores = len(os.sched_getaffinity(0))
    binding = machine.bind_to_core(place)
    import multiring

    try:
        with multiring.init(device="host") as comm:
            hosts, network = _measure(comm, quick, binding.startswith("core"), most_bytes, cores)
            if comm.rank == 0:
                from multiring.bench.tune import store

                store(path, hosts, network)
    except MultiringError as error:
        complain(f"rank {place.rank}: {' '.join(str(error).split())}")
        return 1
    return 0


def _measure(comm: Any, quick: bool, alone: bool, most_bytes: int | None, cores: int) -> tuple[list[Any], Any]:
    network = measure_network(comm, quick) if comm.n_nodes > 1 else None
    hosts = []
    # Each node measures its own ranks at the same time; those of rank 0 are stored.
    inside = comm.split(comm.node, comm.rank) if comm.n_nodes > 1 else comm
    if inside.size > 1:
        found = measured_start(World(inside), quick=quick, alone=alone, most_bytes=most_bytes)
        if comm.rank == 0:
            hosts.append(fitted_rates(read_start(found), inside.size, cores, found["core_to_core_ns"]))
    if inside is not comm:
        comm.barrier()
        inside.close()
    return hosts, network
