"""``multiring lab``: start ranks over rate-limited virtual hosts."""

from __future__ import annotations

import click

from multiring.bench.lab.job import SURVIVORS_S, caught_signals, run_job
from multiring.bench.lab.link import Link
from multiring.bench.lab.network import MOST_HOSTS, Network
from multiring.errors import ArgumentError, LaunchError

__all__ = ["lab"]

_EPILOG = """\b
Example:
  multiring lab --hosts 2 --ranks 2 --rate 1gbit -- python train.py

\b
A host is a network namespace of this machine with a host name of its own; a wire to a switch limits what leaves it and
what reaches it. Each host has its share of the cores, unless --no-bind; memory and files are the machine's.
Needs root, iproute2 and MPICH.
"""


@click.command(
    "lab",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog=_EPILOG,
)
@click.option("--hosts", type=click.IntRange(1, MOST_HOSTS), required=True, metavar="H", help="How many hosts.")
@click.option("--ranks", type=click.IntRange(1), required=True, metavar="R", help="How many ranks on each host.")
@click.option(
    "--rate", default="1gbit", show_default=True, metavar="RATE", help="Of each host's wire, as tc writes it."
)
@click.option("--burst", default="128kb", show_default=True, metavar="SIZE", help="What passes at once after a pause.")
@click.option("--latency", default="50ms", show_default=True, metavar="TIME", help="How long a packet may be queued.")
@click.option(
    "--bind/--no-bind", default=True, show_default=True, help="Give each host its share of the cores, or all of them."
)
@click.option("--timeout", type=click.FloatRange(0, min_open=True), metavar="SECONDS", help="End the run after these.")
@click.option(
    "--survivors",
    type=click.FloatRange(0),
    default=SURVIVORS_S,
    show_default=True,
    metavar="SECONDS",
    help="How long the other ranks may go on after one has failed.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def lab(
    context: click.Context,
    hosts: int,
    ranks: int,
    rate: str,
    burst: str,
    latency: str,
    bind: bool,
    timeout: float | None,
    survivors: float,
    command: tuple[str, ...],
) -> None:
    """Start COMMAND under mpiexec on H hosts of R ranks each, whose network is as slow as asked for.

    The first R ranks are on the first host, and so on. Each rank is told its host in MULTIRING_HOST_ID, and MPI is told
    to use TCP between hosts. SIGINT and SIGTERM reach all ranks. Nothing is left behind, and what a lab that was killed
    outright has left is removed by the next one.

    The exit status is that of the rank that failed first, 128 plus the number of the signal that ended it; 124 after
    --timeout.
    """
    try:
        with caught_signals() as signals, Network(hosts, Link(rate, burst, latency), bind) as network:
            click.echo(
                f"multiring lab: {network.name}: {hosts} host{'s' if hosts > 1 else ''} "
                f"({network.hosts[0].name}{f' to {network.hosts[-1].name}' if hosts > 1 else ''}) of {ranks} "
                f"rank{'s' if ranks > 1 else ''} each, {rate} in each direction, burst {burst}, latency {latency}",
                err=True,
            )
            status = run_job(network, ranks, command, timeout_s=timeout, survivors_s=survivors, signals=signals)
    except (ArgumentError, LaunchError) as error:
        raise click.UsageError(str(error), context) from error
    context.exit(status)
