"""From timed points to rates: the matrix that the price of each point is linear in, the fit, and its intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from multiring.bench.tune_fit import fit
from multiring.bench.tune_points import Point
from multiring.collectives.drivers.control import Layout
from multiring.collectives.schedules.collective import Collective
from multiring.collectives.schedules.explore import built
from multiring.collectives.schedules.measured_cost import Manner, features
from multiring.errors import ArgumentError
from multiring.topology.measured import COEFFICIENTS, Estimate, HostRates

__all__ = ["combined", "fitted_rates", "matrix_of"]


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
