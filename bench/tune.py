"""``multiring tune``."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import click

from multiring.bench.world import local_place, under_mpi
from multiring.errors import ArgumentError, LaunchError, MultiringError, TopologyError
from multiring.topology.measured import HostRates, Measured, NetworkRates
from multiring.topology.tuning_file import identity, path_of, read, to_json, write

__all__ = ["merged", "tune"]

STARTS = 5
"""Process starts without --quick: what a start happens to get, such as pages and cores, it keeps."""

MOST_SPREAD = 0.10
"""Relative difference between starts from which a run is not to be trusted; 3 % on a quiet machine."""

_EPILOG = """\b
Example:
  multiring tune --ranks 2 --ranks 4
  multiring bench all_reduce -g 2 --json out.json && multiring tune --check out.json

\b
Without --ranks: as many ranks as cores, and twice as many. Under mpiexec, or in multiring lab, the ranks there: on
several nodes the network is measured too. The file is tuning.json in the cache folder, or MULTIRING_TUNING=FILE;
MULTIRING_TUNING=off: nothing is read. Other ranks' counts in the file stay. Exit 1 if --check misses the goal.
"""


@click.command("tune", epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--ranks", "-g", type=int, multiple=True, metavar="N", help="Local ranks to start; may be given again.")
@click.option("--quick", is_flag=True, help="One process start, fewer sizes and rounds.")
@click.option("--maxbytes", "-e", metavar="SIZE", help="Leave out larger sizes.  [default: 64M, quick 16M]")
@click.option("--output", "-o", metavar="FILE", help="Store there instead.")
@click.option("--show", is_flag=True, help="Show what is stored, and measure nothing.")
@click.option("--check", multiple=True, metavar="FILE", help="Say how well these bench --json reports were predicted.")
def tune(
    ranks: tuple[int, ...],
    quick: bool,
    maxbytes: str | None,
    output: str | None,
    show: bool,
    check: tuple[str, ...],
) -> None:
    """Measure this machine, fit the model that predicts and chooses, and store it."""
    try:
        if check:
            sys.exit(_check(check))
        path = Path(output) if output is not None else path_of()
        if path is None:
            raise ArgumentError("tune: MULTIRING_TUNING=off leaves no file to store in; give one with --output")
        if show:
            _show(path)
            return
        most_bytes = _most_bytes(maxbytes)
        place = local_place()
        if place.size > 1 or under_mpi() or "MULTIRING_RANK" in os.environ:
            if ranks and set(ranks) != {place.size}:
                raise ArgumentError(f"--ranks: got {list(ranks)} in a job of {place.size}; wanted none")
            from multiring.bench.tune_world import run_world

            sys.exit(run_world(path, quick, most_bytes))
        hosts = [_local(n_ranks, quick, most_bytes) for n_ranks in ranks or _usual_ranks()]
    except MultiringError as error:
        raise click.UsageError(str(error)) if isinstance(error, ArgumentError) else error from None
    store(path, hosts, None)


POOR_FIT = 0.2
"""A median error of the fit on its own calls above which the table is of little use."""


def store(path: Path, hosts: Sequence[HostRates], network: NetworkRates | None) -> None:
    """Print what was measured, and put it into the file beside what is there."""
    import platform

    from multiring import __version__
    from multiring.bench.tune_report import rates_lines

    for line in rates_lines(Measured(tuple(hosts), network)):
        click.echo(line)
    document = to_json(
        merged(path, hosts, network),
        version=__version__,
        date=datetime.now().astimezone().isoformat(timespec="seconds"),
        host=platform.node(),
    )
    write(document, path)
    click.echo(f"stored in {path}")
    errors = [rates.median_error for rates in hosts] + ([network.median_error] if network is not None else [])
    if any(error > POOR_FIT for error in errors):
        click.echo(
            "warning: calls of one kind took very different times; tune again when the machine is quiet", err=True
        )


def merged(path: Path, hosts: Sequence[HostRates], network: NetworkRates | None) -> Measured:
    """Return what was measured now, and what the file holds besides, if it is of this machine."""
    try:
        old = read(path.read_text(encoding="utf-8"), identity())
    except (OSError, UnicodeDecodeError, TopologyError):
        old = Measured()
    now = {rates.n_ranks: rates for rates in hosts}
    every = {rates.n_ranks: rates for rates in old.hosts} | now
    return Measured(tuple(every[n_ranks] for n_ranks in sorted(every)), network or old.network)


def _usual_ranks() -> list[int]:
    cores = max(len(os.sched_getaffinity(0)), 2)
    return [cores, 2 * cores]


def _most_bytes(text: str | None) -> int | None:
    if text is None:
        return None
    from multiring.bench.sizes import parse_bytes

    return parse_bytes(text, "-e")


def _local(n_ranks: int, quick: bool, most_bytes: int | None) -> HostRates:
    """Measure local ranks in processes of their own."""
    from multiring.bench.start import start_local
    from multiring.bench.tune_model import combined, fitted_rates, spread_of
    from multiring.bench.tune_rank import read_start

    if n_ranks < 2:
        raise ArgumentError(f"--ranks: got {n_ranks}, wanted at least 2: one rank has nobody to wait for")
    starts, lines_ns = [], []
    n_starts = 1 if quick else STARTS
    with tempfile.TemporaryDirectory(prefix="multiring-tune-") as folder:
        for number in range(n_starts):
            click.echo(f"measuring {n_ranks} ranks, start {number + 1} of {n_starts}", err=True)
            file = Path(folder) / f"{number}.json"
            command = [sys.executable, "-m", "multiring.bench.tune_rank", "--output", str(file)]
            command += ["--quick"] * quick + ([] if most_bytes is None else ["--most-bytes", str(most_bytes)])
            status = start_local(n_ranks, command)
            if status:
                raise LaunchError(f"tune: the ranks ended with exit status {status}")
            document = json.loads(file.read_text(encoding="utf-8"))
            starts.append(read_start(document))
            if document["core_to_core_ns"] is not None:
                lines_ns.append(document["core_to_core_ns"])
    if (spread := spread_of(starts)) > MOST_SPREAD:
        click.echo(
            f"warning: half of all calls differ by {spread:.0%} or more between starts: the machine was busy, or its "
            "cores moved; run this again when it is quiet",
            err=True,
        )
    line_ns = sorted(lines_ns)[len(lines_ns) // 2] if lines_ns else None
    return fitted_rates(combined(starts), n_ranks, len(os.sched_getaffinity(0)), line_ns)


def _show(path: Path) -> None:
    from multiring.bench.tune_report import rates_lines

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TopologyError(f"tune --show: cannot read {path} ({error}): run multiring tune first") from None
    measured = read(text)
    document = json.loads(text)
    click.echo(f"{path}: measured on {document['host']} ({document['machine']['cpu']}), {document['date']}, ")
    click.echo(f"by multiring {document['multiring']}")
    for line in rates_lines(measured):
        click.echo(line)


def _check(paths: Sequence[str]) -> int:
    from multiring.bench.tune_report import check_files, check_lines

    lines, kept = check_lines(check_files(paths))
    for line in lines:
        click.echo(line)
    return 0 if kept else 1


if __name__ == "__main__":
    tune(prog_name="multiring tune")
