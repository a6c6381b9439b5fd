"""The command line: one group, whose commands are loaded when they are named."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys

import click

from multiring.errors import MultiringError

__all__ = ["COMMANDS", "cli", "main"]

# name -> (module:attribute, one line for the list). A command whose module is absent is left out.
COMMANDS: dict[str, tuple[str, str]] = {
    "bench": ("multiring.bench.sweep_command:bench", "Time a collective over message sizes, beside its peers."),
    "topo": ("multiring.bench.topo_command:topo", "Show what is connected to what, and the rings in it."),
    "plan": ("multiring.bench.plan_command:plan", "Show the plan of a collective, its price and its alternatives."),
    "simulate": ("multiring.bench.simulate_command:simulate", "Predict collectives and training on machines not here."),
    "tune": ("multiring.bench.tune:tune", "Measure this machine and fit the model that chooses."),
    "doctor": ("multiring.bench.doctor:doctor", "Say what a run needs and whether it is there."),
    "launch": ("multiring.bench.launch:launch", "Start local ranks without MPI."),
    "lab": ("multiring.bench.lab:lab", "Start ranks over rate-limited virtual hosts."),
}


class LazyGroup(click.Group):
    """A group that imports the module of a command only when the command is used.

    Importing numba and numpy takes a hundred times longer than printing a help text.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands whose modules are there."""
        del ctx
        return [name for name, (path, _) in COMMANDS.items() if importlib.util.find_spec(path.partition(":")[0])]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command, or return None where there is none of this name."""
        if cmd_name not in self.list_commands(ctx):
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{COMMANDS[cmd_name][0]}: got {type(command).__name__}, wanted a click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing any."""
        rows = [(name, COMMANDS[name][1]) for name in self.list_commands(ctx)]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: multiring bench all_reduce -g 2 -b 8 -e 64M -f 4",
)
@click.version_option(package_name="multiring", message="multiring %(version)s")
def cli() -> None:
    """Collective communication as schedules: verified, priced, explained, executed and timed.

    Exit status: 0 success, 1 a check failed, 2 bad usage.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and end the process with its status.

    Parameters
    ----------
    arguments : list of str, optional
        The words after the program's name; ``sys.argv[1:]`` where omitted.

    Raises
    ------
    SystemExit
        Always: 0 for success, 1 where a check failed, 2 for bad usage, 130 after Ctrl-C, 141 where the reader of
        standard output went away (as for a program that dies of SIGPIPE).
    """
    try:
        status = _run(sys.argv[1:] if arguments is None else arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # Python's own flush at exit would report the pipe a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        status = 141
    sys.exit(status)


def _run(arguments: list[str]) -> int:
    """Run one command and return its exit status.

    click's own ``main`` ends with status 1 where the reader of standard output went away: here 1 means a failed check.
    """
    try:
        with cli.make_context("multiring", list(arguments)) as context:
            result = cli.invoke(context)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "multiring"
        return _complain(f"{command}: {error.format_message()} (see {command} --help)", 2)
    except click.ClickException as error:
        return _complain(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _complain("interrupted", 130)
    except MultiringError as error:
        return _complain(str(error), 1)
    return result if isinstance(result, int) else 0


def _complain(text: str, status: int) -> int:
    """Write an error as one line."""
    click.echo(f"error: {' '.join(text.split())}", err=True)
    return status
