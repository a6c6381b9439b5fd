"""The libraries that multiring is measured against."""

from __future__ import annotations

from typing import Any

from multiring.bench.contender import Contender
from multiring.errors import ArgumentError

__all__ = ["PEERS", "check_peers", "make_peer"]

PEERS: dict[str, bool] = {"mpi": True, "gloo": False, "nccl": False}
"""By name, with whether this version can measure it."""


def check_peers(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the peers asked for, each once.

    Raises
    ------
    ArgumentError
        If one is unknown or cannot be measured yet.
    """
    ready = ", ".join(name for name, here in PEERS.items() if here)
    for name in names:
        if name not in PEERS:
            raise ArgumentError(f"--peer: got {name!r}, wanted one of {', '.join(PEERS)}")
        if not PEERS[name]:
            raise ArgumentError(f"--peer: got {name!r}, which this version cannot measure yet; wanted {ready}")
    return tuple(dict.fromkeys(names))


def make_peer(name: str, mpi: Any) -> Contender:
    """Return a peer by name.

    Parameters
    ----------
    name : str
    mpi : mpi4py.MPI.Comm
        The world of the ranks.
    """
    from multiring.bench.peers.mpi import MpiPeer

    return MpiPeer(mpi)
