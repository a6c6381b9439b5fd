"""What the ranks share for measuring, on one node or several: the barrier between calls, the limit, the line times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from multiring.bench.cases import Case
from multiring.bench.limit import Limit, region_bytes
from multiring.bench.meeting import Meeting
from multiring.bench.wire_limit import WireLimit
from multiring.bench.world import World
from multiring.errors import MultiringError

__all__ = ["Ground"]

_MOST_PAIRS = 8


class Ground:
    """Where the ranks of a world meet between calls.

    Parameters
    ----------
    world : World
    cases : sequence of Case
        What will be measured.
    spin : bool
        Whether every rank has a core of its own, so that waiting may spin.

    Attributes
    ----------
    limit : Limit, WireLimit or None
        On one node copies in the memory that its ranks share, None where they share none; on several nodes the
        exchange between them.
    note : str
        Why something is missing; empty where nothing is.

    Notes
    -----
    The memory is shared by the ranks of a node. On several nodes the barrier is: the ranks of each node, then the first
    rank of each over MPI, then the ranks of each node again; ranks of a node leave within the time of a cache line,
    nodes within that of a message.
    """

    def __init__(self, world: World, cases: Sequence[Case], spin: bool) -> None:
        self._world = world
        self._spin = spin
        self.limit: Limit | WireLimit | None = None
        self.note = ""
        self.barrier: Callable[[], object] = world.barrier
        several = world.n_nodes > 1
        node = world.on_node()
        self._meeting: Meeting | None = None
        error = ""
        try:
            self._meeting = Meeting(node, 0 if several else max(map(region_bytes, cases), default=0), spin)
        except MultiringError as problem:
            error = str(problem)
        # A barrier is the same on all ranks, or it is none.
        failed = world.gather([float(bool(error))]).any()
        if failed:
            self._meeting = None
            self.note = f"{'barrier: over MPI only' if several else 'limit: none'}, {error or 'as on another node'}"
        elif self._meeting is not None:
            self.barrier = _barrier_of_nodes(self._meeting, world.of_leaders()) if several else self._meeting.barrier
        if several:
            self.limit = WireLimit(world.mpi, world.node_of)
        elif self._meeting is not None:
            self.limit = Limit(self._meeting)

    def line_times(self) -> dict[str, float]:
        """Return the time of a cache line from the first rank of each node to others of it, in nanoseconds.

        All ranks call it and get the answer, by ``"0-1"`` and so on; nothing where ranks share cores.
        """
        world, meeting = self._world, self._meeting
        if meeting is None or not self._spin:
            return {}
        mine = [meeting.line_time_ns(other) for other in range(1, min(meeting.size, _MOST_PAIRS))]
        padded = [-1.0 if time_ns is None else time_ns for time_ns in mine] + [-1.0] * (_MOST_PAIRS - len(mine))
        times: dict[str, float] = {}
        by_rank = world.gather(padded).tolist()
        for node in range(world.n_nodes):
            ranks = [rank for rank in range(world.size) if world.node_of[rank] == node]
            for other, time_ns in zip(ranks[1:], by_rank[ranks[0]], strict=False):
                if time_ns >= 0:
                    times[f"{ranks[0]}-{other}"] = round(time_ns, 1)
        return times


def _barrier_of_nodes(meeting: Meeting, leaders: Any) -> Callable[[], None]:
    def barrier() -> None:
        meeting.barrier()
        if leaders is not None:
            leaders.Barrier()
        meeting.barrier()

    return barrier
