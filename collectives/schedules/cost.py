"""What a schedule takes on a machine, by the alpha-beta-gamma model on shared wires.

a step  =  the latency of the rank with most messages  +  the fullest wire  +  the rank that adds most

whole vector   launch | step 0     | step 1     | step 2     |
two slices     launch | step 0 | step 1 | step 2 |                 the second slice follows the first by an interval: as
                               | step 0 | step 1 | step 2 |        long as the busiest wire works for one slice
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.schedules.crossings import Crossings, wires_of
from multiring.collectives.schedules.measured_cost import MOVING, SUMMING, SYMMETRIC, WAITING, Manner, features
from multiring.collectives.schedules.schedule import Schedule, Step
from multiring.collectives.schedules.volume import chunk_bytes
from multiring.errors import ScheduleError
from multiring.topology.model import Resource, Topology

__all__ = ["Cost", "Manner", "StepCost", "cost"]

BYTES_PER_US = 1000.0
"""At 1 GB/s."""
MESSAGE_GAP = 0.25
"""What each further message of a rank adds in a step, as a share of its latency: the gap of the LogP model. A start,
until the machine is measured; 0 would let one rank talk to thousands in the time of one message."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """What one step takes.

    Attributes
    ----------
    latency_us : float
        Of the rank with most messages: its longest path, and a share of the others.
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

    def sliced_us(self, slices: int) -> float:
        """Return what the step takes for one of so many slices."""
        return self.latency_us + (self.transfer_us + self.reduction_us) / slices


@dataclass(frozen=True, slots=True)
class Cost:
    """What a schedule takes: its steps, one after another, for one slice of the vector after another.

    Attributes
    ----------
    steps : tuple of StepCost
        Of the whole vector.
    slices : int
        Into how many pieces the vector is cut that follow each other through the steps.
    busiest_us : float
        Of the wire, or the adding rank, that works longest in all steps together.
    launch_us : float
        Before the first step.
    """

    steps: tuple[StepCost, ...]
    slices: int = 1
    busiest_us: float = 0.0
    launch_us: float = 0.0

    @property
    def interval_us(self) -> float:
        """How far a slice is behind the one before it."""
        slowest_us = max((step.sliced_us(self.slices) for step in self.steps), default=0.0)
        return max(self.busiest_us / self.slices, slowest_us)

    @property
    def total_us(self) -> float:
        """The launch, the steps of one slice, and an interval for each further slice."""
        first_us = math.fsum(step.sliced_us(self.slices) for step in self.steps)
        return self.launch_us + first_us + (self.slices - 1) * self.interval_us


