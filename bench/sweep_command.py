"""``multiring bench COLLECTIVE``."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any, NoReturn

import click

from multiring.bench.console import complain
from multiring.bench.machine import check_memory
from multiring.bench.request import Request, check_roots, make_request
from multiring.bench.sweep import needed_bytes
from multiring.bench.world import LocalPlace, local_place, under_mpi
from multiring.errors import MultiringError

__all__ = ["bench"]

_ARGUMENTS = "multiring.bench.arguments"

_EPILOG = """\b
Example:
  multiring bench all_reduce -g 2 -b 8 -e 64M -f 2 --peer mpi --json result.json

\b
algbw = size / time. busbw = algbw times 2(n-1)/n for all_reduce, (n-1)/n for reduce_scatter, all_gather, all_to_all,
gather and scatter, 1 for the others: a normalised number, not traffic on a link. size is that of the larger buffer,
count is for each rank. Between timed calls every rank rewrites its input, untimed. Exit 1 if a result was wrong.
"""


class _Recording(click.Command):
    """Keeps the arguments as they were given: the ranks get the same."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> click.Context:
        given = list(args)
        context = super().make_context(info_name, args, parent, **extra)
        context.meta[_ARGUMENTS] = given
        return context


@click.command("bench", cls=_Recording, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("collective", metavar="COLLECTIVE")
@click.option("-b", "--minbytes", default="8", show_default=True, metavar="SIZE", help="First size: 8, 1K, 4MiB, 64M.")
@click.option("-e", "--maxbytes", default="64M", show_default=True, metavar="SIZE", help="Last size, always included.")
@click.option("-f", "--stepfactor", metavar="FACTOR", help="Each size is this many times the one before.  [default: 2]")
@click.option("-i", "--stepbytes", metavar="SIZE", help="Each size is this many bytes more, unless -f is above 1.")
@click.option("-n", "--iters", type=int, help="Timed iterations.  [default: 20 to 400, by size]")
@click.option("-w", "--warmup_iters", "--warmup-iters", type=int, default=5, show_default=True, help="Before those.")
@click.option("-c", "--check", type=int, default=1, show_default=True, help="Checks of each result; 0 for none.")
@click.option(
    "-o", "--op", default="sum", show_default=True, metavar="OP", help="sum, prod, min, max, avg, mulsum, all."
)
@click.option(
    "-d", "--datatype", default="float", show_default=True, metavar="DTYPE", help="Ours or nccl-tests', or all."
)
@click.option("-r", "--root", default="0", show_default=True, metavar="RANK", help="Root, or all.")
@click.option(
    "-z", "--blocking", type=click.IntRange(0, 3), default=0, help="Accepted: calls on host memory block anyway."
)
@click.option("-J", "--json", "--output_file", "json_file", metavar="FILE", help="JSON report; - for standard output.")
@click.option("-g", "--ranks", type=int, metavar="N", help="Start N local ranks (not under mpiexec or launch).")
@click.option("--algorithm", metavar="NAME", help="Force an algorithm, or all of them one after the other.")
@click.option(
    "--registered/--unregistered", default=True, show_default=True, help="Symmetric memory or ordinary arrays."
)
@click.option("--wire", metavar="DTYPE", help="Element type that travels.")
@click.option("--order", metavar="rank", help="rank: a fixed order of additions.")
@click.option("--prepared", is_flag=True, help="Time persistent calls.")
@click.option("--peer", "peers", multiple=True, metavar="NAME", help="Measure mpi (later gloo, nccl) in the same run.")
@click.option("--csv", "csv_file", metavar="FILE", help="One line for each size and half.")
@click.option("--plot", "plot_file", metavar="FILE", help="Picture: .png, .svg or .html (needs matplotlib).")
@click.option("--device", default="host", show_default=True, metavar="host|cuda", help="Where the arrays are.")
@click.pass_context
def bench(
    context: click.Context,
    collective: str,
    minbytes: str,
    maxbytes: str,
    stepfactor: str | None,
    stepbytes: str | None,
    iters: int | None,
    warmup_iters: int,
    check: int,
    op: str,
    datatype: str,
    root: str,
    blocking: int,
    json_file: str | None,
    ranks: int | None,
    algorithm: str | None,
    registered: bool,
    wire: str | None,
    order: str | None,
    prepared: bool,
    peers: tuple[str, ...],
    csv_file: str | None,
    plot_file: str | None,
    device: str,
) -> None:
    """Measure a collective over a sweep of sizes, with nccl-tests' flags and columns."""
    place = local_place()
    arguments = context.meta[_ARGUMENTS]
    try:
        request = make_request(
            collective,
            minbytes,
            maxbytes,
            stepfactor,
            stepbytes,
            iters,
            warmup_iters,
            check,
            op,
            datatype,
            root,
            ranks,
            algorithm,
            registered,
            wire,
            order,
            prepared,
            peers,
            json_file,
            csv_file,
            plot_file,
            device,
        )
        # A job of one rank is launched too: else it would start itself for ever.
        launched = place.size > 1 or under_mpi() or "MULTIRING_RANK" in os.environ
        request = _check_world(request, place, launched)
    except MultiringError as error:
        _refuse(place, error)
    if not launched and (request.ranks is not None or request.peers):
        sys.exit(_start(request, arguments))
    from multiring.bench.rank import run_rank

    sys.exit(run_rank(request, place, arguments))


def _check_world(request: Request, place: LocalPlace, launched: bool) -> Request:
    """Check what depends on the number of ranks, which is known before they start."""
    from multiring.errors import ArgumentError

    if launched and request.ranks is not None and request.ranks != place.size:
        raise ArgumentError(f"-g: got {request.ranks} ranks in a job of {place.size}; wanted {place.size}, or no -g")
    if launched and "mpi" in request.peers and not under_mpi():
        raise ArgumentError("--peer mpi: got ranks that no mpiexec started; wanted -g N alone, or mpiexec -n N")
    n_ranks = place.size if launched else request.ranks or 1
    request = replace(request, settings=replace(request.settings, roots=check_roots(request, n_ranks)))
    # All hosts of a lab share one machine's memory.
    n_hosts_here = int(os.environ.get("MULTIRING_LAB_HOSTS", "1"))
    local_size = place.local_size * n_hosts_here if launched else n_ranks
    check_memory(needed_bytes(request.settings, n_ranks, request.peers), local_size, request.end_text)
    return request


def _start(request: Request, arguments: list[str]) -> int:
    from multiring.bench.start import start_local, start_mpi

    command = [sys.executable, "-m", "multiring.bench.sweep_command", *arguments]
    n_ranks = request.ranks or 1
    if "mpi" in request.peers:
        try:
            return start_mpi(n_ranks, command)
        except MultiringError as error:
            _refuse(local_place(), error)
    return start_local(n_ranks, command)


def _refuse(place: LocalPlace, error: MultiringError) -> NoReturn:
    """End with one line, from one rank of each machine, and the exit code of bad usage."""
    if place.local_rank == 0:
        complain(str(error))
    sys.exit(2)


if __name__ == "__main__":
    bench(prog_name="multiring bench")
