"""What a simulation says: as a table, JSON, CSV and a picture."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from multiring.bench.cases import COLLECTIVES, bus_factor
from multiring.bench.plot import save_figure
from multiring.bench.report import format_figure

if TYPE_CHECKING:
    from multiring.collectives.schedules.simulate import Point
    from multiring.collectives.schedules.training import Row
    from multiring.collectives.schedules.workloads import Workload

__all__ = ["Report", "collective_report", "training_report", "write_csv", "write_json", "write_plot"]

BOXES_SHOWN = 5
"""Boxes of a node count and size that the table lists."""

_PUBLISHED = (
    "published: 95 % at 256 P100 of 64 S822LC under Caffe, where Caffe2 had 89 % (IBM Research blog, August 2017; that "
    "the network is ResNet-50, and what 100 % is, are not certain); about 90 % from 8 to 256 P100 (Goyal et al. 2017)"
)
_REPORTED_UPDATES = (
    "reported shares of the update, from memory and not checked: LARS about 6 % of a ResNet-50 step, Adam about 45 % "
    "of a Transformer step (Kumar et al. 2019), LAMB about 18 % of a BERT step (2011.03641), on TPUs at 512 to 1024 "
    "chips; --update-fraction takes one"
)


@dataclass(frozen=True, slots=True)
class Report:
    """A simulation, ready to be written.

    Attributes
    ----------
    document : dict
        For JSON; ``results`` are the rows of the CSV table.
    lines : tuple of str
        For people.
    x, y : str
        Keys of the results that a picture shows; ``y`` over ``x``.
    series : tuple of str
        Keys that tell its lines apart.
    """

    document: dict[str, Any]
    lines: tuple[str, ...]
    x: str
    y: str
    series: tuple[str, ...]


def collective_report(
    collective: str, topology: str, points: Sequence[Point], notes: Sequence[str], box: str | None
) -> Report:
    """Report predictions of a collective, sorted by node count, size and price.

    Parameters
    ----------
    notes : sequence of str
        What could not be predicted, and why.
    box : str or None
        As given: ``"auto"`` shortens the table to the best boxes.
    """
    results = [_result(point) for point in points]
    groups: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for result in results:
        groups.setdefault((result["nodes"], result["nbytes"]), []).append(result)
    best = [_best(group) for group in groups.values()]
    head = f"#{'nodes':>5} {'ranks':>6} {'bytes':>12} {'steps':>6} {'sent/rank':>12} {'pred(us)':>10}"
    head += f" {'algbw':>7} {'busbw':>7}  algorithm"
    lines = [f"# {collective} on {topology}: predicted, not measured; bandwidths in GB/s", head]
    for group in groups.values():
        shown = group[:BOXES_SHOWN] if box == "auto" else group
        lines += [_line(result) for result in shown]
        if len(group) > len(shown):
            lines.append(f"# … {len(group) - len(shown)} more boxes, up to {group[-1]['predicted_us']:.1f} us")
    lines += [
        f"# best on {one['nodes']} nodes, {one['nbytes']} bytes: {one['algorithm']}, {one['predicted_us']:.1f} us"
        f" ({one['tried']} tried)"
        for one in best
    ]
    lines += [f"# {note}" for note in notes]
    document = {
        "collective": collective,
        "topology": topology,
        "box": box,
        "results": results,
        "best": best,
        "notes": list(notes),
    }
    many = len({result["nbytes"] for result in results}) > 1
    series = ("algorithm", "nbytes") if many else ("algorithm",)
    return Report(document, tuple(lines), "n_ranks", "predicted_us", series)


def training_report(work: Workload, topology: str, rows: Sequence[Row], wish: str) -> Report:
    """Report predicted training steps, and all that they rest on.

    Parameters
    ----------
    wish : str
        The algorithms asked for; empty where the cheapest is taken.
    """
    assumptions = [
        *({"what": a.what, "value": a.value, "source": a.source} for a in work.assumptions),
        {
            "what": "algorithm",
            "value": wish or "the cheapest for each bucket",
            "source": "given" if wish else "derived from the schedules and the topology",
        },
        {"what": "machine", "value": topology, "source": "its constants: multiring topo, multiring plan"},
    ]
    results: list[dict[str, Any]] = [
        {
            "nodes": row.n_nodes,
            "n_ranks": row.n_ranks,
            "overlap": row.step.overlap,
            "sharded": row.step.sharded,
            "step_us": row.step.step_us,
            "communication_us": row.step.communication_us,
            "exposed_us": row.step.exposed_us,
            "update_us": row.step.update_us,
            "efficiency": row.efficiency,
            "samples_per_second": row.samples_per_second,
            "algorithms": row.algorithms,
        }
        for row in rows
    ]
    notes = _notes(work, results)
    lines = [f"# {work.name} on {topology}: one training step, predicted, not measured"]
    lines += [f"# {a['what']}: {a['value']}  [{a['source']}]" for a in assumptions]
    lines.append(
        "# efficiency: time of a step on one GPU over the time on all, each with the same batch; exposed: "
        "communication that computing waits for"
    )
    lines.append(
        f"#{'nodes':>5} {'GPUs':>6} {'overlap':>8} {'update':>10} {'step(ms)':>9} {'comm(ms)':>9} {'exposed':>9} "
        f"{'update':>8} {'efficiency':>10} {'samples/s':>10}  algorithms for all at once"
    )
    for one in results:
        lines.append(
            f"{one['nodes']:>6} {one['n_ranks']:>6} {'yes' if one['overlap'] else 'no':>8} "
            f"{'sharded' if one['sharded'] else 'replicated':>10} {one['step_us'] / 1e3:>9.2f} "
            f"{one['communication_us'] / 1e3:>9.2f} {one['exposed_us'] / 1e3:>9.2f} {one['update_us'] / 1e3:>8.3f} "
            f"{100 * one['efficiency']:>8.1f} % {format_figure(one['samples_per_second'], 10)}  "
            f"{', '.join(one['algorithms'].values())}"
        )
    lines += [f"# {note}" for note in notes]
    document = {
        "workload": work.name,
        "topology": topology,
        "alone_us": work.alone_us,
        "assumptions": assumptions,
        "results": results,
        "notes": notes,
    }
    return Report(document, tuple(lines), "n_ranks", "efficiency", ("overlap", "sharded"))


def _result(point: Point) -> dict[str, Any]:
    known = point.collective in COLLECTIVES and point.n_ranks > 1
    alg_bw = point.nbytes / point.predicted_us / 1e3 if point.predicted_us > 0 else None
    return {
        "nodes": point.n_nodes,
        "n_ranks": point.n_ranks,
        "nbytes": point.nbytes,
        "algorithm": point.algorithm,
        "n_steps": point.n_steps,
        "bytes_sent_per_rank": point.bytes_sent_per_rank,
        "predicted_us": point.predicted_us,
        "alg_bw_gbs": alg_bw,
        "bus_bw_gbs": alg_bw * bus_factor(point.collective, point.n_ranks) if known and alg_bw is not None else None,
    }


def _best(group: list[dict[str, Any]]) -> dict[str, Any]:
    best = min(group, key=lambda result: result["predicted_us"])
    keys = ("nodes", "n_ranks", "nbytes", "algorithm", "n_steps", "predicted_us")
    return {**{key: best[key] for key in keys}, "tried": len(group)}


def _line(result: dict[str, Any]) -> str:
    return (
        f"{result['nodes']:>6} {result['n_ranks']:>6} {result['nbytes']:>12} {result['n_steps']:>6} "
        f"{result['bytes_sent_per_rank']:>12} {result['predicted_us']:>10.1f} {format_figure(result['alg_bw_gbs'], 7)} "
        f"{format_figure(result['bus_bw_gbs'], 7)}  {result['algorithm']}"
    )


def _notes(work: Workload, results: list[dict[str, Any]]) -> list[str]:
    if work.name != "resnet50":
        return [_REPORTED_UPDATES]
    at = [one for one in results if one["n_ranks"] == 256 and not one["sharded"]]
    if not at:
        return [_PUBLISHED, "none of these node counts has 256 GPUs to compare with", _REPORTED_UPDATES]
    without, overlapped = (100 * one["efficiency"] for one in sorted(at, key=lambda one: bool(one["overlap"])))
    where = "below both" if without > 95 else "above both" if overlapped < 95 else "between them"
    compared = (
        f"predicted at 256 GPUs: {without:.1f} % without overlap and {overlapped:.1f} % with; the published 95 % lies "
        f"{where}. The prediction leaves out input, jitter and launches, and rests on all that is listed above"
    )
    return [_PUBLISHED, compared, _REPORTED_UPDATES]


def write_json(report: Report, destination: str, stdout: TextIO) -> None:
    """Write JSON to a file, or to standard output where the destination is ``-``."""
    _write(json.dumps(report.document, indent=1, allow_nan=False) + "\n", destination, stdout)


def write_csv(report: Report, destination: str, stdout: TextIO) -> None:
    """Write the results as CSV to a file, or to standard output; what is missing is empty."""
    rows = report.document["results"]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        shown = row.get("algorithms")
        writer.writerow({**row, "algorithms": " ".join(shown.values())} if shown else row)
    _write(text.getvalue(), destination, stdout)


def write_plot(report: Report, path: str) -> None:
    """Draw a key of the results over the number of ranks."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
    for row in report.document["results"]:
        lines.setdefault(tuple(row[key] for key in report.series), []).append((row[report.x], row[report.y]))
    figure, axes = pyplot.subplots(figsize=(8, 5), constrained_layout=True)
    for label, dots in lines.items():
        text = ", ".join(f"{key} {value}" for key, value in zip(report.series, label, strict=True))
        axes.plot(*zip(*sorted(dots), strict=True), marker=".", label=text)
    axes.set(xscale="log", xlabel="ranks", ylabel="efficiency" if report.y == "efficiency" else "predicted time (µs)")
    if report.y != "efficiency":
        axes.set(yscale="log")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize="x-small")
    axes.set_title(report.lines[0].removeprefix("# "))
    save_figure(figure, path, report.lines[0].removeprefix("# "))
    pyplot.close(figure)


def _write(text: str, destination: str, stdout: TextIO) -> None:
    if destination == "-":
        stdout.write(text)
    else:
        Path(destination).write_text(text, encoding="utf-8")
