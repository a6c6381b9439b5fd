"""The machine-readable reports: one JSON document, one CSV table."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from multiring.bench.rows import Half, Row, average_bus_bandwidth, count_errors, type_name

__all__ = ["SCHEMA_VERSION", "csv_columns", "document", "dump", "write_csv"]

SCHEMA_VERSION = 3
"""That of nccl-tests' JSON, whose keys ours extend."""


def document(
    rows: Sequence[Row], config: Mapping[str, Any], arguments: Sequence[str], start_time: str, end_time: str
) -> dict[str, Any]:
    """Return the report as plain data.

    Notes
    -----
    Keys are nccl-tests', times are in microseconds and bandwidths in GB/s (1e9 bytes). What is missing is null, and so
    is a figure that is not finite. ``root`` is -1 where there is none.
    """
    return {
        "version": SCHEMA_VERSION,
        "start_time": start_time,
        "args": list(arguments),
        "config": dict(config),
        "results": [_row(row) for row in rows],
        "out_of_bounds": {"count": count_errors(rows), "okay": not count_errors(rows)},
        "average_bus_bandwidth": _finite(average_bus_bandwidth(rows)),
        "errors": count_errors(rows),
        "end_time": end_time,
    }


def _row(row: Row) -> dict[str, Any]:
    case = row.case
    return {
        "size": case.size_bytes,
        "count": case.count,
        "type": type_name(case.dtype.name),
        "redop": case.operation_name,
        "root": case.root,
        "algorithm": row.algorithm,
        "out_of_place": _half(row.out_of_place),
        "in_place": _half(row.in_place),
        "actual_iterations": row.iterations,
        "experiment_name": case.collective,
    }


def _half(half: Half | None) -> dict[str, Any] | None:
    if half is None:
        return None
    return {
        "time": _finite(half.time_us),
        "alg_bw": _finite(half.alg_bw_gbs),
        "bus_bw": _finite(half.bus_bw_gbs),
        "nwrong": half.n_wrong,
        "fastest_us": _finite(half.fastest_us),
        "predicted_us": _finite(half.predicted_us),
        "limit_us": _finite(half.limit_us),
        "limit_bytes": half.limit_bytes,
        "peers": {
            name: {
                "time": _finite(peer.time_us),
                "alg_bw": _finite(peer.alg_bw_gbs),
                "bus_bw": _finite(peer.bus_bw_gbs),
                "ratio": _finite(peer.ratio),
                "nwrong": peer.n_wrong,
                "fastest_us": _finite(peer.fastest_us),
                "how": peer.how,
            }
            for name, peer in half.peers.items()
        },
    }


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def dump(report: Mapping[str, Any], destination: str, stdout: TextIO) -> None:
    """Write the report to a file, or to standard output where the destination is ``-``."""
    text = json.dumps(report, indent=1, allow_nan=False) + "\n"
    if destination == "-":
        stdout.write(text)
        stdout.flush()
    else:
        Path(destination).write_text(text, encoding="utf-8")


def csv_columns(peers: Sequence[str]) -> list[str]:
    """Return the names of the CSV columns."""
    columns = ["size", "count", "type", "redop", "root", "algorithm", "half", "time_us", "alg_bw_gbs", "bus_bw_gbs"]
    columns += ["nwrong", "predicted_us", "limit_us", "limit_bytes"]
    for peer in peers:
        columns += [f"{peer}_{name}" for name in ("time_us", "alg_bw_gbs", "bus_bw_gbs", "ratio", "nwrong", "how")]
    return columns


def write_csv(rows: Sequence[Row], path: str, peers: Sequence[str]) -> None:
    """Write one line for each size and half; what is missing is empty."""
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(csv_columns(peers))
        for row in rows:
            entry = _row(row)
            left = [entry[key] for key in ("size", "count", "type", "redop", "root", "algorithm")]
            for name in ("out_of_place", "in_place"):
                half = entry[name]
                if half is None:
                    continue
                line = [*left, name, *(half[key] for key in ("time", "alg_bw", "bus_bw", "nwrong", "predicted_us"))]
                line += [half["limit_us"], half["limit_bytes"]]
                for peer in peers:
                    figures = half["peers"].get(peer, {})
                    line += [figures.get(key) for key in ("time", "alg_bw", "bus_bw", "ratio", "nwrong", "how")]
                writer.writerow(line)
