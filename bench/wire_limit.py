"""The limit of a collective on several nodes: a bare exchange of the bytes that each node must send and receive.

Measured in the same run over MPI, on all ranks at once, from inputs that were just rewritten: slices of one size, a few
in flight, without arithmetic, without headers, and without waiting for what another rank has computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multiring.bench.cases import Case

__all__ = ["IN_FLIGHT", "SLICE_BYTES", "WireLimit", "node_flows", "rank_flows", "wire_limit_bytes"]

SLICE_BYTES = 64 << 10
IN_FLIGHT = 4
"""Slices of a rank that are on their way at once. At 1 Gbit/s 2 to 8 of 32 to 256 KiB take the same time within 3 %,
and unsliced messages of 8 MiB a fifth longer."""

Flow = tuple[int, int, int]
"""From which rank (or node), to which, how many bytes."""


def node_flows(case: Case, node_of: Sequence[int]) -> list[Flow]:
    """Return the bytes that have to cross from node to node.

    Parameters
    ----------
    case : Case
    node_of : sequence of int
        The node of each rank, from 0.

    Notes
    -----
    With H nodes and a vector of n bytes: all_reduce has 2(H-1)/H n leave and reach every node, reduce_scatter and
    all_gather what is not the node's own, all along a ring; broadcast and reduce pass n along a chain from, or to, the
    root's node; the others send to each node what is meant for its ranks. Bytes are those of the type that travels.
    """
    n_nodes = max(node_of) + 1
    itemsize = (case.wire or case.dtype).itemsize
    part = case.count * itemsize
    ranks = [list(node_of).count(node) for node in range(n_nodes)]
    ring = [(node, (node + 1) % n_nodes) for node in range(n_nodes)]
    root = node_of[max(case.root, 0)]
    chain = [((root + step) % n_nodes, (root + step + 1) % n_nodes) for step in range(n_nodes - 1)]
    match case.collective:
        case "all_reduce":
            flows = [(a, b, -(-2 * (n_nodes - 1) * part // n_nodes)) for a, b in ring]
        case "reduce_scatter":
            flows = [(a, b, (case.n_ranks - ranks[a]) * part) for a, b in ring]
        case "all_gather":
            flows = [(a, b, (case.n_ranks - ranks[b]) * part) for a, b in ring]
        case "broadcast":
            flows = [(a, b, part) for a, b in chain]
        case "reduce":
            flows = [(b, a, part) for a, b in chain]
        case "gather":
            flows = [(node, root, ranks[node] * part) for node in range(n_nodes)]
        case "scatter":
            flows = [(root, node, ranks[node] * part) for node in range(n_nodes)]
        case "all_to_all":
            flows = [(a, b, ranks[a] * ranks[b] * part) for a in range(n_nodes) for b in range(n_nodes)]
        case _:
            pairs = [(node_of[rank], node_of[(rank + 1) % case.n_ranks]) for rank in range(case.n_ranks)]
            flows = [(a, b, pairs.count((a, b)) * part) for a, b in dict.fromkeys(pairs)]
    return [flow for flow in flows if flow[0] != flow[1] and flow[2]]


def rank_flows(flows: Sequence[Flow], node_of: Sequence[int]) -> list[Flow]:
    """Divide flows between nodes evenly among the ranks of both ends."""
    ranks: dict[int, list[int]] = {}
    for rank, node in enumerate(node_of):
        ranks.setdefault(node, []).append(rank)
    divided = []
    for a, b, nbytes in flows:
        n_pairs = max(len(ranks[a]), len(ranks[b]))
        for pair in range(n_pairs):
            share = nbytes * (pair + 1) // n_pairs - nbytes * pair // n_pairs
            divided.append((ranks[a][pair % len(ranks[a])], ranks[b][pair % len(ranks[b])], share))
    return [flow for flow in divided if flow[2]]


def wire_limit_bytes(case: Case, node_of: Sequence[int]) -> int:
    """Return the bytes that the busiest node sends or receives, whichever are more."""
    sent, received = [0] * (max(node_of) + 1), [0] * (max(node_of) + 1)
    for a, b, nbytes in node_flows(case, node_of):
        sent[a] += nbytes
        received[b] += nbytes
    return max(*sent, *received)


class WireLimit:
    """The exchange as a contender.

    Parameters
    ----------
    mpi : mpi4py.MPI.Comm
        Of all ranks; duplicated.
    node_of : sequence of int
        The node of each rank.
    slice_bytes, in_flight : int
    """

    name = "limit"

    def __init__(
        self, mpi: Any, node_of: Sequence[int], slice_bytes: int = SLICE_BYTES, in_flight: int = IN_FLIGHT
    ) -> None:
        self._comm = mpi.Dup()
        self._node_of = tuple(node_of)
        self._slice_bytes = slice_bytes
        self._in_flight = in_flight
        self._send = self._receive = np.empty(0, np.uint8)
        self._bound: dict[bool, list[Any]] = {}

    def limit_bytes(self, case: Case, in_place: bool) -> int:
        """Return the bytes that the busiest node sends or receives."""
        del in_place  # what lies in place never had to cross
        return wire_limit_bytes(case, self._node_of)

    def bind(self, case: Case, in_place: bool) -> tuple[NDArray[np.uint8], Callable[[], object]]:
        """Return the rank's send buffer, to be rewritten before each call, and the call.

        Returns
        -------
        send : ndarray of uint8
            Of the case's size.
        call : callable
            Valid until the next bind of this half of a line.
        """
        rank = self._comm.rank
        flows = rank_flows(node_flows(case, self._node_of), self._node_of)
        send_bytes = case.send_count * case.dtype.itemsize
        self._free(in_place)
        to = [(flow[1], flow[2]) for flow in flows if flow[0] == rank]
        of = [(flow[0], flow[2]) for flow in flows if flow[1] == rank]
        # Requests keep their buffers: those of the other half stay valid where one is replaced here.
        if self._send.size < max(send_bytes, 1):
            self._send = np.empty(max(send_bytes, 1), np.uint8)
        self._receive = _at_least(self._receive, sum(nbytes for _, nbytes in of))
        whole, buffers = 0, []
        for peer, nbytes in of:
            buffers.append((peer, self._receive[whole : whole + nbytes]))
            whole += nbytes
        # All send buffers are of one size, so that both ends cut in the same way.
        most = min(self._slice_bytes, send_bytes)
        receives = [
            self._comm.Recv_init(array[start : start + length], peer)
            for peer, array in buffers
            for start, length in _slices(array.size, most)
        ]
        # What is sent more than once (results on their way) is sent from the same bytes.
        cuts = sorted((start, peer, length) for peer, nbytes in to for start, length in _slices(nbytes, most))
        sends = []
        for start, peer, length in cuts:
            first = start % (send_bytes - length + 1)
            sends.append(self._comm.Send_init(self._send[first : first + length], peer))
        self._bound[in_place] = [*receives, *sends]
        return self._send[:send_bytes], _exchange(sends, receives, self._in_flight)

    def _free(self, in_place: bool) -> None:
        for request in self._bound.pop(in_place, []):
            request.Free()


def _slices(nbytes: int, most: int) -> list[tuple[int, int]]:
    return [(start, min(most, nbytes - start)) for start in range(0, nbytes, max(most, 1))]


def _at_least(array: NDArray[np.uint8], nbytes: int) -> NDArray[np.uint8]:
    return array if array.size >= nbytes else np.empty(nbytes, np.uint8)


def _exchange(sends: list[Any], receives: list[Any], in_flight: int) -> Callable[[], object]:
    """Return a call that does all, with so many of its sends at once.

    All receives are posted first: a send then never waits for more than its peer to get here, in whatever order the
    peers send.
    """
    if not sends and not receives:
        return lambda: None
    start_all, wait_all = (sends or receives)[0].Startall, (sends or receives)[0].Waitall

    def call() -> None:
        start_all(receives)
        for index, request in enumerate(sends):
            if index >= in_flight:
                sends[index - in_flight].Wait()
            request.Start()
        wait_all(receives)
        wait_all(sends[-in_flight:])

    return call
