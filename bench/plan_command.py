"""``multiring plan COLLECTIVE``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from multiring.bench.cases import SPELLINGS
from multiring.bench.sizes import parse_bytes
from multiring.errors import ArgumentError, MultiringError

if TYPE_CHECKING:
    from multiring.collectives.schedules.explanation import Explanation

__all__ = ["check_output", "collective_name", "plan"]

_EPILOG = """\b
Example:
  multiring plan all_reduce --bytes 64M --topology dgx1-v100 --nodes 4 --algorithm box:8x4
  multiring plan all_reduce --bytes 1M --topology dgx-a100 --save plan.json
  multiring plan --load plan.json --svg plan.svg

\b
Times are predicted by the model, not measured: the latency of each step, the bytes that cross its fullest wire, and the
additions. A transfer names the wire that holds it up. --diff exits 1 where the plans differ.
"""


@click.command("plan", epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("collective", metavar="[COLLECTIVE]", required=False)
@click.option("--bytes", "nbytes", metavar="SIZE", help="Bytes of the whole vector: 8, 1K, 4MiB, 64M.")
@click.option("--topology", metavar="NAME|FILE", help="A preset such as dgx-a100, host-8, torus-4x8, or a saved file.")
@click.option("--nodes", type=int, default=1, show_default=True, metavar="N", help="Nodes of that kind.")
@click.option("--algorithm", metavar="NAME", help="ring, box:8x4, box:auto, ...  [default: the cheapest]")
@click.option("--dtype", default="float32", show_default=True, metavar="DTYPE", help="Element type.")
@click.option("--root", type=int, default=0, show_default=True, metavar="RANK", help="Of a rooted collective.")
@click.option("--order", type=click.Choice(["rank"]), help="Only algorithms that add in ascending rank.")
@click.option("--load", "load_file", metavar="FILE", help="Show a saved plan instead of making one.")
@click.option("--diff", "diff_file", metavar="FILE", help="Say in what this plan differs from a saved one.")
@click.option("--json", "as_json", is_flag=True, help="JSON on standard output instead of text.")
@click.option("--svg", "svg_file", metavar="FILE", help="Write a picture: ranks as lanes, transfers as arrows.")
@click.option("--trace", "trace_file", metavar="FILE", help="Write a trace for Perfetto or chrome://tracing.")
@click.option("--save", "save_file", metavar="FILE", help="Write the plan, to be loaded, compared and executed.")
def plan(
    collective: str | None,
    nbytes: str | None,
    topology: str | None,
    nodes: int,
    algorithm: str | None,
    dtype: str,
    root: int,
    order: str | None,
    load_file: str | None,
    diff_file: str | None,
    as_json: bool,
    svg_file: str | None,
    trace_file: str | None,
    save_file: str | None,
) -> int:
    """Show the plan of a collective on a machine: its steps, its price, and why the others lost."""
    from multiring.collectives.schedules import saved_plan

    try:
        for option, path in (("--svg", svg_file), ("--trace", trace_file), ("--save", save_file)):
            check_output(option, path)
        other = None if diff_file is None else saved_plan.load(diff_file)
        if load_file is None:
            shown = _made(collective, nbytes, topology, nodes, algorithm, dtype, root, order)
        elif any(value is not None for value in (collective, nbytes, topology, algorithm, order)):
            raise ArgumentError(f"--load: got {load_file!r} and a plan to make, wanted one of them")
        else:
            shown = saved_plan.load(load_file)
        if svg_file is not None:
            Path(svg_file).write_text(shown.svg(), encoding="utf-8")
        if trace_file is not None:
            Path(trace_file).write_text(shown.trace(), encoding="utf-8")
        if save_file is not None:
            saved_plan.save(shown, save_file)
    except MultiringError as error:
        # Everything here follows from what was asked for.
        raise click.UsageError(str(error)) from None
    if other is not None:
        return _compare(shown, other, as_json)
    click.echo(json.dumps(shown.to_json(), indent=1, allow_nan=False) if as_json else str(shown))
    return 0


def collective_name(name: str) -> str:
    """Return our spelling of a collective that has a schedule.

    Raises
    ------
    ArgumentError
        If there is no such collective.
    """
    from multiring.collectives.schedules.collective import COLLECTIVES

    plain = name.lower().replace("-", "_")
    plain = SPELLINGS.get(plain, plain)
    if plain not in COLLECTIVES:
        raise ArgumentError(f"collective: got {name!r}, wanted one of {', '.join(COLLECTIVES)}")
    return plain


def check_output(option: str, path: str | None) -> None:
    """Refuse a file that could not be written, before anything is computed.

    Raises
    ------
    ArgumentError
        If it is a folder, or lies in none.
    """
    if path is not None and (Path(path).is_dir() or not Path(path).absolute().parent.is_dir()):
        raise ArgumentError(f"{option}: got {path!r}, wanted a file in a folder that exists")


def _made(
    collective: str | None,
    nbytes: str | None,
    topology: str | None,
    nodes: int,
    algorithm: str | None,
    dtype: str,
    root: int,
    order: str | None,
) -> Explanation:
    from multiring.collectives.schedules.choose import choose
    from multiring.collectives.schedules.collective import Collective
    from multiring.collectives.schedules.explanation import explain
    from multiring.kernels.dtypes import dtype_of
    from multiring.topology.load import load

    for what, value in (("COLLECTIVE", collective), ("--bytes", nbytes), ("--topology", topology)):
        if value is None:
            raise ArgumentError(f"{what}: missing, wanted such as: all_reduce --bytes 64M --topology dgx-a100")
    wanted = Collective(collective_name(collective or ""), root)
    size, element = parse_bytes(nbytes or "", "--bytes"), dtype_of(dtype, "--dtype")
    if size % element.itemsize:
        raise ArgumentError(
            f"--bytes: got {size}, wanted whole elements of {element.itemsize} bytes, as {element.name} has"
        )
    machine = load(topology or "", nodes)
    choice = choose(wanted, machine.n_ranks, size, topology=machine, algorithm=algorithm, order=order)
    return explain(choice, size, machine, element.name)


def _compare(shown: Explanation, other: Explanation, as_json: bool) -> int:
    from multiring.collectives.schedules.saved_plan import differences

    found = differences(other, shown)
    if as_json:
        click.echo(json.dumps({"same": not found, "differences": list(found)}, indent=1))
    else:
        click.echo("\n".join(found) if found else "the plans are the same")
    return 1 if found else 0
