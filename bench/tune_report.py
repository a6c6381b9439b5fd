"""What ``multiring tune`` prints: what was measured, with intervals, and how well a model predicted benchmarks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from multiring.errors import ArgumentError
from multiring.topology.measured import COEFFICIENTS, HostRates, Measured, NetworkRates

__all__ = ["GOAL_MEDIAN", "GOAL_P90", "Checked", "check_files", "check_lines", "rates_lines"]

GOAL_MEDIAN, GOAL_P90 = 0.20, 0.50
"""What a prediction may be wrong by: the median, and the 90th percentile."""


def rates_lines(measured: Measured) -> Iterator[str]:
    """Yield a table of all links: each coefficient with its 95 % interval."""
    for rates in measured.hosts:
        yield from _host_lines(rates)
    if measured.network is not None:
        yield from _network_lines(measured.network)


def _host_lines(rates: HostRates) -> Iterator[str]:
    line = "" if rates.core_to_core_ns is None else f", a cache line from core to core {rates.core_to_core_ns:.0f} ns"
    yield f"shared memory, {rates.n_ranks} ranks on {rates.n_cores} cores{line}"
    yield (
        f"  {rates.n_points} calls, fitted with a median error of {rates.median_error:.1%}, "
        f"90th percentile {rates.p90_error:.1%}"
    )
    yield f"  {'value':>9}  {'95 % interval':>21}"
    for name, meaning in COEFFICIENTS.items():
        estimate = rates.estimates.get(name)
        if estimate is not None and estimate.value > 0:
            yield f"  {estimate.value:9.4f}  [{estimate.low:9.4f}, {estimate.high:8.4f}]  {name}: {meaning}"


def _network_lines(network: NetworkRates) -> Iterator[str]:
    yield f"network, {network.n_ranks} ranks on {network.n_nodes} nodes"
    yield (
        f"  {network.n_points} calls, fitted with a median error of {network.median_error:.1%}, "
        f"90th percentile {network.p90_error:.1%}"
    )
    for meaning, estimate in (
        ("call: between nodes, besides, us", network.call_us),
        ("latency: of a message in a step, us", network.latency_us),
        ("bandwidth: of a node's port each way, GB/s", network.bandwidth_gbs),
        ("host share: of processors' work that the network does not hide", network.host_share),
        ("gap: of each further message of a node in a step, us", network.gap_us),
        ("bare message: there and back, halved, us", network.message_us),
        ("bare port: all ranks of two nodes at once, GB/s each way", network.port_gbs),
    ):
        if estimate is not None:
            yield f"  {estimate.value:9.4f}  [{estimate.low:9.4f}, {estimate.high:8.4f}]  {meaning}"
    if network.host is not None:
        yield "  on its nodes:"
        yield from (f"  {line}" for line in _host_lines(network.host))


@dataclass(frozen=True, slots=True)
class Checked:
    """One prediction of a benchmark's report."""

    file: str
    collective: str
    size: int
    in_place: bool
    ranks: int
    predicted_us: float
    time_us: float

    @property
    def error(self) -> float:
        """Relative to the time."""
        return abs(self.predicted_us / self.time_us - 1.0)


def check_files(paths: Sequence[str]) -> list[Checked]:
    """Read the predictions and the times of ``multiring bench --json`` files.

    Raises
    ------
    ArgumentError
        If a file is another one, or has no predictions.
    """
    found: list[Checked] = []
    for path in paths:
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
            rows = [row for result in document["results"] for row in _halves(path, result, document)]
        except OSError as error:
            raise ArgumentError(f"--check: cannot read {path}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise ArgumentError(
                f"--check: {path}: got {type(error).__name__}: {error}, wanted a report of multiring bench --json"
            ) from None
        if not rows:
            raise ArgumentError(f"--check: {path} has no predicted times, wanted a report with some")
        found += rows
    return found


def _halves(path: str, result: Any, document: Any) -> Iterator[Checked]:
    for name in ("out_of_place", "in_place"):
        half = result[name]
        if half is not None and half["predicted_us"] and half["time"]:
            where = result["experiment_name"], int(result["size"]), name == "in_place", int(document["config"]["ranks"])
            yield Checked(path, *where, float(half["predicted_us"]), float(half["time"]))


def check_lines(checked: Sequence[Checked]) -> tuple[list[str], bool]:
    """Return a table of errors by ranks and collective, and whether all of them together keep to the goal."""
    lines = [f"{'ranks':>5}  {'collective':<15} {'calls':>6}  {'median':>7}  {'90 %':>7}  {'worst':>7}  at"]
    groups: dict[tuple[int, str], list[Checked]] = {}
    for one in checked:
        groups.setdefault((one.ranks, one.collective), []).append(one)
    for (ranks, collective), ones in sorted(groups.items()):
        lines.append(f"{ranks:5d}  {collective:<15} {_figures(ones)}")
    lines += [
        f"{ranks:5d}  {'all':<15} {_figures([one for one in checked if one.ranks == ranks])}"
        for ranks in sorted({one.ranks for one in checked})
    ]
    errors = [one.error for one in checked]
    kept = float(np.median(errors)) <= GOAL_MEDIAN and float(np.percentile(errors, 90)) <= GOAL_P90
    goal = f"the goal is a median of {GOAL_MEDIAN:.0%} and a 90th percentile of {GOAL_P90:.0%}"
    lines.append(f"{'kept' if kept else 'MISSED'}: {goal}")
    return lines, kept


def _figures(ones: Sequence[Checked]) -> str:
    errors = np.array([one.error for one in ones])
    worst = ones[int(errors.argmax())]
    place = "in place" if worst.in_place else "out of place"
    return (
        f"{len(ones):6d}  {np.median(errors):7.1%}  {np.percentile(errors, 90):7.1%}  {errors.max():7.1%}  "
        f"{worst.collective}, {worst.size} bytes {place}"
    )
