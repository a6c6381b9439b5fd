"""Latency and bandwidth between nodes: a message there and back, and all ranks of two nodes sending at once."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multiring.topology.measured import Estimate

__all__ = ["interval_of_median", "measure_network"]

SMALL_BYTES = 8
LARGE_BYTES = 4 << 20
ROUNDS = {False: (200, 12), True: (40, 5)}
"""Of small and of large messages, thorough and quick."""
WARMUP = 3


def measure_network(comm: Any, quick: bool = False) -> dict[str, Estimate]:
    """Measure messages between the first two nodes; all ranks make the same call and get the same answer.

    Returns
    -------
    dict
        ``message_us`` and ``port_gbs``.

    Parameters
    ----------
    comm : multiring.Communicator
        On at least two nodes.
    quick : bool

    Notes
    -----
    Latency: half of the time that 8 bytes take there and back between the nodes' first ranks. Bandwidth: each rank of
    node 0 and its partner on node 1 send each other 4 MiB at once; the bytes that leave a node by the slowest rank's
    time, less the latency.
    """
    nodes = np.zeros(comm.size, dtype=np.int64)
    comm.all_gather(np.array([comm.node], dtype=np.int64), nodes)
    first, second = (np.flatnonzero(nodes == node).tolist() for node in (0, 1))
    pairs = list(zip(first, second, strict=False))
    partner = dict(pairs) | {far: near for near, far in pairs}
    small_rounds, large_rounds = ROUNDS[quick]
    small = _exchange(comm, dict(pairs[:1]) | {pairs[0][1]: pairs[0][0]}, SMALL_BYTES, small_rounds, both=False)
    large = _exchange(comm, partner, LARGE_BYTES, large_rounds, both=True)
    latency = interval_of_median(small / 2)
    latency = Estimate(*(max(value, 0.001) for value in (latency.value, latency.low, latency.high)))
    moved_us = np.maximum(large - latency.value, 1e-3)
    bandwidth = interval_of_median(len(pairs) * LARGE_BYTES / moved_us / 1e3)
    return {"message_us": latency, "port_gbs": bandwidth}


def _exchange(comm: Any, partner: dict[int, int], nbytes: int, rounds: int, *, both: bool) -> NDArray[np.float64]:
    """Return the slowest rank's microseconds of each round: there and back, or both ways at once."""
    peer = partner.get(comm.rank)
    sent, received = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    taken = np.zeros(rounds)
    for number in range(-WARMUP, rounds):
        sent[...] = number & 1
        comm.barrier()
        start = perf_counter_ns()
        if peer is not None:
            if both:
                comm.send_recv(sent, peer, received, peer)
            elif comm.rank < peer:
                comm.send(sent, peer)
                comm.recv(received, peer)
            else:
                comm.recv(received, peer)
                comm.send(sent, peer)
        if number >= 0:
            taken[number] = (perf_counter_ns() - start) / 1e3
    # Who waits for the first message also waits for whoever left the barrier last: the starter alone knows the time.
    mine = taken if peer is not None and (both or comm.rank < peer) else np.zeros(rounds)
    every = np.zeros((comm.size, rounds))
    comm.all_gather(mine, every.reshape(-1))
    return np.asarray(every.max(axis=0), dtype=np.float64)


def interval_of_median(samples: NDArray[np.float64], resamples: int = 400, seed: int = 1) -> Estimate:
    """Return the median of samples with its 95 % interval by the bootstrap."""
    rng = np.random.default_rng(seed)
    medians = np.median(rng.choice(samples, (resamples, samples.size)), axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    middle = float(np.median(samples))
    return Estimate(middle, min(float(low), middle), max(float(high), middle))
