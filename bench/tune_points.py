"""Which calls ``multiring tune`` times: collectives by all their algorithms, over sizes, in every kind of memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from multiring.bench.cases import COLLECTIVES, Case, make_case
from multiring.collectives.schedules.choose import choose
from multiring.collectives.schedules.collective import Collective
from multiring.collectives.schedules.explore import built, candidates
from multiring.errors import MultiringError
from multiring.kernels.dtypes import DTYPES
from multiring.kernels.operations import OPERATIONS
from multiring.topology.model import Topology

__all__ = ["MEASURED_COLLECTIVES", "QUICK_SIZES", "SIZES", "Point", "design", "network_design", "rounds_for"]

MEASURED_COLLECTIVES = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "all_to_all",
    "reduce",
    "gather",
    "scatter",
)
SIZES = tuple(8 << shift for shift in (0, 5, 9, 11, 13, 15, 17, 19, 21, 23))
"""8 B to 64 MiB."""
QUICK_SIZES = tuple(8 << shift for shift in (0, 9, 13, 16, 19, 21))
"""8 B to 16 MiB."""


NETWORK_COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all")
NETWORK_SIZES = (64, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20)


@dataclass(frozen=True, slots=True)
class Point:
    """One call that is timed.

    Attributes
    ----------
    collective, algorithm : str
    nbytes : int
        As a benchmark prints it: of the larger buffer.
    symmetric, in_place : bool
    named : bool
        Whether the call names the algorithm; else it is the one that is chosen anyway.
    """

    collective: str
    algorithm: str
    nbytes: int
    symmetric: bool
    in_place: bool
    named: bool = True

    def case(self, n_ranks: int) -> Case:
        """Return the point as a line of a benchmark, float32 and sum."""
        shape = COLLECTIVES[self.collective]
        operation = ("sum", OPERATIONS["sum"]) if shape.reduces else ("none", None)
        root = 0 if shape.rooted else -1
        return make_case(self.collective, n_ranks, self.nbytes, DTYPES["float32"], operation[1], operation[0], root)

    def vector_bytes(self, n_ranks: int) -> int:
        """Return the bytes of the whole vector, as schedules count them."""
        case = self.case(n_ranks)
        # A rank's own array, for all_to_all too: prices multiply it by the ranks.
        count = case.send_count if self.collective == "all_to_all" else max(case.send_count, case.receive_count)
        return count * case.dtype.itemsize


def design(
    n_ranks: int,
    sizes: Sequence[int] = SIZES,
    collectives: Sequence[str] = MEASURED_COLLECTIVES,
    topology: Topology | None = None,
) -> Iterator[tuple[Point, ...]]:
    """Yield groups of points that are measured interleaved: one collective, size and kind of memory.

    Notes
    -----
    Of algorithms whose schedules are the same for so many ranks only the first is kept.
    """
    for collective in collectives:
        names = _different(collective, n_ranks, topology)
        shape = COLLECTIVES[collective]
        places = (False,) if shape.in_place == "none" else (False, True)
        # Kinds of memory apart: together they would sweep each other's arrays out of the caches.
        for nbytes, symmetric in product(sizes, (True, False)):
            group = [Point(collective, name, nbytes, symmetric, where) for name in names for where in places]
            if group[0].case(n_ranks).count:
                usual = choose(Collective(collective), n_ranks, group[0].vector_bytes(n_ranks)).algorithm
                group += [Point(collective, usual, nbytes, symmetric, where, named=False) for where in places]
                yield tuple(group)


def network_design(n_ranks: int, topology: Topology, quick: bool) -> Iterator[tuple[Point, ...]]:
    """Yield groups of points for ranks on several nodes: fewer, as calls take longer and depend on less."""
    for collective in NETWORK_COLLECTIVES:
        names = _different(collective, n_ranks, topology)
        for nbytes in NETWORK_SIZES[:-1] if quick else NETWORK_SIZES:
            yield tuple(Point(collective, name, nbytes, True, False) for name in names)


def rounds_for(nbytes: int, quick: bool) -> int:
    """Return how often a point of a size is timed in one process start."""
    rounds = 24 if nbytes <= 8 << 10 else 12 if nbytes <= 512 << 10 else 6 if nbytes <= 4 << 20 else 3
    return max(rounds // 2, 3) if quick else rounds


def _different(collective: str, n_ranks: int, topology: Topology | None) -> list[str]:
    wanted = Collective(collective)
    seen: dict[bytes, str] = {}
    for name in candidates(wanted, n_ranks, topology=topology):
        try:
            schedule = built(name, wanted, n_ranks, topology)
        except MultiringError:
            continue  # such as those that need a power of two
        key = b"|".join(
            column.tobytes() for step in schedule.steps for column in (step.src, step.dst, step.chunk, step.reduce)
        )
        seen.setdefault(key + b"%d" % schedule.n_chunks, name)
    return list(seen.values())
