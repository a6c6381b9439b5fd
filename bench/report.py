"""The table that a benchmark prints: nccl-tests' columns to the character, then ours."""

from __future__ import annotations

from collections.abc import Sequence

from multiring.bench.rows import Half, Row, average_bus_bandwidth, count_errors, type_name

__all__ = ["footer_lines", "format_figure", "header_lines", "row_line", "table_header"]

_NCCL_LEFT = "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}"
_NCCL_HALF = "  {:>7}  {:>6}  {:>6}  {:>6}"
_ALGORITHM_WIDTH = 20


def format_figure(value: float | None, width: int, missing: str = "N/A") -> str:
    """Write a number as nccl-tests does: with fewer decimals, then in exponent form, as it outgrows its column.

    Parameters
    ----------
    value : float or None
        None is written as ``missing``.
    width : int
        Of the column; the result has at least that.
    """
    if value is None:
        return missing.rjust(width)
    power, bound = 0, 1
    while value >= bound and power < 20:
        power, bound = power + 1, bound * 10
    if power < width - 2:
        return f"{value:{width}.2f}"
    if power < width - 1:
        return f"{value:{width}.1f}"
    if power < width + 1:
        return f"{value:{width}.0f}"
    return f"{value:{width}.1e}" if width >= 7 else f"{value:{width}.0e}"


def table_header(peers: Sequence[str] = ()) -> list[str]:
    """Return the three heading lines.

    Notes
    -----
    After nccl-tests' columns come ``alg``, then for each half ``pred(us)``, ``%limit`` and one ``x`` column for each
    peer: first those out of place, then those in place.
    """
    left = "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}"
    half = "  {:>7}  {:>6}  {:>6}  {:>6}"
    names = left.format("size", "count", "type", "redop", "root") + 2 * half.format("time", "algbw", "busbw", "#wrong")
    units = left.format("(B)", "(elements)", "", "", "") + 2 * half.format("(us)", "(GB/s)", "(GB/s)", "")
    groups = left.format("", "", "", "", "") + "           out-of-place                       in-place          "
    ours = "".join(f"  {name:>8}" for name in ("pred(us)", "%limit", *(f"x{peer.upper()}" for peer in peers)))
    groups = groups.ljust(len(names)) + "  " + " " * _ALGORITHM_WIDTH
    groups += f"{'out-of-place':^{len(ours)}}{'in-place':^{len(ours)}}"
    return [groups.rstrip(), names + f"  {'alg':<{_ALGORITHM_WIDTH}}" + 2 * ours, units]


def row_line(row: Row, peers: Sequence[str] = ()) -> str:
    """Return a measured line."""
    case = row.case
    root = str(case.root)
    line = _NCCL_LEFT.format(case.size_bytes, case.count, type_name(case.dtype.name), case.operation_name, root)
    line += "".join(_nccl_half(half) for half in row.halves.values())
    line += f"  {row.algorithm:<{_ALGORITHM_WIDTH}}"
    return (line + "".join(_our_half(half, peers) for half in row.halves.values())).rstrip()


def _nccl_half(half: Half | None) -> str:
    if half is None:
        return _NCCL_HALF.format("N/A", "N/A", "N/A", "N/A")
    wrong = "N/A" if half.n_wrong is None else f"{half.n_wrong:g}"
    return _NCCL_HALF.format(
        format_figure(half.time_us, 7), format_figure(half.alg_bw_gbs, 6), format_figure(half.bus_bw_gbs, 6), wrong
    )


def _our_half(half: Half | None, peers: Sequence[str]) -> str:
    if half is None:
        return "".join(f"  {'N/A':>8}" for _ in range(2 + len(peers)))
    line = f"  {format_figure(half.predicted_us, 8, '-')}  {format_figure(half.limit_percent, 8, '-')}"
    for peer in peers:
        figures = half.peers.get(peer)
        line += f"  {format_figure(None if figures is None else figures.ratio, 8, '-')}"
    return line


def header_lines(
    collective: str,
    version: str,
    sizes: Sequence[int],
    step: tuple[int | float, str],
    warmup: int,
    iterations: int | None,
    validation: int,
    devices: Sequence[str],
    notes: Sequence[str],
) -> list[str]:
    """Return the lines before the table, each a comment.

    Parameters
    ----------
    step : tuple of (number, "factor" or "bytes")
    iterations : int or None
        None where it depends on the size; printed as 0.
    devices : sequence of str
        One line for each rank.
    notes : sequence of str
        What else a reader of the figures must know.
    """
    first, last = sizes[0], sizes[-1]
    run = f"# nThread 1 nGpus 1 minBytes {first} maxBytes {last} step: {step[0]:g}({step[1]}) warmup iters: {warmup} "
    run += f"iters: {iterations or 0} agg iters: 1 validation: {validation} graph: 0 unalign: 0"
    return [
        f"# multiring bench version {version}",
        f"# Collective test starting: {collective}",
        run,
        "#",
        "# Using devices",
        *(f"#  {device}" for device in devices),
        *(f"# {note}" for note in notes),
        "#",
    ]


def footer_lines(collective: str, rows: Sequence[Row], n_ranks: int) -> list[str]:
    """Return the lines after the table."""
    errors, average = count_errors(rows), average_bus_bandwidth(rows)
    if average is not None:
        bandwidth = f"{average:g} "
    elif n_ranks == 1:
        bandwidth = "n/a (one rank: nothing crosses a bus)"
    else:
        bandwidth = "n/a"
    return [
        f"# {'Out of bounds values':<20} : {errors} {'FAILED' if errors else 'OK'}",
        f"# {'Avg bus bandwidth':<20} : {bandwidth}",
        "#",
        f"# Collective test concluded: {collective}",
    ]
