"""The limit of a collective: plain copies of the bytes that each receiver must get.

Measured in the same run, on all ranks at once, from inputs that their owners have just rewritten, with no flags and no
arithmetic. The bytes are those of the schedule that moves least: a rank gets what others hold and it needs, once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from multiring.bench.cases import Case
from multiring.bench.meeting import Meeting

__all__ = ["Copy", "Limit", "limit_bytes", "limit_copies", "region_bytes"]


_BLOCK_BYTES = 64 << 10


class Copy(NamedTuple):
    """One copy, in elements, into a rank's receive buffer.

    Attributes
    ----------
    source_rank, source : int
        Whose buffer, and from which element.
    result : bool
        Whether it is the source's receive buffer (a result on its way), not its send buffer.
    destination_rank, destination : int
    length : int
    """

    source_rank: int
    source: int
    destination_rank: int
    destination: int
    length: int
    result: bool = False


def limit_copies(case: Case, rank: int, in_place: bool) -> list[Copy]:
    """Return what ``rank`` copies, in order.

    Parameters
    ----------
    case : Case
    rank : int
    in_place : bool
        In place, what a rank already holds is not copied.

    Notes
    -----
    With P ranks and a vector of n elements: all_reduce has each rank fetch its own n/P from the P-1 others (to be
    combined), and deliver that part of the result to them: each gets 2(P-1)/P n in all. reduce delivers to the root
    only; reduce_scatter is the first half. In the others each rank fetches its parts from their owners, and out of
    place its own part too.
    """
    ranks = range(case.n_ranks)
    others = [other for other in ranks if other != rank]
    count = case.count
    holds_own = others if in_place else list(ranks)
    fetched: list[tuple[int, int, int]] = []  # (from which rank, at which element, to which element), count elements
    match case.collective:
        case "all_reduce" | "reduce":
            start, end = (count * part // case.n_ranks for part in (rank, rank + 1))
            to = others if case.collective == "all_reduce" else [case.root] if rank != case.root else []
            copies = [Copy(other, start, rank, start, end - start) for other in others]
            copies += [Copy(rank, start, other, start, end - start, True) for other in to]
            return [copy for copy in copies if copy.length]
        case "reduce_scatter":
            fetched = [(other, rank * count, 0) for other in others]
        case "broadcast":
            fetched = [(case.root, 0, 0)] if case.root in holds_own else []
        case "all_gather":
            fetched = [(other, 0, other * count) for other in holds_own]
        case "gather":
            fetched = [(other, 0, other * count) for other in holds_own] if rank == case.root else []
        case "scatter":
            fetched = [(case.root, rank * count, 0)] if case.root in holds_own else []
        case "all_to_all":
            fetched = [(other, rank * count, other * count) for other in ranks]
        case _:
            fetched = [((rank - 1) % case.n_ranks, 0, 0)]
    return [Copy(owner, source, rank, destination, count) for owner, source, destination in fetched if count]


def limit_bytes(case: Case, in_place: bool) -> int:
    """Return the bytes that the busiest receiver gets."""
    received = [0] * case.n_ranks
    for rank in range(case.n_ranks):
        for copy in limit_copies(case, rank, in_place):
            received[copy.destination_rank] += copy.length
    return case.dtype.itemsize * max(received)


def region_bytes(case: Case) -> int:
    """Return the bytes of shared memory that each rank needs for a case."""
    send_bytes, receive_bytes = (n * case.dtype.itemsize for n in (case.send_count, case.receive_count))
    return _page(send_bytes) + max(send_bytes, receive_bytes)


class Limit:
    """The copies as a contender, in the benchmark's own shared memory.

    Parameters
    ----------
    meeting : Meeting
        With a region of at least :func:`region_bytes` of the largest case.
    """

    name = "limit"

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting

    def limit_bytes(self, case: Case, in_place: bool) -> int:
        """Return the bytes that the busiest receiver gets."""
        return limit_bytes(case, in_place)

    def bind(self, case: Case, in_place: bool) -> tuple[Any, Callable[[], object]]:
        """Return the rank's send buffer, to be rewritten before each call, and the call.

        Returns
        -------
        send : ndarray of uint8
            Of the case's size, in shared memory.
        call : callable
        """
        meeting, itemsize, rank = self._meeting, case.dtype.itemsize, self._meeting.rank
        send_bytes, receive_bytes = case.send_count * itemsize, case.receive_count * itemsize
        # In place the larger buffer is both: see Case.split.
        own_part = {"send": send_bytes, "receive": receive_bytes} if in_place else {}

        def send_start(owner: int) -> int:
            return owner * own_part.get("send", 0) if case.shape.in_place == "send" else 0

        def receive_start(owner: int) -> int:
            if not in_place:
                return _page(send_bytes)
            return owner * own_part["receive"] if case.shape.in_place == "receive" else 0

        copies = [
            (
                meeting.address(copy.destination_rank)
                + receive_start(copy.destination_rank)
                + copy.destination * itemsize,
                meeting.address(copy.source_rank)
                + (receive_start if copy.result else send_start)(copy.source_rank)
                + copy.source * itemsize,
                copy.length * itemsize,
            )
            for copy in limit_copies(case, rank, in_place)
        ]
        return meeting.region(rank, send_bytes, send_start(rank)), meeting.copier(_blocks(copies))


def _blocks(copies: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Cut copies into blocks, the first block of all first: what was fetched is delivered while hot."""
    blocks = [
        (start, (destination + start, source + start, min(_BLOCK_BYTES, nbytes - start)))
        for destination, source, nbytes in copies
        for start in range(0, nbytes, _BLOCK_BYTES)
    ]
    return [block for _, block in sorted(blocks, key=lambda entry: entry[0])]


def _page(nbytes: int) -> int:
    return (nbytes + 4095) // 4096 * 4096
