"""What was measured on a machine: times that a model fits to calls, with their intervals.

A time is linear in a few coefficients, each at least 0: so much for starting a call, for each step, for each act, and
for each byte that is read or written. Bytes cost more the further the memory of a call outgrows the caches: their
coefficients are tables over the bytes that all ranks touch, at :data:`KNOTS_BYTES`, and between two knots the mean of
both by their logarithms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "COEFFICIENTS",
    "KNOTS_BYTES",
    "MOST_RANKS",
    "TABLES",
    "Estimate",
    "HostRates",
    "Measured",
    "NetworkRates",
    "knot_weights",
]

KNOTS_BYTES = tuple(1 << shift for shift in (14, 17, 20, 22, 24, 25, 26, 28))
"""16 KiB to 256 MiB: from the first-level cache of a core to main memory."""

MOST_RANKS = 64
"""With more, counting the copies and sums of all algorithms takes longer than calls do: wires alone are priced."""

STARTED = ("all_reduce", "reduce", "broadcast", "reduce_scatter", "all_gather", "all_to_all", "gather", "scatter")

TABLES: dict[str, str] = {
    "own_read": "reading the rank's own array",
    "peer_read": "reading a peer's array",
    "write": "copying into an array",
    "sum_write": "adding into an array apart from the inputs",
    "rewrite": "adding into an array in place",
}
"""What has a coefficient at each knot, in microseconds for each 1000 bytes."""

COEFFICIENTS: dict[str, str] = {
    "call.eager": "a call whose bytes travel with its arrival, us",
    "call.symmetric": "a call on symmetric memory, us",
    "call.ordinary": "a call on ordinary arrays, us",
    **{
        f"{way}.{name}.{where}": f"starting {name} {where.replace('_', ' ')}{how}, besides, us"
        for way, how in (("start", ""), ("named", " by an algorithm's name"))
        for name in STARTED
        for where in ("out_of_place", "in_place")
    },
    "step.eager": "a step of an eager call, us",
    "step": "a step, us",
    "act": "a copy or a sum of one chunk, us",
    "slice.step": "a step of each further slice, us",
    "slice.act": "a copy or a sum of each further slice, us",
    "slot_read": "reading a shared slot, us for 1000 bytes",
    "slot_write": "copying into a shared slot, us for 1000 bytes",
    "slot_sum_write": "adding into a shared slot, us for 1000 bytes",
    "sum": "adding, us for 1000 bytes of summands",
    **{
        f"{table}.{knot}": f"{what}, {knot} bytes in all, us for 1000 bytes"
        for table, what in TABLES.items()
        for knot in KNOTS_BYTES
    },
}
"""By name, what each one means; the order is that of the columns of a fit."""

COLUMN = {name: at for at, name in enumerate(COEFFICIENTS)}


@dataclass(frozen=True, slots=True)
class Estimate:
    """A fitted value and its 95 % confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class HostRates:
    """Ranks that share the memory of one host.

    Attributes
    ----------
    n_ranks, n_cores : int
        How many were measured, on how many cores.
    estimates : mapping of str to Estimate
        By the names of :data:`COEFFICIENTS`; those that are left out are 0.
    eager_bytes, slot_bytes : int
        The executor's sizes.
    n_points : int
        Calls that were fitted.
    median_error, p90_error : float
        Of the fit on those calls, relative to what was measured.
    core_to_core_ns : float or None
        The time of a cache line from core to core, then.
    """

    n_ranks: int
    n_cores: int
    estimates: Mapping[str, Estimate]
    eager_bytes: int = 8192
    slot_bytes: int = 128 << 10
    n_points: int = 0
    median_error: float = 0.0
    p90_error: float = 0.0
    core_to_core_ns: float | None = None

    @property
    def shares_cores(self) -> bool:
        """Whether there were more ranks than cores: what ranks of one core do then adds up."""
        return self.n_ranks > self.n_cores

    @cached_property
    def values(self) -> NDArray[np.float64]:
        """The coefficients in the order of :data:`COEFFICIENTS`."""
        found = np.zeros(len(COEFFICIENTS))
        for name, estimate in self.estimates.items():
            found[COLUMN[name]] = estimate.value
        return found

    def us_per_kilobyte(self, table: str, nbytes: float) -> float:
        """Return a table's value where all ranks touch so many bytes."""
        at = COLUMN[f"{table}.{KNOTS_BYTES[0]}"]
        return float(knot_weights(nbytes) @ self.values[at : at + len(KNOTS_BYTES)])

    @property
    def bandwidth_gbs(self) -> float:
        """One rank copying from a peer, 1 MiB in all."""
        nbytes = 1 << 20
        us = self.us_per_kilobyte("peer_read", nbytes) + self.us_per_kilobyte("write", nbytes)
        return 1.0 / max(us, 1e-4)

    @property
    def latency_us(self) -> float:
        """A step and its act."""
        return float(self.values[COLUMN["step"]] + self.values[COLUMN["act"]])


@dataclass(frozen=True, slots=True)
class NetworkRates:
    """Calls between hosts.

    Attributes
    ----------
    latency_us, bandwidth_gbs : Estimate
        Of a message in a step of a call, and of what the port of a host carries each way.
    n_nodes, n_ranks : int
        How many were measured.
    call_us : Estimate
        What a call takes besides.
    host_share : Estimate
        How much of what processors do is not hidden behind the network.
    gap_us : Estimate
        What each further message adds that a host sends or gets in a step.
    message_us, port_gbs : Estimate or None
        A message there and back, halved, and all ranks of two hosts sending at once: the bare network, to compare.
    host : HostRates or None
        The ranks of one of these hosts, on the cores that they had.
    n_points : int
        Calls that were fitted.
    median_error, p90_error : float
        Of the fit on those calls.
    """

    latency_us: Estimate
    bandwidth_gbs: Estimate
    n_nodes: int
    n_ranks: int
    call_us: Estimate = Estimate(0.0, 0.0, 0.0)
    host_share: Estimate = Estimate(1.0, 1.0, 1.0)
    gap_us: Estimate = Estimate(0.0, 0.0, 0.0)
    message_us: Estimate | None = None
    port_gbs: Estimate | None = None
    host: HostRates | None = None
    n_points: int = 0
    median_error: float = 0.0
    p90_error: float = 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything that was measured on one kind of machine.

    Attributes
    ----------
    hosts : tuple of HostRates
        At most one for each number of ranks.
    network : NetworkRates or None
    """

    hosts: tuple[HostRates, ...] = ()
    network: NetworkRates | None = None

    def for_ranks(self, n_ranks: int) -> HostRates | None:
        """Return the rates for so many ranks on a host; those of the nearest number, if that one was not measured.

        A number that shares cores stands only for others that do: ranks that wait for a core are another world.
        """
        if not self.hosts:
            return None

        def distance(rates: HostRates) -> tuple[bool, float]:
            return rates.shares_cores != (n_ranks > rates.n_cores), abs(np.log(rates.n_ranks / n_ranks))

        return min(self.hosts, key=distance)


def knot_weights(nbytes: float) -> NDArray[np.float64]:
    """Return the share of each of :data:`KNOTS_BYTES` in a table's value."""
    knots = np.log2(np.array(KNOTS_BYTES, dtype=np.float64))
    weights = np.zeros(knots.size)
    place = float(np.clip(np.log2(max(nbytes, 1.0)), knots[0], knots[-1]))
    at = min(int(np.searchsorted(knots, place, "right")) - 1, knots.size - 2)
    share = (place - knots[at]) / (knots[at + 1] - knots[at])
    weights[at], weights[at + 1] = 1.0 - share, share
    return weights
