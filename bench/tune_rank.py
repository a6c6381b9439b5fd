"""One process start of ``multiring tune`` on each rank: time all points, and write what came out."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from multiring.bench import machine
from multiring.bench.console import complain
from multiring.bench.meeting import Meeting
from multiring.bench.tune_measure import have_own_cores, measure_points
from multiring.bench.tune_points import QUICK_SIZES, SIZES, Point, design
from multiring.bench.world import World, local_place
from multiring.errors import MultiringError

__all__ = ["measured_start", "read_start", "run_start"]


def measured_start(world: World, binding: str, quick: bool, most_bytes: int | None = None) -> dict[str, Any]:
    """Time a design; the same plain data on all ranks, but for the time of a cache line, which rank 0 alone knows.

    Parameters
    ----------
    world : World
    binding : str
        What :func:`~multiring.bench.machine.bind_to_core` said.
    quick : bool
        Fewer sizes and rounds.
    most_bytes : int, optional
        Leave out larger sizes.
    """
    line_ns, alone = None, have_own_cores(world, binding)
    with suppress(MultiringError):
        line_ns = Meeting(world, 0, spin=alone).line_time_ns() if alone and world.size > 1 else None
    sizes = [size for size in (QUICK_SIZES if quick else SIZES) if most_bytes is None or size <= most_bytes]
    found = measure_points(world, design(world.size, sizes), quick, alone)
    return {
        "ranks": world.size,
        "core_to_core_ns": line_ns,
        "points": [asdict(point) | {"time_us": time_us} for point, time_us in found],
    }


def read_start(document: dict[str, Any]) -> dict[Point, float]:
    """Return the points of one start."""
    return {
        Point(**{name: value for name, value in row.items() if name != "time_us"}): float(row["time_us"])
        for row in document["points"]
    }


def run_start(output: str, quick: bool, most_bytes: int | None) -> int:
    """Measure as one local rank; rank 0 writes a file. Return the exit code."""
    place = local_place()
    binding = machine.bind_to_core(place)
    import multiring

    try:
        with multiring.init(device="host") as comm:
            found = measured_start(World(comm), binding, quick, most_bytes)
            if comm.rank == 0:
                Path(output).write_text(json.dumps(found), encoding="utf-8")
    except MultiringError as error:
        complain(f"rank {place.rank}: {' '.join(str(error).split())}")
        return 1
    return 0


@click.command()
@click.option("--output", required=True)
@click.option("--quick", is_flag=True)
@click.option("--most-bytes", type=int)
def _main(output: str, quick: bool, most_bytes: int | None) -> None:
    sys.exit(run_start(output, quick, most_bytes))


if __name__ == "__main__":
    # What was measured before must not choose what is measured now.
    os.environ["MULTIRING_TUNING"] = "off"
    _main()
