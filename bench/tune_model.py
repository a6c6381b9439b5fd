"""From timed points to rates: the matrix that the price of each point is linear in, the fit, and its intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from multiring.bench.tune_fit import Fit, fit
from multiring.bench.tune_points import Point
from multiring.collectives.drivers.control import Layout
from multiring.collectives.schedules.collective import Collective
from multiring.collectives.schedules.cost import cost, further_messages
from multiring.collectives.schedules.explore import built
from multiring.collectives.schedules.measured_cost import MOVING, WAITING, Manner, features
from multiring.errors import ArgumentError
from multiring.topology.cluster import cluster_topology
from multiring.topology.measured import COEFFICIENTS, Estimate, HostRates, Measured, NetworkRates

FIRST_GAP_US = 5.0
ROUNDS = 6
"""Of the search for which steps are full of bytes; after three nothing changes any more, in our experience."""

__all__ = ["combined", "fitted_network", "fitted_rates", "matrix_of", "spread_of"]


def combined(starts: Sequence[Mapping[Point, float]]) -> dict[Point, float]:
    """Return the median of each point over process starts.

    Raises
    ------
    ArgumentError
        If there is none, or they did not time the same points.
    """
    if not starts or any(set(start) != set(starts[0]) for start in starts):
        raise ArgumentError(f"tune: got {[len(start) for start in starts]} points, wanted the same ones in each start")
    return {point: float(np.median([start[point] for start in starts])) for point in starts[0]}


def spread_of(starts: Sequence[Mapping[Point, float]]) -> float:
    """Return how far a start's time of a point is from the median of all starts, usually: a relative error."""
    middle = combined(starts)
    return float(np.median([abs(start[point] / middle[point] - 1.0) for start in starts for point in middle]))


def matrix_of(points: Sequence[Point], rates: HostRates) -> NDArray[np.float64]:
    """Return how often each point does what each coefficient stands for."""
    nodes = (0,) * rates.n_ranks
    rows = []
    for point in points:
        schedule = built(point.algorithm, Collective(point.collective), rates.n_ranks)
        manner = Manner(point.symmetric, point.in_place, point.named)
        rows.append(features(schedule, point.vector_bytes(rates.n_ranks), rates, manner, nodes).sum(axis=(0, 1)))
    return np.array(rows).reshape(len(rows), len(COEFFICIENTS))


def fitted_rates(
    times_us: Mapping[Point, float], n_ranks: int, n_cores: int, core_to_core_ns: float | None = None
) -> HostRates:
    """Fit the coefficients to what was measured.

    Parameters
    ----------
    times_us : mapping of Point to float
    n_ranks, n_cores : int
    core_to_core_ns : float, optional
        Kept with the result.
    """
    layout = Layout(n_ranks)
    bare = HostRates(n_ranks, n_cores, {}, layout.eager_bytes, layout.slot_bytes)
    points = list(times_us)
    found = fit(matrix_of(points, bare), np.array([times_us[point] for point in points]))
    estimates = {
        name: Estimate(*(float(bound[at]) for bound in (found.values, found.low, found.high)))
        for at, name in enumerate(COEFFICIENTS)
        if found.high[at] > 0
    }
    return HostRates(
        n_ranks,
        n_cores,
        estimates,
        layout.eager_bytes,
        layout.slot_bytes,
        len(points),
        found.median_error,
        found.p90_error,
        core_to_core_ns,
    )


_Call = tuple[float, NDArray[np.float64], NDArray[np.float64], float]
"""Latencies of a call, kilobytes and further messages of each of its steps, and what processors do in it."""


def _fit_steps(calls: Sequence[_Call], measured_us: NDArray[np.float64], per_kilobyte_us: float, gap_us: float) -> Fit:
    """Fit calls of which each step counts either its bytes or its further messages."""
    rows = []
    for waiting, kilobytes, further, host_us in calls:
        full = kilobytes * per_kilobyte_us >= further * gap_us
        rows.append((1.0, waiting, kilobytes[full].sum(), host_us, further[~full].sum()))
    return fit(np.array(rows), measured_us)


def fitted_network(
    times_us: Mapping[Point, float], nodes: tuple[int, ...], host: HostRates | None, bare: Mapping[str, Estimate]
) -> NetworkRates:
    """Fit what the network adds to calls, given what the ranks of a node take.

    Parameters
    ----------
    times_us : mapping of Point to float
        Of calls between nodes.
    nodes : tuple of int
        The node of each rank.
    host : HostRates or None
        Of the ranks of a node; None where each has one.
    bare : mapping of str to Estimate
        ``message_us`` and ``port_gbs``.
    """
    nothing = HostRates(1, 1, {}) if host is None else host
    # Wires of 1 us and 1 GB/s count latencies and kilobytes.
    unit = Estimate(1.0, 1.0, 1.0)
    units = cluster_topology(nodes, measured=Measured((), NetworkRates(unit, unit, 2, 2, host=nothing)))
    node_of: NDArray[np.int64] = np.array(nodes, dtype=np.int64)
    calls: list[_Call] = []
    for point in times_us:
        schedule = built(point.algorithm, Collective(point.collective), len(nodes), units)
        nbytes, manner = point.vector_bytes(len(nodes)), Manner(point.symmetric, point.in_place, point.named)
        parts = features(schedule, nbytes, nothing, manner, nodes) @ nothing.values
        steps = cost(schedule, units, nbytes, manner=manner).steps
        waiting = sum(step.latency_us - part[WAITING] for step, part in zip(steps, parts[1:], strict=True))
        calls.append(
            (
                float(waiting),
                np.array([step.transfer_us - part[MOVING] for step, part in zip(steps, parts[1:], strict=True)]),
                np.array([further_messages(step, node_of) for step in schedule.steps], dtype=np.float64),
                float(parts.sum()),
            )
        )
    measured_us = np.array(list(times_us.values()))
    # In a step the bytes count or the further messages, whichever take longer: that depends on what is looked for.
    per_kilobyte_us = 1.0 / bare["port_gbs"].value if "port_gbs" in bare else 1.0
    found = _fit_steps(calls, measured_us, per_kilobyte_us, FIRST_GAP_US)
    for _ in range(ROUNDS - 1):
        found = _fit_steps(calls, measured_us, float(found.values[2]), float(found.values[4]))
    call_us, latency_us, per_kilobyte, share, gap_us = (
        Estimate(*(float(bound[at]) for bound in (found.values, found.low, found.high))) for at in range(5)
    )
    least = 1e-6  # a network that seems to be infinitely quick
    bandwidth_gbs = Estimate(
        *(1.0 / max(us, least) for us in (per_kilobyte.value, per_kilobyte.high, per_kilobyte.low))
    )
    return NetworkRates(
        latency_us,
        bandwidth_gbs,
        max(nodes) + 1,
        len(nodes),
        call_us,
        share,
        gap_us,
        bare.get("message_us"),
        bare.get("port_gbs"),
        host,
        len(calls),
        found.median_error,
        found.p90_error,
    )
