"""Run under mpiexec by the tests: a sweep in which MPI is measured against itself, without a communicator of ours."""

from __future__ import annotations

import json
import sys

from mpi4py import MPI

from multiring.bench.documents import document
from multiring.bench.limit import Limit, region_bytes
from multiring.bench.meeting import Meeting
from multiring.bench.peers.mpi import MpiPeer
from multiring.bench.report import row_line, table_header
from multiring.bench.request import make_request
from multiring.bench.rows import count_errors
from multiring.bench.sweep import Sweep
from multiring.bench.world import World


class StandIn(MpiPeer):
    """MPI in the place of ours."""

    name = "multiring"


def main(collective: str, datatype: str, op: str, maxbytes: str, iters: str) -> int:
    world = World(None, MPI.COMM_WORLD)
    request = make_request(
        collective, "8", maxbytes, "16", None, int(iters), 2, 2, op, datatype, str(world.size - 1), None, None, True,
        None, None, False, ("mpi",), None, None, None, "host",
    )  # fmt: skip
    cases = list(request.settings.cases(world.size))
    meeting = Meeting(world, max(map(region_bytes, cases)), spin=False)
    sweep = Sweep(world, request.settings, [StandIn(world.mpi)], [MpiPeer(world.mpi)], Limit(meeting), meeting.barrier)
    rows = list(sweep.rows())
    if world.rank == 0:
        sys.stderr.write("\n".join([*table_header(["mpi"]), *(row_line(row, ["mpi"]) for row in rows)]))
        sys.stdout.write(json.dumps(document(rows, {}, sys.argv, "", ""), allow_nan=False))
    return count_errors(rows)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
