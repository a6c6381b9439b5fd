"""Machines that tests of this folder share, and what they check rings with."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from multiring.topology import Bundle, Gpu, Machine, Nic, Topology
from multiring.topology.rings import RingSet

Counts = NDArray[np.int64]

# Real outputs of others are read where they lie; the folder is not part of the project.
SAVED = Path(
    os.environ.get("MULTIRING_TEST_TOPO_DIR") or Path(__file__).resolve().parents[2].parent / "shared" / "topo"
)
NO_SAVED = f"no saved topologies in {SAVED} (MULTIRING_TEST_TOPO_DIR names another folder)"

DGX1_V100 = [
    "X 1 1 2 2 0 0 0",
    "1 X 2 1 0 2 0 0",
    "1 2 X 2 0 0 1 0",
    "2 1 2 X 0 0 0 1",
    "2 0 0 0 X 1 1 2",
    "0 2 0 0 1 X 2 1",
    "0 0 1 0 1 2 X 2",
    "0 0 0 1 2 1 2 X",
]
"""NVLinks between the GPUs of a DGX-1V, from NVIDIA's white paper."""


def counts_of(rows: Sequence[str]) -> Counts:
    return np.array([[0 if word == "X" else int(word) for word in row.split()] for row in rows])


def machine_of(counts: Counts, link_gbs: float = 20.0, nics: int = 0) -> Machine:
    """Return GPUs in one place with direct links."""
    size = len(counts)
    return Machine(
        "test",
        tuple(Gpu(f"GPU{at}", 0, 12.0, link_gbs=link_gbs) for at in range(size)),
        tuple(Nic(f"NIC{at}", 0, 12.0, 12.0) for at in range(nics)),
        bundles=tuple(
            Bundle(a, b, int(counts[a, b]), link_gbs) for a in range(size) for b in range(a + 1, size) if counts[a, b]
        ),
    )


def check_rings(topology: Topology, found: RingSet) -> None:
    """Check that every ring visits each rank once and that together they overbook no wire."""
    assert found.rings
    load: dict[str, float] = {}
    most: dict[str, float] = {}
    for ring in found:
        assert sorted(ring.order) == list(range(topology.n_ranks))
        for src, dst in zip(ring.order, [*ring.order[1:], ring.order[0]], strict=True):
            for wire in topology.path(src, dst):
                load[wire.name] = load.get(wire.name, 0.0) + ring.bandwidth_gbs
                most[wire.name] = wire.bandwidth_gbs
    for name, gbs in load.items():
        assert gbs <= most[name] * (1 + 1e-9), name


def arcs(orders: Sequence[Sequence[int]]) -> Counter[tuple[int, int]]:
    """Count how often rings go from one rank to another."""
    return Counter((a, b) for order in orders for a, b in zip(order, [*order[1:], order[0]], strict=True))
