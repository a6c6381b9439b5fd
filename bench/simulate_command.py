"""``multiring simulate [COLLECTIVE]``."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import click

from multiring.bench.plan_command import check_output, collective_name
from multiring.bench.plot import check_plot
from multiring.bench.simulate_report import (
    Report,
    collective_report,
    training_report,
    write_csv,
    write_json,
    write_plot,
)
from multiring.bench.sizes import parse_bytes, parse_factor, sweep_sizes
from multiring.errors import ArgumentError, MultiringError

if TYPE_CHECKING:
    from multiring.collectives.schedules.collective import Collective
    from multiring.collectives.schedules.workloads import Workload
    from multiring.topology.model import Topology

__all__ = ["parse_nodes", "parse_sizes", "simulate"]

_EPILOG = """\b
Example:
  multiring simulate all_reduce --topology s822lc --nodes 1,4,16,64 --bytes 1M,100M --box auto
  multiring simulate --workload resnet50 --topology s822lc --nodes 1,2,4,8,16,32,64

\b
Nothing is measured: times follow from the schedules that would be executed and from the constants of the topology. A
list of sizes may hold ranges, FIRST:LAST or FIRST:LAST:FACTOR. Without a file, --json and --csv write to standard
output.
"""


@click.command("simulate", epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("collective", metavar="[COLLECTIVE]", required=False)
@click.option("--topology", metavar="NAME|FILE", help="A preset such as s822lc or dgx-a100, or a saved file.")
@click.option("--nodes", default="1", show_default=True, metavar="LIST", help="Node counts: 1,2,4,8.")
@click.option("--bytes", "sizes", default="100M", show_default=True, metavar="LIST", help="Sizes: 1K,64M or 1K:64M:4.")
@click.option("--algorithm", "algorithms", multiple=True, metavar="NAME", help="Only this one; may be repeated.")
@click.option("--box", metavar="4x8x8|auto", help="Only this box, or the best of all boxes for each node count.")
@click.option(
    "--slices", type=click.IntRange(min=1), default=1, show_default=True, help="Pieces that follow each other."
)
@click.option("--root", type=int, default=0, show_default=True, metavar="RANK", help="Of a rooted collective.")
@click.option(
    "--workload",
    type=click.Choice(["resnet50", "resnet101", "transformer-big", "gnmt", "ncf", "bert-large"]),
    help="Training steps instead of a collective.",
)
@click.option("--dtype", default="float32", show_default=True, help="Of the gradients of a workload.")
@click.option("--weights-dtype", default="float32", show_default=True, help="Of gathered weights.")
@click.option("--bucket", default="25M", show_default=True, metavar="SIZE", help="Gradients that travel together.")
@click.option("--compute-ms", type=float, metavar="MS", help="Forward and backward of one GPU, if known better.")
@click.option("--update-fraction", type=float, metavar="F", help="The update's share of a step, if known better.")
@click.option("--json", "json_file", is_flag=False, flag_value="-", metavar="[FILE]", help="JSON report.")
@click.option("--csv", "csv_file", is_flag=False, flag_value="-", metavar="[FILE]", help="CSV table.")
@click.option("--plot", "plot_file", metavar="FILE", help="Picture over the number of ranks: .png, .svg or .html.")
def simulate(
    collective: str | None,
    topology: str | None,
    nodes: str,
    sizes: str,
    algorithms: tuple[str, ...],
    box: str | None,
    slices: int,
    root: int,
    workload: str | None,
    dtype: str,
    weights_dtype: str,
    bucket: str,
    compute_ms: float | None,
    update_fraction: float | None,
    json_file: str | None,
    csv_file: str | None,
    plot_file: str | None,
) -> int:
    """Predict collectives, or training steps, on machines that are not here."""
    from multiring.collectives.schedules.collective import Collective

    try:
        for option, path in (("--json", json_file), ("--csv", csv_file), ("--plot", plot_file)):
            check_output(option, None if path == "-" else path)
        if plot_file is not None:
            check_plot(plot_file)
        if topology is None:
            raise ArgumentError("--topology: missing, wanted a preset such as s822lc, or a saved file")
        if (collective is None) == (workload is None):
            both = "neither" if collective is None else "both"
            raise ArgumentError(f"COLLECTIVE and --workload: got {both}, wanted one of them")
        if box is not None and algorithms:
            raise ArgumentError("--box and --algorithm: got both, wanted one of them")
        counts = parse_nodes(nodes)
        if collective is not None:
            wanted = Collective(collective_name(collective), root)
            names = _check_names(wanted.name, algorithms, box)
            report = _collective(wanted, topology, counts, parse_sizes(sizes), names, box, slices)
        elif slices > 1:
            raise ArgumentError(
                f"--slices: got {slices} with --workload, whose buckets are slices; wanted a collective"
            )
        else:
            for name in ("all_reduce", "reduce_scatter", "all_gather"):
                _check_names(name, algorithms, box)
            work = _workload(str(workload), dtype, weights_dtype, bucket, compute_ms, update_fraction)
            report = _training(work, topology, counts, algorithms, box)
    except MultiringError as error:
        # Everything here follows from what was asked for.
        raise click.UsageError(str(error)) from None
    if json_file is not None:
        write_json(report, json_file, sys.stdout)
    if csv_file is not None:
        write_csv(report, csv_file, sys.stdout)
    if plot_file is not None:
        write_plot(report, plot_file)
    if "-" not in (json_file, csv_file):
        click.echo("\n".join(report.lines))
    return 0


def parse_nodes(text: str) -> tuple[int, ...]:
    """Read node counts such as ``1,2,4``.

    Raises
    ------
    ArgumentError
        If they are anything else.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdecimal() and int(word) for word in words):
        raise ArgumentError(f"--nodes: got {text!r}, wanted numbers from 1 such as 1,2,4")
    return tuple(dict.fromkeys(map(int, words)))


