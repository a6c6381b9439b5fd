"""What ranks with a core each are assumed to take on a host that was not measured: prices, never choices, use it."""

from __future__ import annotations

import math

from multiring.topology.measured import KNOTS_BYTES, Estimate, HostRates, Measured

__all__ = ["ASSUMED"]

# Fitted by multiring tune on two cores of an AMD EPYC (family 26, 32 MiB of third-level cache, 59 ns for a cache line
# from core to core), 1420 calls; another machine differs by factors.
_VALUES = {
    "call.eager": 0.88,
    "call.symmetric": 1.1,
    "call.ordinary": 1.1,
    "start.all_reduce.out_of_place": 0.39,
    "start.reduce.out_of_place": 6.2,
    "start.reduce.in_place": 0.56,
    "start.broadcast.out_of_place": 5.8,
    "start.broadcast.in_place": 0.65,
    "start.reduce_scatter.out_of_place": 0.64,
    "start.reduce_scatter.in_place": 0.6,
    "start.all_gather.out_of_place": 0.6,
    "start.all_gather.in_place": 0.57,
    "start.all_to_all.out_of_place": 0.61,
    "start.gather.out_of_place": 0.73,
    "start.gather.in_place": 0.63,
    "start.scatter.out_of_place": 5.3,
    "start.scatter.in_place": 5.3,
    "named.all_reduce.out_of_place": 1.1,
    "named.all_reduce.in_place": 0.83,
    "named.reduce.out_of_place": 6.5,
    "named.reduce.in_place": 0.88,
    "named.broadcast.out_of_place": 6.2,
    "named.broadcast.in_place": 0.93,
    "named.reduce_scatter.out_of_place": 1.0,
    "named.reduce_scatter.in_place": 0.98,
    "named.all_gather.out_of_place": 0.98,
    "named.all_gather.in_place": 0.94,
    "named.all_to_all.out_of_place": 1.0,
    "named.gather.out_of_place": 1.1,
    "named.gather.in_place": 0.99,
    "named.scatter.out_of_place": 6.1,
    "named.scatter.in_place": 6.1,
    "step.eager": 0.003,
    "act": 0.013,
    "slice.act": 0.14,
    "slot_read": 0.014,
    "slot_write": 0.01,
    "slot_sum_write": 0.013,
}
_TABLES = {
    "own_read": (0.0048, 0.0, 0.0044, 0.0092, 0.0035, 0.012, 0.0, 0.02),
    "peer_read": (0.0, 0.011, 0.014, 0.017, 0.011, 0.021, 0.0079, 0.029),
    "write": (0.014, 0.0024, 0.0065, 0.0039, 0.014, 0.017, 0.034, 0.017),
    "sum_write": (0.012, 0.0087, 0.011, 0.0092, 0.036, 0.062, 0.067, 0.047),
    "rewrite": (0.0, 0.0028, 0.003, 0.0, 0.01, 0.0056, 0.069, 5e-17),
}


def _estimates() -> dict[str, Estimate]:
    values = dict(_VALUES)
    for table, column in _TABLES.items():
        values |= {f"{table}.{knot}": value for knot, value in zip(KNOTS_BYTES, column, strict=True)}
    return {name: Estimate(value, 0.0, math.inf) for name, value in values.items()}


ASSUMED = Measured((HostRates(2, 1 << 20, _estimates()),))
"""With intervals that say that nothing is known, and as if no ranks shared a core."""
