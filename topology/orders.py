"""One ring order through GPUs that share wires: PCIe switches, sockets, and links between some of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from multiring.topology.model import Resource
from multiring.topology.routes import MachineWires

__all__ = ["best_order"]

EXHAUSTIVE_GPUS = 8
"""Up to here all orders are compared: 2520 of 8 GPUs."""
MAX_IMPROVED = 40
"""GPUs up to which an order is improved by turning parts of it round."""

Orders = tuple[tuple[int, ...], ...]


def best_order(wires: MachineWires, size: int, canonical: Sequence[int]) -> tuple[Orders, float, Resource, int]:
    """Return the order that carries most, once or in both directions, with what limits it.

    Parameters
    ----------
    wires : MachineWires
    size : int
        GPUs, at least 2.
    canonical : sequence of int
        The GPUs in an order that does not depend on their numbers.

    Returns
    -------
    orders, bandwidth_gbs, bottleneck, sharers
        One or two rings, what each carries, the wire that limits them, and how often rings cross it.

    Notes
    -----
    Among orders that carry as much: that with fewer wires on its way, then the first by rank.
    """
    loads = _Loads(wires, size)
    if size <= EXHAUSTIVE_GPUS:
        # One direction of each order: the other one is tried with it.
        options = ((0, *rest) for rest in permutations(range(1, size)) if rest[0] <= rest[-1])
        order = min(options, key=loads.merit)
    else:
        order = min((_improved(start, loads) for start in _starts(wires, size, canonical)), key=loads.merit)
        plain = tuple(range(size))
        if loads.total_gbs(plain) >= loads.total_gbs(order) * (1 - 1e-9):
            order = plain
        at = order.index(0)
        order = (*order[at:], *order[:at])
    one, two = loads.share(order, both=False), loads.share(order, both=True)
    if 2 * two[0] > one[0] * (1 + 1e-9):
        return (order, (order[0], *order[:0:-1])), *two
    return (order,), *one


class _Loads:
    """How often rings cross each wire."""

    def __init__(self, wires: MachineWires, size: int) -> None:
        self._number: dict[Resource, int] = {}
        self._wires: list[Resource] = []
        self._arcs = [
            [tuple(map(self._numbered, wires.path(a, b))) if a != b else () for b in range(size)] for a in range(size)
        ]
        self._gbs = [wire.bandwidth_gbs for wire in self._wires]
        self._memo: dict[tuple[int, ...], tuple[float, int]] = {}

    def _numbered(self, wire: Resource) -> int:
        if wire not in self._number:
            self._number[wire] = len(self._wires)
            self._wires.append(wire)
        return self._number[wire]

    def _count(self, order: Sequence[int], both: bool) -> list[int]:
        loads = [0] * len(self._wires)
        for at, b in enumerate(order):
            a = order[at - 1]
            for wire in self._arcs[a][b]:
                loads[wire] += 1
            if both:
                for wire in self._arcs[b][a]:
                    loads[wire] += 1
        return loads

    def share(self, order: Sequence[int], both: bool) -> tuple[float, Resource, int]:
        """Return what each ring carries, the wire that limits it, and its sharers."""
        loads = self._count(order, both)
        limits = [
            (gbs / load, self._wires[at].name, at)
            for at, (gbs, load) in enumerate(zip(self._gbs, loads, strict=True))
            if load
        ]
        share_gbs, _, wire = min(limits)
        return share_gbs, self._wires[wire], loads[wire]

    def total_gbs(self, order: Sequence[int]) -> float:
        """Return what the better of one direction and both carries."""
        return -self.merit(tuple(order))[0]

    def merit(self, order: tuple[int, ...]) -> tuple[float, int, tuple[int, ...]]:
        """Return a key: the least is the best order."""
        one = self._count(order, both=False)
        both = self._count(order, both=True)
        share = min(gbs / load for gbs, load in zip(self._gbs, one, strict=True) if load)
        shared = min(gbs / load for gbs, load in zip(self._gbs, both, strict=True) if load)
        return -round(max(share, 2 * shared), 9), sum(one), order


def _starts(wires: MachineWires, size: int, canonical: Sequence[int]) -> list[tuple[int, ...]]:
    """Return orders to improve: along the tree of places, and along links."""
    machine = wires.machine
    position = {gpu: at for at, gpu in enumerate(canonical)}
    # A place comes where its first GPU in the canonical order does.
    first: dict[int, int] = {}
    for gpu in canonical:
        for place in machine.above(machine.gpus[gpu].place):
            first.setdefault(place, position[gpu])
    tree = sorted(
        canonical,
        key=lambda gpu: (
            *(first[place] for place in machine.above(machine.gpus[gpu].place)[::-1]),
            position[gpu],
        ),
    )
    along: list[int] = []
    left = list(tree)
    while left:
        at = left.pop(0)
        along.append(at)
        joined = [gpu for gpu in left if machine.bundle(at, gpu) or machine.switched(at, gpu)]
        if joined:
            # The one with fewest ways on, so that none is left behind.
            chosen = min(joined, key=lambda gpu: sum(machine.bundle(gpu, it) is not None for it in left))
            left.remove(chosen)
            left.insert(0, chosen)
    return [tuple(tree), tuple(along)]


def _improved(order: tuple[int, ...], loads: _Loads) -> tuple[int, ...]:
    """Turn parts of an order round while that makes it better."""
    if len(order) > MAX_IMPROVED:
        return order
    best = loads.merit(order)[:2]
    better = True
    while better:
        better = False
        for a in range(1, len(order) - 1):
            for b in range(a + 1, len(order)):
                turned = order[:a] + order[a : b + 1][::-1] + order[b + 1 :]
                if (merit := loads.merit(turned)[:2]) < best:
                    order, best, better = turned, merit, True
    return order