def parse_sizes(text: str) -> tuple[int, ...]:
    """Read sizes such as ``1K,64M`` or ``1K:64M:4``; a range doubles where it gives no factor.

    Raises
    ------
    ArgumentError
        If they are anything else.
    """
    sizes: list[int] = []
    for word in text.split(","):
        ends = word.split(":")
        if len(ends) > 3:
            raise ArgumentError(f"--bytes: got {word!r}, wanted a size, FIRST:LAST or FIRST:LAST:FACTOR")
        first = parse_bytes(ends[0], "--bytes")
        if len(ends) == 1:
            sizes.append(first)
        else:
            factor = parse_factor(ends[2] if len(ends) == 3 else "2", "--bytes")
            sizes += sweep_sizes(first, parse_bytes(ends[1], "--bytes"), factor)
    return tuple(dict.fromkeys(sizes))


def _check_names(collective: str, algorithms: tuple[str, ...], box: str | None) -> tuple[str, ...]:
    from multiring.collectives.schedules.algorithms import check_algorithm

    names = algorithms if box is None else () if box == "auto" else (f"box:{box}",)
    for name in (*names, *(("box:1",) if box == "auto" else ())):
        check_algorithm(name, collective)
    return names


def _collective(
    collective: Collective,
    topology: str,
    counts: tuple[int, ...],
    sizes: tuple[int, ...],
    names: tuple[str, ...],
    box: str | None,
    slices: int,
) -> Report:
    from multiring.collectives.schedules.explore import candidates
    from multiring.collectives.schedules.simulate import explore_boxes, points
    from multiring.errors import ScheduleError

    found: list[Any] = []
    notes: dict[str, str] = {}
    for machine in _machines(topology, counts):
        if box == "auto":
            for nbytes in sizes:
                found += explore_boxes(collective, machine, nbytes, slices)
            continue
        tried = names or candidates(collective, machine.n_ranks, boxes=False, topology=machine)
        here, impossible = points(collective, machine, sizes, tried, slices)
        found += here
        notes |= {f"{name} on {machine.n_nodes} nodes": why for name, why in impossible.items() if name in names}
    if not found:
        raise ScheduleError(next(iter(notes.values())))
    return collective_report(collective.name, topology, found, [f"{what}: {why}" for what, why in notes.items()], box)


def _machines(topology: str, counts: tuple[int, ...]) -> list[Topology]:
    from multiring.topology.load import load

    return [load(topology, count) for count in counts]


def _workload(
    name: str, dtype: str, weights_dtype: str, bucket: str, compute_ms: float | None, update_fraction: float | None
) -> Workload:
    from multiring.collectives.schedules.workloads import workload
    from multiring.kernels.dtypes import dtype_of

    gradient, weights = dtype_of(dtype, "--dtype"), dtype_of(weights_dtype, "--weights-dtype")
    for option, element in (("--dtype", gradient), ("--weights-dtype", weights)):
        if element.kind != "float":
            raise ArgumentError(f"{option}: got {element.name}, wanted a floating-point type")
    size = parse_bytes(bucket, "--bucket")
    if not size:
        raise ArgumentError("--bucket: got 0 bytes, wanted at least 1")
    if compute_ms is not None and not (math.isfinite(compute_ms) and compute_ms > 0):
        raise ArgumentError(f"--compute-ms: got {compute_ms}, wanted more than 0 milliseconds")
    if update_fraction is not None and not 0 <= update_fraction < 1:
        raise ArgumentError(f"--update-fraction: got {update_fraction}, wanted at least 0 and less than 1")
    return workload(
        name,
        gradient=(gradient.name, gradient.itemsize),
        weights=(weights.name, weights.itemsize),
        bucket_bytes=size,
        compute_us=None if compute_ms is None else compute_ms * 1000,
        update_fraction=update_fraction,
    )


def _training(
    work: Workload, topology: str, counts: tuple[int, ...], algorithms: tuple[str, ...], box: str | None
) -> Report:
    from multiring.collectives.schedules.collective import Collective
    from multiring.collectives.schedules.simulate import box_names, prices, quick_candidates
    from multiring.collectives.schedules.training import Machine, steps

    machines = []
    for topo in _machines(topology, counts):
        priced = {}
        for name in ("all_reduce", "reduce_scatter", "all_gather"):
            collective = Collective(name)
            names = algorithms or quick_candidates(collective, topo)
            if box is not None:
                names = box_names(topo.n_ranks) if box == "auto" else (f"box:{box}",)
            priced[name] = prices(collective, topo, names)
        machines.append(Machine(topo.n_nodes, topo.n_ranks, priced))
    rows = [row for machine in machines for row in steps(work, machine)]
    wish = ", ".join(algorithms) or (f"box {box}" if box else "")
    return training_report(work, topology, rows, wish)
