"""``multiring launch``: start local ranks without MPI."""

from __future__ import annotations

import click

from multiring.bench.local_ranks import run_ranks
from multiring.errors import LaunchError

__all__ = ["launch"]


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="Example: multiring launch -n 4 -- python train.py --epochs 3",
)
@click.option("-n", "--ranks", type=click.IntRange(1), required=True, help="How many ranks to start.")
@click.option(
    "--bind/--no-bind", default=True, show_default=True, help="Give each rank its own cores, if they suffice."
)
@click.option("--tag-output", is_flag=True, help="Put [RANK] in front of each line of output.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def launch(context: click.Context, ranks: int, bind: bool, tag_output: bool, command: tuple[str, ...]) -> None:
    """Start COMMAND on local ranks, without MPI.

    Each rank is told MULTIRING_RANK, MULTIRING_SIZE, MULTIRING_LOCAL_RANK, MULTIRING_LOCAL_SIZE and a token of the job
    in MULTIRING_JOB; multiring.init() reads them. SIGINT and SIGTERM reach all ranks. When a rank fails, the others
    have 3 s to raise their own error; then they are ended, with all that they started.

    The exit status is that of the rank that failed first, 128 plus the number of the signal that ended it.
    """
    try:
        status = run_ranks(command, ranks, bind=bind, tag_output=tag_output)
    except LaunchError as error:
        raise click.UsageError(str(error), context) from error
    context.exit(status)
