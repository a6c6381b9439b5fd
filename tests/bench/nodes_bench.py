"""Run under mpiexec by the tests: the whole bench with a communicator on several nodes, for which MPI stands in."""

from __future__ import annotations

import sys
from typing import Any

from mpi4py import MPI

import multiring
from multiring.bench.rank import run_rank
from multiring.bench.request import make_request
from multiring.bench.world import local_place
from multiring.errors import ArgumentError


class StandIn:
    """A communicator whose ranks alternate between two nodes."""

    def __init__(self) -> None:
        self.mpi = MPI.COMM_WORLD
        self.rank, self.size = self.mpi.rank, self.mpi.size
        self.node, self.n_nodes = self.rank % 2, 2

    def all_reduce(self, send: Any, receive: Any = None, **options: Any) -> None:
        del options
        if receive is None:
            self.mpi.Allreduce(MPI.IN_PLACE, send)
        else:
            self.mpi.Allreduce(send, receive)

    def plan(self, *arguments: Any, **options: Any) -> Any:
        raise ArgumentError("no plans")

    def close(self) -> None:
        pass

    def abort(self, reason: str) -> None:
        pass


def main(wire: str | None = None) -> int:
    multiring.init = lambda **options: StandIn()  # type: ignore[assignment]
    request = make_request(
        "all_reduce", "1K", "64K", "64", None, 2, 1, 1, "sum", "float", "0", None, None, False,
        wire, None, False, ("mpi",), "-", None, None, "host",
    )  # fmt: skip
    return run_rank(request, local_place(), sys.argv)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
