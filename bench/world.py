"""The ranks of a benchmark: who they are, and how they exchange what they measured."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["LocalPlace", "World", "local_place", "under_mpi"]

_LOCAL = (
    ("MULTIRING_LOCAL_RANK", "MULTIRING_LOCAL_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
)
_GLOBAL = (
    ("MULTIRING_RANK", "MULTIRING_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("RANK", "WORLD_SIZE"),
)


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """Where a launcher says that this process is, before anything has been initialised.

    Attributes
    ----------
    rank, size : int
        In the job; 0 of 1 without a launcher.
    local_rank, local_size : int
        Among the ranks of this machine; 0 of 1 where the launcher does not say.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int


def local_place(environment: Mapping[str, str] = os.environ) -> LocalPlace:
    """Read the place of this process from a launcher's environment."""
    rank, size = _first_pair(_GLOBAL, environment)
    local_rank, local_size = _first_pair(_LOCAL, environment)
    return LocalPlace(rank, size, local_rank, local_size)


def under_mpi(environment: Mapping[str, str] = os.environ) -> bool:
    """Tell whether an MPI launcher, or srun, started this process."""
    hydra = "PMI_RANK" in environment and ("PMI_FD" in environment or "PMI_PORT" in environment)
    return hydra or any(name in environment for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_STEP_ID"))


def _first_pair(pairs: tuple[tuple[str, str], ...], environment: Mapping[str, str]) -> tuple[int, int]:
    for rank_name, size_name in pairs:
        rank, size = environment.get(rank_name, ""), environment.get(size_name, "")
        if rank.isdecimal() and size.isdecimal():
            return int(rank), int(size)
    return 0, 1


class World:
    """The ranks of a benchmark.

    Parameters
    ----------
    comm : multiring.Communicator or None
        Ours.
    mpi : mpi4py.MPI.Comm or None
        Used to exchange figures where it is there, so that they do not pass through what is being measured. It must be
        there where the ranks are on several nodes.
    node : int, optional
        The node of this rank; the communicator's where omitted.
    """

    def __init__(self, comm: Any = None, mpi: Any = None, node: int | None = None) -> None:
        if comm is None and mpi is None:
            raise TypeError("a world needs a communicator")
        self.comm: Any = comm
        self.mpi: Any = mpi
        self.rank: int = comm.rank if comm is not None else mpi.rank
        self.size: int = comm.size if comm is not None else mpi.size
        self._node = getattr(comm, "node", 0) if node is None else node
        self._node_of: tuple[int, ...] | None = None

    @property
    def node_of(self) -> tuple[int, ...]:
        """The node of each rank, from 0. All ranks ask for it at the same time first."""
        if self._node_of is None:
            self._node_of = tuple(int(node) for node in self.gather([float(self._node)])[:, 0])
        return self._node_of

    @property
    def n_nodes(self) -> int:
        """How many nodes there are."""
        return max(self.node_of) + 1

    def on_node(self) -> World:
        """Return the world of the ranks of this rank's node, in the same order; collective."""
        if self.n_nodes == 1:
            return self
        return World(None, self.mpi.Split(self._node, self.rank), 0)

    def of_leaders(self) -> Any:
        """Return an MPI communicator of the first rank of each node, None on the others; collective."""
        from mpi4py import MPI

        leads = self.node_of.index(self._node) == self.rank
        leaders = self.mpi.Split(0 if leads else MPI.UNDEFINED, self.rank)
        return leaders if leads else None

    def gather(self, values: NDArray[np.float64] | list[float]) -> NDArray[np.float64]:
        """Return every rank's values, one row for each rank, on every rank.

        Parameters
        ----------
        values : array of float64
            As many on every rank.
        """
        mine = np.ascontiguousarray(values, dtype=np.float64).reshape(-1)
        rows = np.empty((self.size, mine.size), np.float64)
        if self.mpi is not None:
            self.mpi.Allgather(mine, rows)
        else:
            self.comm.all_gather(mine, rows.reshape(-1))
        return rows

    def gather_text(self, text: str, width: int = 256) -> list[str]:
        """Return every rank's text, cut to ``width`` bytes, on every rank."""
        mine = text.encode()[:width].ljust(width, b"\0")
        rows = self.gather(np.frombuffer(mine, np.uint8).astype(np.float64))
        return [bytes(row.astype(np.uint8)).rstrip(b"\0").decode(errors="replace") for row in rows]

    def barrier(self) -> None:
        """Wait for every rank."""
        if self.mpi is not None:
            self.mpi.Barrier()
        else:
            self.comm.barrier()
