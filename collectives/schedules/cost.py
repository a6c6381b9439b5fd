"""What a schedule takes on a machine, by the alpha-beta-gamma model on shared wires.

a step  =  the longest latency of its paths  +  the fullest wire  +  the rank that adds most
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.schedules.schedule import Schedule, Step
from multiring.collectives.schedules.volume import chunk_bytes
from multiring.errors import ScheduleError
from multiring.topology.model import Resource, Topology

__all__ = ["Cost", "StepCost", "cost"]

BYTES_PER_US = 1000.0
"""At 1 GB/s."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """What one step takes.

    Attributes
    ----------
    latency_us : float
        Of the longest path in it.
    transfer_us : float
        Of the wire that has most to carry for its bandwidth.
    reduction_us : float
        Of the rank that adds most.
    bottleneck : Resource or None
        That wire; None where nothing moves.
    load_bytes : int
        What that wire carries.
    """

    latency_us: float
    transfer_us: float
    reduction_us: float
    bottleneck: Resource | None
    load_bytes: int

    @property
    def total_us(self) -> float:
        """All three."""
        return self.latency_us + self.transfer_us + self.reduction_us


@dataclass(frozen=True, slots=True)
class Cost:
    """What a schedule takes: its steps, one after another."""

    steps: tuple[StepCost, ...]

    @property
    def total_us(self) -> float:
        """The sum of the steps."""
        return math.fsum(step.total_us for step in self.steps)


def cost(schedule: Schedule, topology: Topology, nbytes: int, reduction_gbs: float = math.inf) -> Cost:
    """Predict the time of a schedule.

    Parameters
    ----------
    schedule : Schedule
        Any.
    topology : Topology
        Of as many ranks.
    nbytes : int
        Bytes of the whole vector, as in :func:`~multiring.collectives.schedules.volume.chunk_bytes`.
    reduction_gbs : float
        How fast one rank adds, in bytes of received summands; infinite where reading and adding overlap.

    Raises
    ------
    ScheduleError
        If the topology has another number of ranks, or the numbers are out of range.
    TopologyError
        If a transfer has no path.

    Notes
    -----
    The bytes of all transfers of a step that cross one wire add up, whoever sends them: with a wire for each pair of
    ranks instead, a good and a bad ring order would cost the same. Steps do not overlap, so the prediction of a
    pipelined chain holds if its chunks are its slices.
    """
    if topology.n_ranks != schedule.n_ranks:
        raise ScheduleError(
            f"cost: got {schedule.algorithm} of {schedule.n_ranks} ranks on {topology.name} of {topology.n_ranks}, "
            "wanted equal numbers"
        )
    if nbytes < 0 or not reduction_gbs > 0:
        raise ScheduleError(f"cost: got {nbytes} bytes at {reduction_gbs} GB/s, wanted at least 0 at more than 0")
    sizes = chunk_bytes(schedule, nbytes)
    crossings = _Crossings(_wires_of(topology))
    return Cost(tuple(_step_cost(step, sizes, crossings, reduction_gbs) for step in schedule.steps))


def _step_cost(step: Step, sizes: NDArray[np.int64], crossings: _Crossings, reduction_gbs: float) -> StepCost:
    if not len(step):
        return StepCost(0.0, 0.0, 0.0, None, 0)
    moved = sizes[step.chunk]
    latency_us, resource, row = crossings.of(step)
    wires = crossings.wires
    load = np.bincount(resource, weights=moved[row], minlength=len(wires.resources))
    times_us = load / (np.array(wires.bandwidths_gbs) * BYTES_PER_US)
    worst = int(times_us.argmax())
    added = np.bincount(step.dst[step.reduce], weights=moved[step.reduce], minlength=1).max()
    return StepCost(
        latency_us,
        float(times_us[worst]),
        float(added / (reduction_gbs * BYTES_PER_US)),
        wires.resources[worst],
        int(load[worst]),
    )


class _Wires:
    """The resources of a topology, numbered as they are met, and the paths that were asked for."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.resources: list[Resource] = []
        self.bandwidths_gbs: list[float] = []
        self._numbers: dict[Resource, int] = {}
        self._paths: dict[tuple[int, int], tuple[float, list[int]]] = {}

    def path(self, src: int, dst: int) -> tuple[float, list[int]]:
        """Return the latency of a path and its resources."""
        found = self._paths.get((src, dst))
        if found is None:
            path = self.topology.path(src, dst)
            found = math.fsum(wire.latency_us for wire in path), [self._number(wire) for wire in path]
            self._paths[src, dst] = found
        return found

    def _number(self, wire: Resource) -> int:
        if wire not in self._numbers:
            self._numbers[wire] = len(self.resources)
            self.resources.append(wire)
            self.bandwidths_gbs.append(wire.bandwidth_gbs)
        return self._numbers[wire]


@lru_cache(maxsize=4)
def _wires_of(topology: Topology) -> _Wires:
    # Exploring prices hundreds of schedules on one topology.
    return _Wires(topology)


class _Crossings:
    """Which wires the transfers of a step cross; most algorithms use the same pairs in many steps."""

    def __init__(self, wires: _Wires) -> None:
        self.wires = wires
        self._steps: dict[bytes, tuple[float, NDArray[np.int64], NDArray[np.int64]]] = {}

    def of(self, step: Step) -> tuple[float, NDArray[np.int64], NDArray[np.int64]]:
        """Return the longest latency, and a resource and a row of the step for each crossing."""
        key = step.src.tobytes() + step.dst.tobytes()
        if key not in self._steps:
            paths = [self.wires.path(src, dst) for src, dst in zip(step.src.tolist(), step.dst.tolist(), strict=True)]
            resource = np.array([number for _, numbers in paths for number in numbers], dtype=np.int64)
            row = np.repeat(np.arange(len(paths)), [len(numbers) for _, numbers in paths])
            self._steps[key] = max(latency_us for latency_us, _ in paths), resource, row
        return self._steps[key]
