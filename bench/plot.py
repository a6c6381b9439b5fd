"""The picture of a sweep: time and bus bandwidth over size, ours, the peers' and the limit."""

from __future__ import annotations

import importlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from multiring.bench.rows import Half, Row
from multiring.errors import ArgumentError

__all__ = ["PLOT_FORMATS", "check_plot", "save_figure", "write_plot"]

PLOT_FORMATS = (".png", ".svg", ".html")


def check_plot(path: str) -> None:
    """Refuse a picture that could not be written, before anything is measured.

    Raises
    ------
    ArgumentError
        If the file's ending is unknown or matplotlib is not installed.
    """
    if not path.lower().endswith(PLOT_FORMATS):
        raise ArgumentError(f"--plot: got {path!r}, wanted a file that ends in {', '.join(PLOT_FORMATS)}")
    try:
        importlib.import_module("matplotlib")
    except ImportError:
        raise ArgumentError(
            "--plot: needs matplotlib, which is not installed; install it with: pip install 'multiring[plot]'"
        ) from None


def write_plot(rows: Sequence[Row], path: str, title: str, peers: Sequence[str]) -> None:
    """Draw the rows into a file; ``.html`` is a page that holds the SVG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 5), constrained_layout=True)
    for label, points in _lines(rows, peers).items():
        style: dict[str, Any] = {"label": label, "linestyle": "--" if "in place" in label else "-", "marker": "."}
        left.plot([p[0] for p in points], [p[1] for p in points], **style)
        known = [p for p in points if p[2] is not None]
        if known:
            right.plot([p[0] for p in known], [p[2] for p in known], **style)
    left.set(xscale="log", yscale="log", xlabel="size (bytes)", ylabel="time (µs)")
    right.set(xscale="log", xlabel="size (bytes)", ylabel="bus bandwidth (GB/s)")
    for axes in (left, right):
        axes.grid(True, which="major", alpha=0.3)
    if left.get_legend_handles_labels()[0]:
        left.legend(fontsize="small")
    figure.suptitle(title)
    save_figure(figure, path, title)
    pyplot.close(figure)


def save_figure(figure: Any, path: str, title: str) -> None:
    """Write a matplotlib figure; ``.html`` is a page that holds the SVG."""
    if not path.lower().endswith(".html"):
        figure.savefig(path)
        return
    text = io.StringIO()
    figure.savefig(text, format="svg")
    svg = text.getvalue()
    page = f"<!doctype html><meta charset='utf-8'><title>{title}</title>\n{svg[svg.index('<svg') :]}"
    Path(path).write_text(page, encoding="utf-8")


def _lines(rows: Sequence[Row], peers: Sequence[str]) -> dict[str, list[tuple[int, float, float | None]]]:
    """Return (size, time in us, bus bandwidth) by label."""
    series = {(row.case.dtype.name, row.case.operation_name, row.case.root, row.algorithm) for row in rows}
    lines: dict[str, list[tuple[int, float, float | None]]] = {}
    for row in rows:
        detail = f" {row.case.dtype.name} {row.case.operation_name} {row.algorithm}" if len(series) > 1 else ""
        for name, half in row.halves.items():
            if half is None or row.case.size_bytes == 0:
                continue
            ending = f"{detail}, {name.replace('_', ' ')}"
            lines.setdefault(f"multiring{ending}", []).append((row.case.size_bytes, half.time_us, half.bus_bw_gbs))
            _add_others(lines, row, half, ending, peers)
    return lines


def _add_others(
    lines: dict[str, list[tuple[int, float, float | None]]], row: Row, half: Half, ending: str, peers: Sequence[str]
) -> None:
    size = row.case.size_bytes
    for peer in peers:
        if peer in half.peers:
            figures = half.peers[peer]
            lines.setdefault(f"{peer}{ending}", []).append((size, figures.time_us, figures.bus_bw_gbs))
    if half.limit_us and half.limit_bytes:
        lines.setdefault(f"limit{ending}", []).append((size, half.limit_us, row.case.bus_bw_gbs(half.limit_us)))
