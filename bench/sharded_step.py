"""``python -m multiring.bench.sharded_step``: the sharded Adam step beside its peers, on ResNet-50's tensors.

One run under the mpiexec of this environment, the same ranks for all, interleaved; gradients are rewritten before every
step. The time of a step is the slowest rank's.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import click
import numpy as np

from multiring.bench.resnet50 import resnet50_shapes
from multiring.bench.start import start_mpi

__all__ = ["main"]

_INSIDE = "--inside"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-g", "--ranks", default=2, show_default=True, type=click.IntRange(1), help="Ranks.")
@click.option("-n", "--iters", default=15, show_default=True, type=click.IntRange(1), help="Timed steps of each.")
@click.option("--bucket-bytes", type=click.IntRange(1), help="Bytes of a bucket; left out: the optimizer's choice.")
@click.option("--tensors", default=161, type=click.IntRange(1, 161), help="Only the first so many tensors.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(_INSIDE, is_flag=True, hidden=True)
def main(ranks: int, iters: int, bucket_bytes: int | None, tensors: int, as_json: bool, inside: bool) -> None:
    """Time one Adam step three ways: sharded, replicated, and sharded with mpi4py and numpy.

    Example: python -m multiring.bench.sharded_step -g 4
    """
    if not inside:
        sys.exit(start_mpi(ranks, [sys.executable, "-m", "multiring.bench.sharded_step", _INSIDE, *sys.argv[1:]]))
    report = measure(iters, bucket_bytes, resnet50_shapes()[:tensors])
    if report is not None:
        click.echo(json.dumps(report, indent=1) if as_json else _table(report))


def measure(iters: int, bucket_bytes: int | None, shapes: list[tuple[int, ...]]) -> dict[str, Any] | None:
    """Time all contenders on all ranks of MPI; return the report on rank 0."""
    from mpi4py import MPI

    import multiring as mr
    from multiring.bench.sharded_contenders import Mpi, Replicated, Sharded

    world = MPI.COMM_WORLD
    cores = sorted(os.sched_getaffinity(0))
    if world.size <= len(cores):
        os.sched_setaffinity(0, {cores[world.rank]})
    with mr.Communicator.from_mpi(world, device="host") as comm:
        rng = np.random.default_rng(world.rank)
        source = rng.standard_normal(max(int(np.prod(s)) for s in shapes), np.float32)
        report: dict[str, Any] = {
            "ranks": world.size, "cores": len(cores), "parameters": sum(int(np.prod(s)) for s in shapes),
            "tensors": len(shapes), "iters": iters, "bucket_bytes": bucket_bytes,
        }  # fmt: skip
        for layout, flat in (("flat", True), ("lists", False)):
            made: dict[str, Any] = {
                "sharded": Sharded(comm, shapes, flat, bucket_bytes=bucket_bytes),
                "replicated": Replicated(comm, shapes, flat),
                "mpi4py and numpy": Mpi(world, shapes, flat),
            }
            times = {name: np.zeros(iters + 2) for name in made}
            for step in range(iters + 2):
                for name, contender in made.items():
                    for g in contender.grads:
                        g.reshape(-1)[...] = source[: g.size]
                    comm.barrier()
                    begun = time.perf_counter()
                    contender.step()
                    times[name][step] = time.perf_counter() - begun
            _compare([contender.params for contender in made.values()])
            slowest = {name: comm.all_reduce(t, op="max")[2:] for name, t in times.items()}
            report[layout] = {
                name: {
                    "median_ms": float(np.median(t)) * 1e3,
                    "fastest_ms": float(t.min()) * 1e3,
                    "ratio": float(np.median(t / slowest["sharded"])),
                }
                for name, t in slowest.items()
            }
            made.clear()
        return report if comm.rank == 0 else None


def _compare(results: list[Any]) -> None:
    """Refuse to time what is wrong: all must have the same weights but for rounding."""
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6)


def _table(report: dict[str, Any]) -> str:
    lines = [
        (
            f"# one Adam step of {report['parameters']:,} float32 parameters in {report['tensors']} tensors, "
            f"{report['ranks']} ranks on {report['cores']} cores, median of {report['iters']}"
        ),
        f"{'':>24} {'median ms':>10} {'fastest ms':>11} {'/ sharded':>10}",
    ]
    for layout in ("flat", "lists"):
        for name, row in report[layout].items():
            lines.append(
                f"{layout + ': ' + name:>24} {row['median_ms']:10.1f} {row['fastest_ms']:11.1f} {row['ratio']:10.2f}"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
