"""Rings between nodes: one for each rail, entering and leaving a node at the GPUs of the rail's NIC.

::

    two GPUs to a NIC     ... -> rail r -> [entry ... exit] -> rail r -> [entry ... exit] -> rail r -> ...
    one GPU to a NIC      ... -> rail s -> [S ... R] -> rail r -> [R ... S] -> rail s -> ...   two rails, alternating
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from multiring.topology.cycles import hamiltonian_path, hamiltonian_paths
from multiring.topology.machine import Machine
from multiring.topology.model import Topology
from multiring.topology.routes import own_nics

__all__ = ["node_orders"]

MAX_SEARCHED = 128
"""GPUs of a node up to which paths over its links are searched."""
MAX_OPTIONS = 200
"""Paths between two GPUs that are compared."""
MAX_CHOICES = 20_000
"""Steps of the search for paths that share no link."""

Counts = NDArray[np.int64]


def node_orders(topology: Topology, counts: Sequence[Counts]) -> tuple[list[tuple[int, ...]], int]:
    """Return the ring orders over several nodes, and the number of rails.

    Parameters
    ----------
    topology : Topology
        Of machines with NICs.
    counts : sequence of ndarray of int64, shape (n, n)
        The links inside each node.
    """
    rails = [_rails(machine) for machine in topology.machines]
    n_rails = min(map(len, rails))
    sizes = [len(machine.gpus) for machine in topology.machines]
    ends = [
        [_ends(of_node, sizes[node], ring, n_rails, node) for node, of_node in enumerate(rails)]
        for ring in range(n_rails)
    ]
    first = [topology.ranks_of(node)[0] for node in range(topology.n_nodes)]
    orders: list[list[int]] = [[] for _ in range(n_rails)]
    # Nodes of one kind that are entered and left alike get one answer.
    known: dict[tuple[int, tuple[tuple[int, int], ...]], list[list[int]]] = {}
    for node, machine in enumerate(topology.machines):
        wanted = tuple(ends[ring][node] for ring in range(n_rails))
        key = (id(machine), wanted)
        if key not in known:
            known[key] = _paths(machine, counts[node], wanted)
        for order, path in zip(orders, known[key], strict=True):
            order.extend(first[node] + gpu for gpu in path)
    return [tuple(order) for order in orders], n_rails


def _rails(machine: Machine) -> list[list[int]]:
    """Return the GPUs of each NIC that has any: of those that use it, the nearest."""
    own, first = own_nics(machine), len(machine.gpus)
    rails: list[list[int]] = []
    for nic in sorted(set(own)):
        far = {gpu: machine.distance(gpu, first + nic) for gpu, it in enumerate(own) if it == nic}
        rails.append([gpu for gpu, distance in far.items() if distance == min(far.values())])
    return rails


def _ends(rails: Sequence[Sequence[int]], size: int, ring: int, n_rails: int, node: int) -> tuple[int, int]:
    """Return the GPUs where a ring enters and leaves a node."""
    mine = rails[ring]
    if size == 1:
        return mine[0], mine[0]
    if len(mine) > 1:
        return mine[1], mine[0]
    partner = ring ^ 1
    if partner < n_rails:
        entry, leave = rails[partner][0], mine[0]
        return (entry, leave) if node % 2 == 0 else (leave, entry)
    other = next(gpu for gpu in range(size) if gpu != mine[0])
    return (other, mine[0]) if node % 2 == 0 else (mine[0], other)


def _paths(machine: Machine, counts: Counts, ends: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Return a path through all GPUs for each pair of ends: over links, each in one path, where there are such."""
    size = len(machine.gpus)
    if size > MAX_SEARCHED or size == 1 or all(gpu.switch_links for gpu in machine.gpus):
        return [_plain(size, *pair) for pair in ends]
    if counts.any() and (apart := _apart(counts, ends)):
        return apart
    near = np.array([[-machine.distance(a, b) if a != b else 0 for b in range(size)] for a in range(size)])
    left = counts.copy()
    paths: list[list[int]] = []
    for entry, leave in ends:
        path = hamiltonian_path(left > 0, entry, leave, left) if left.any() else None
        path = path or hamiltonian_path(~np.eye(size, dtype=bool), entry, leave, 8 * (left > 0) + near)
        paths.append(path or _plain(size, entry, leave))
        for a, b in pairwise(paths[-1]):
            left[a, b] = max(0, left[a, b] - 1)
    return paths


def _plain(size: int, entry: int, leave: int) -> list[int]:
    inner = [gpu for gpu in range(size) if gpu not in (entry, leave)]
    return [entry, *inner, leave] if entry != leave else [entry]


def _apart(counts: Counts, ends: Sequence[tuple[int, int]]) -> list[list[int]] | None:
    """Return paths that share no link, or None where the search finds none."""
    options = [hamiltonian_paths(counts > 0, *pair, MAX_OPTIONS) for pair in ends]
    chosen: list[list[int]] = []
    steps = 0

    def choose(left: Counts) -> bool:
        nonlocal steps
        if len(chosen) == len(ends):
            return True
        for path in options[len(chosen)]:
            steps += 1
            if steps > MAX_CHOICES:
                return False
            if all(left[a, b] for a, b in pairwise(path)):
                after = left.copy()
                for a, b in pairwise(path):
                    after[a, b] -= 1
                chosen.append(path)
                if choose(after):
                    return True
                chosen.pop()
        return False

    return chosen if choose(counts) else None
