"""The limit of a collective: plain copies of the bytes that each receiver must get.

Measured in the same run, on all ranks at once, from inputs that their owners have just rewritten, with no flags and no
arithmetic. The bytes are those of the schedule that moves least: a rank gets what others hold and it needs, once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from multiring.bench.cases import Case
from multiring.bench.meeting import Meeting

__all__ = ["Copy", "Limit", "limit_bytes", "limit_copies", "region_bytes"]


class Copy(NamedTuple):
    """One copy, in elements: from a rank's send buffer to the receiver's receive buffer."""

    source_rank: int
    source: int
    destination: int
    length: int


def limit_copies(case: Case, rank: int, in_place: bool) -> list[Copy]:
    """Return what ``rank`` must copy.

    Parameters
    ----------
    case : Case
    rank : int
        The receiver.
    in_place : bool
        In place, what a rank already holds is not copied.

    Notes
    -----
    With P ranks and a vector of n elements: all_reduce brings each rank its own n/P from the P-1 others (to be
    combined), then the P-1 other results of n/P: 2(P-1)/P n in all. reduce is the same with the second half only at the
    root. reduce_scatter is the first half. The others deliver each part from its owner, and out of place a rank's own
    part too.
    """
    ranks = range(case.n_ranks)
    others = [other for other in ranks if other != rank]
    count = case.count
    match case.collective:
        case "all_reduce" | "reduce":
            bounds = [count * part // case.n_ranks for part in range(case.n_ranks + 1)]
            start, length = bounds[rank], bounds[rank + 1] - bounds[rank]
            copies = [Copy(other, start, start, length) for other in others]
            if case.collective == "all_reduce" or rank == case.root:
                copies += [
                    Copy(other, bounds[other], bounds[other], bounds[other + 1] - bounds[other]) for other in others
                ]
        case "reduce_scatter":
            copies = [Copy(other, rank * count, 0, count) for other in others]
        case "broadcast":
            copies = [] if in_place and rank == case.root else [Copy(case.root, 0, 0, count)]
        case "all_gather":
            copies = [Copy(other, 0, other * count, count) for other in (others if in_place else ranks)]
        case "gather":
            receives = [] if rank != case.root else others if in_place else ranks
            copies = [Copy(other, 0, other * count, count) for other in receives]
        case "scatter":
            copies = [] if in_place and rank == case.root else [Copy(case.root, rank * count, 0, count)]
        case "all_to_all":
            copies = [Copy(other, rank * count, other * count, count) for other in ranks]
        case _:
            copies = [Copy((rank - 1) % case.n_ranks, 0, 0, count)]
    return [copy for copy in copies if copy.length]


def limit_bytes(case: Case, in_place: bool) -> int:
    """Return the bytes that the busiest receiver copies."""
    return case.dtype.itemsize * max(
        sum(copy.length for copy in limit_copies(case, rank, in_place)) for rank in range(case.n_ranks)
    )


class Limit:
    """The copies as a contender, in the benchmark's own shared memory.

    Parameters
    ----------
    meeting : Meeting
        With a region of at least the send and the receive buffer of the largest case.
    """

    name = "limit"

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting

    def bind(self, case: Case, in_place: bool) -> tuple[Any, Any]:
        """Return the rank's send buffer, to be rewritten before each call, and the call.

        Returns
        -------
        send : ndarray
            Of the case's size, in shared memory.
        call : callable
        """
        meeting, itemsize, rank = self._meeting, case.dtype.itemsize, self._meeting.rank
        send_bytes, receive_bytes = case.send_count * itemsize, case.receive_count * itemsize
        # In place the larger buffer is both: see Case.split.
        whole_bytes = max(send_bytes, receive_bytes)
        gap = 0 if in_place else _page(send_bytes)

        def source_address(owner: int) -> int:
            offset = owner * send_bytes if in_place and case.shape.in_place == "send" else 0
            return _address(meeting.region(owner, whole_bytes)) + offset

        offset = rank * receive_bytes if in_place and case.shape.in_place == "receive" else 0
        destination = _address(meeting.region(rank, whole_bytes)) + gap + offset
        copies = [
            (
                destination + copy.destination * itemsize,
                source_address(copy.source_rank) + copy.source * itemsize,
                copy.length * itemsize,
            )
            for copy in limit_copies(case, rank, in_place)
        ]
        start = rank * send_bytes if in_place and case.shape.in_place == "send" else 0
        send = meeting.region(rank, send_bytes, start)
        return send, meeting.copier(copies)


def _page(nbytes: int) -> int:
    return (nbytes + 4095) // 4096 * 4096


def _address(array: Any) -> int:
    return int(np.asarray(array).ctypes.data)


def region_bytes(case: Case) -> int:
    """Return the bytes of shared memory that each rank needs for a case."""
    send_bytes, receive_bytes = (n * case.dtype.itemsize for n in (case.send_count, case.receive_count))
    return _page(send_bytes) + max(send_bytes, receive_bytes)
