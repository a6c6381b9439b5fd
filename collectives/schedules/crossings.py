"""Which wires the transfers of a schedule's steps cross."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.schedules.schedule import Step
from multiring.topology.model import Resource, Topology

__all__ = ["Crossings", "wires_of"]


class Wires:
    """The resources of a topology, numbered as they are met, and the paths that were asked for."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.resources: list[Resource] = []
        self.bandwidths_gbs: list[float] = []
        self._numbers: dict[Resource, int] = {}
        # Topologies give the same objects again and again, and comparing them by value takes ten times as long.
        self._objects: dict[int, tuple[Resource, int]] = {}
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
        known = self._objects.get(id(wire))
        if known is not None:
            return known[1]
        if wire not in self._numbers:
            self._numbers[wire] = len(self.resources)
            self.resources.append(wire)
            self.bandwidths_gbs.append(wire.bandwidth_gbs)
        # Held with its number, so that its address is nobody else's.
        self._objects[id(wire)] = wire, self._numbers[wire]
        return self._numbers[wire]


@lru_cache(maxsize=4)
def wires_of(topology: Topology) -> Wires:
    """Return the wires of a topology, numbered once: exploring prices hundreds of schedules on one."""
    return Wires(topology)


@dataclass(frozen=True, slots=True)
class Crossing:
    """The wires that a step crosses.

    Chunks that go from one rank to another are one message; ``message`` says which, for each transfer of the step.
    ``resource`` and ``crosser`` hold a wire and a message for each crossing.
    """

    latency_us: float
    message: NDArray[np.int64]
    resource: NDArray[np.int64]
    crosser: NDArray[np.int64]


class Crossings:
    """Which wires the transfers of a step cross; most algorithms use the same pairs in many steps."""

    def __init__(self, wires: Wires, message_gap: float) -> None:
        self.wires = wires
        self.n_ranks = wires.topology.n_ranks
        self.message_gap = message_gap
        self._steps: dict[bytes, Crossing] = {}

    def of(self, step: Step) -> Crossing:
        """Return the wires that a step crosses, and its latency."""
        key = step.src.tobytes() + step.dst.tobytes()
        if key not in self._steps:
            self._steps[key] = self._find(step)
        return self._steps[key]

    def _find(self, step: Step) -> Crossing:
        n_ranks = self.n_ranks
        pairs, message = np.unique(step.src.astype(np.int64) * n_ranks + step.dst, return_inverse=True)
        ends = np.divmod(pairs, n_ranks)
        paths = [self.wires.path(src, dst) for src, dst in zip(*(end.tolist() for end in ends), strict=True)]
        resource = np.array([number for _, numbers in paths for number in numbers], dtype=np.int64)
        crosser = np.repeat(np.arange(len(paths)), [len(numbers) for _, numbers in paths])
        latencies_us = np.array([latency_us for latency_us, _ in paths])
        worst_us = 0.0
        for end in ends:
            all_us = np.bincount(end, weights=latencies_us, minlength=n_ranks)
            longest_us = np.zeros(n_ranks)
            np.maximum.at(longest_us, end, latencies_us)
            worst_us = max(worst_us, float((longest_us + self.message_gap * (all_us - longest_us)).max()))
        return Crossing(worst_us, message, resource, crosser)
