"""Fitting coefficients that are at least 0 to measured times, and how sure they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from multiring.errors import ArgumentError

__all__ = ["Fit", "errors", "fit", "nonnegative_least_squares"]

Matrix = NDArray[np.float64]

SWEEPS = 2000
TOLERANCE = 1e-6
REWEIGHTINGS = 5
SPREAD = 0.15
"""Relative error from which a point counts less: a call that was disturbed must not bend the others."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Coefficients with their 95 % intervals, and the relative error on what was fitted."""

    values: Matrix
    low: Matrix
    high: Matrix
    median_error: float
    p90_error: float


def nonnegative_least_squares(matrix: Matrix, wanted: Matrix, start: Matrix | None = None) -> Matrix:
    """Return the x >= 0 that minimises ``|matrix @ x - wanted|``, by cyclic coordinate descent.

    Parameters
    ----------
    matrix : ndarray, shape (points, coefficients)
    wanted : ndarray, shape (points,)
    start : ndarray, optional
        Where to begin: near the answer it is found sooner.

    Notes
    -----
    Columns of zeros get 0. The problem is convex, and with tens of columns descent is at the optimum at once.
    """
    gram, right = matrix.T @ matrix, matrix.T @ wanted
    diagonal = np.diag(gram).copy()
    used = np.flatnonzero(diagonal > 0)
    found = np.zeros(matrix.shape[1])
    if not used.size:
        return found
    scale = np.sqrt(diagonal[used])
    gram, right = gram[np.ix_(used, used)] / np.outer(scale, scale), right[used] / scale
    x = np.zeros(used.size) if start is None else start[used] * scale
    slope = gram @ x - right  # of the objective
    for _ in range(SWEEPS):
        most = 0.0
        for at in range(x.size):
            change = max(x[at] - slope[at], 0.0) - x[at]
            if change:
                x[at] += change
                slope += change * gram[at]
                most = max(most, abs(change))
        if most <= TOLERANCE * (x.max() + 1e-300):
            break
    found[used] = x / scale
    return found


def fit(matrix: Matrix, times_us: Matrix, resamples: int = 60, seed: int = 1) -> Fit:
    """Fit times that are linear in coefficients, by their relative errors.

    Parameters
    ----------
    matrix : ndarray, shape (points, coefficients)
        How often each point does what a coefficient stands for.
    times_us : ndarray, shape (points,)
        Above 0.
    resamples : int
        Of the bootstrap that gives the intervals: points are drawn again, with replacement.
    seed : int
        Of that drawing.

    Raises
    ------
    ArgumentError
        If there are no points, or a time is not above 0.
    """
    if not times_us.size or matrix.shape[0] != times_us.size or not (times_us > 0).all():
        raise ArgumentError(
            f"fit: got {matrix.shape[0]} rows for {times_us.size} times, the least {times_us.min(initial=0.0):g} us, "
            "wanted as many of both, and times above 0"
        )
    relative = matrix / times_us[:, None]
    values, weights = _robust(relative)
    rng = np.random.default_rng(seed)
    draws = []
    for _ in range(resamples):
        chosen = rng.integers(0, times_us.size, times_us.size)
        rows = relative[chosen] * weights[chosen, None]
        draws.append(nonnegative_least_squares(rows, weights[chosen], values))
    low, high = np.percentile(np.array(draws or [values]), [2.5, 97.5], axis=0)
    median_error, p90_error = errors(matrix @ values, times_us)
    return Fit(values, np.minimum(low, values), np.maximum(high, values), median_error, p90_error)


def errors(predicted_us: Matrix, times_us: Matrix) -> tuple[float, float]:
    """Return the median and the 90th percentile of the relative error."""
    error = np.abs(predicted_us / times_us - 1.0)
    return float(np.median(error)), float(np.percentile(error, 90))


def _robust(relative: Matrix) -> tuple[Matrix, Matrix]:
    """Fit the ratio of predicted to measured time to 1; far points count less each time. Return values and weights."""
    weights, values = np.ones(len(relative)), np.zeros(relative.shape[1])
    for _ in range(REWEIGHTINGS):
        values = nonnegative_least_squares(relative * weights[:, None], weights, values)
        weights = 1.0 / np.sqrt(1.0 + ((relative @ values - 1.0) / SPREAD) ** 2)
    return values, weights
