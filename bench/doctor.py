"""``multiring doctor``: one line for each thing that a run needs."""

from __future__ import annotations

import click

from multiring.bench.checks import CHECKS, State

__all__ = ["doctor"]

COLORS = {State.OK: "green", State.WARNING: "yellow", State.BROKEN: "red"}


@click.command(epilog="Example: multiring doctor")
@click.pass_context
def doctor(context: click.Context) -> None:
    """Say what a run needs, whether it is there, and what to do where it is not.

    The exit status is 1 if something is broken that every run needs; a warning names what some runs would miss.
    """
    broken = 0
    for check in CHECKS:
        for finding in check():
            click.echo(
                f"{click.style(f'{finding.state:<8}', fg=COLORS[finding.state])} {finding.what}: {finding.found}"
            )
            if finding.fix:
                click.echo(f"{'':<8} fix: {finding.fix}")
            broken += finding.state is State.BROKEN
    context.exit(1 if broken else 0)