def cost(
    schedule: Schedule,
    topology: Topology,
    nbytes: int,
    reduction_gbs: float = math.inf,
    message_gap: float = MESSAGE_GAP,
    slices: int = 1,
    launch_us: float = 0.0,
    manner: Manner = SYMMETRIC,
) -> Cost:
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
    message_gap : float
        What each further message that a rank sends, or receives, in a step adds, as a share of its latency, 0 to 1.
    slices : int
        Into how many pieces the vector is cut that follow each other through the steps: different wires then work at
        once, and every step has its latency again for each slice.
    launch_us : float
        What it takes to start.
    manner : Manner
        How the call is made; matters on hosts that were measured.

    Raises
    ------
    ScheduleError
        If the topology has another number of ranks, or the numbers are out of range.
    TopologyError
        If a transfer has no path.

    Notes
    -----
    The bytes of all transfers of a step that cross one wire add up, whoever sends them: with a wire for each pair of
    ranks instead, a good and a bad ring order would cost the same. Steps of one slice do not overlap; a pipelined
    chain has its own slices, its chunks.

    On a topology with measured ``rates`` what processors do on a host has the measured price instead, with its own
    launch and slices, and only transfers between nodes cross wires.
    """
    if topology.n_ranks != schedule.n_ranks:
        raise ScheduleError(
            f"cost: got {schedule.algorithm} of {schedule.n_ranks} ranks on {topology.name} of {topology.n_ranks}, "
            "wanted equal numbers"
        )
    if slices < 1 or not launch_us >= 0:
        raise ScheduleError(f"cost: got {slices} slices and a launch of {launch_us} us, wanted at least 1 and 0")
    if nbytes < 0 or not reduction_gbs > 0 or not 0 <= message_gap <= 1:
        raise ScheduleError(
            f"cost: got {nbytes} bytes, {reduction_gbs} GB/s and a message gap of {message_gap}, "
            "wanted at least 0 bytes, more than 0 GB/s and a gap from 0 to 1"
        )
    sizes = chunk_bytes(schedule, nbytes)
    crossings = Crossings(wires_of(topology), message_gap)
    busy = _Busy(schedule.n_ranks)
    if topology.rates is not None:
        return _measured(schedule, topology, nbytes, manner, crossings, launch_us)
    steps = tuple(_step_cost(step, sizes, crossings, reduction_gbs, busy) for step in schedule.steps)
    return Cost(steps, slices, busy.longest_us, launch_us)


def _measured(
    schedule: Schedule, topology: Topology, nbytes: int, manner: Manner, crossings: Crossings, launch_us: float
) -> Cost:
    """Price what processors do by the topology's rates, and what crosses between nodes by its wires."""
    rates = topology.rates
    if rates is None:
        raise ScheduleError(f"cost: {topology.name} has no measured rates, wanted a topology that was measured")
    parts = features(schedule, nbytes, rates, manner, topology.nodes) @ rates.values
    gap_us = topology.network.gap_us.value if topology.network is not None else 0.0
    if topology.network is not None and topology.n_nodes > 1:
        parts *= topology.network.host_share.value
        launch_us += topology.network.call_us.value
    sizes = chunk_bytes(schedule, nbytes)
    nodes = np.array(topology.nodes)
    idle = _Busy(schedule.n_ranks)
    steps = []
    for step, part in zip(schedule.steps, parts[1:], strict=True):
        wires = _step_cost(step, sizes, crossings, math.inf, idle)
        far = nodes[step.src] != nodes[step.dst]
        if far.all():
            across = wires
        else:
            outside = Step(step.src[far], step.dst[far], step.chunk[far], step.reduce[far])
            across = _step_cost(outside, sizes, crossings, math.inf, idle)
        named = across if far.any() else wires
        steps.append(
            StepCost(
                float(part[WAITING]) + across.latency_us,
                # Handing over the next message and carrying the one before go on at once.
                float(part[MOVING]) + max(across.transfer_us, gap_us * further_messages(step, nodes)),
                float(part[SUMMING]),
                named.bottleneck,
                named.load_bytes,
            )
        )
    return Cost(tuple(steps), launch_us=launch_us + float(parts[0].sum()))


def further_messages(step: Step, nodes: NDArray[np.int64]) -> int:
    """Return how many messages to and from other nodes the busiest node has in a step, besides the first.

    Each chunk is a message of its own.
    """
    src, dst = nodes[step.src], nodes[step.dst]
    far = src != dst
    return max(int(np.bincount(np.concatenate([src[far], dst[far]]), minlength=1).max()) - 1, 0)


class _Busy:
    """How long each wire and each adding rank works, in all steps together."""

    def __init__(self, n_ranks: int) -> None:
        self.wires_us = np.zeros(0)
        self.ranks_us = np.zeros(n_ranks)

    def add(self, wires_us: NDArray[np.float64], ranks_us: NDArray[np.float64]) -> None:
        """Add a step; wires that it is the first to cross come last."""
        wires_us = wires_us.copy()
        wires_us[: self.wires_us.size] += self.wires_us
        self.wires_us = wires_us
        self.ranks_us += ranks_us

    @property
    def longest_us(self) -> float:
        """Of the busiest one."""
        return float(max(self.wires_us.max(initial=0.0), self.ranks_us.max()))


def _step_cost(
    step: Step, sizes: NDArray[np.int64], crossings: Crossings, reduction_gbs: float, busy: _Busy
) -> StepCost:
    if not len(step):
        return StepCost(0.0, 0.0, 0.0, None, 0)
    moved = sizes[step.chunk]
    crossing = crossings.of(step)
    wires = crossings.wires
    messages = np.bincount(crossing.message, weights=moved)
    load = np.bincount(crossing.resource, weights=messages[crossing.crosser], minlength=len(wires.resources))
    times_us = load / (np.array(wires.bandwidths_gbs) * BYTES_PER_US)
    worst = int(times_us.argmax())
    added = np.bincount(step.dst[step.reduce], weights=moved[step.reduce], minlength=crossings.n_ranks)
    added_us = added / (reduction_gbs * BYTES_PER_US)
    busy.add(times_us, added_us)
    return StepCost(
        crossing.latency_us,
        float(times_us[worst]),
        float(added_us.max()),
        wires.resources[worst],
        int(load[worst]),
    )
