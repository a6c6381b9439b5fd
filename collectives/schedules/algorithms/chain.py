"""Chains: a vector moves down a line of ranks, chunk after chunk, so that all links are busy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.schedules.collective import Collective
from multiring.collectives.schedules.compose import then
from multiring.collectives.schedules.schedule import Schedule, Step
from multiring.errors import ArgumentError, ScheduleError

__all__ = ["chain", "parse_chain"]

# step     0 ──▶ 1 ──▶ 2 ──▶ 3
#   0        c0
#   1        c1    c0
#   2        c2    c1    c0          chunk c is on link i in step i + c
#   3              c2    c1
#   4                    c2


def chain(
    collective: Collective,
    n_ranks: int,
    order: Sequence[int] | None = None,
    n_chunks: int = 8,
    algorithm: str = "chain",
) -> Schedule:
    """Build a broadcast, reduce or all_reduce as a pipelined chain.

    Parameters
    ----------
    collective : Collective
        broadcast, reduce or all_reduce.
    n_ranks : int
        At least 1.
    order : sequence of int, optional
        The ranks down the chain; broadcast starts at the root, reduce ends there. Otherwise broadcast goes round from
        the root, and sums run up the ranks: they are added in ascending rank, and the last rank sends them to the root.
    n_chunks : int
        How many pieces follow each other.
    algorithm : str
        The name that the schedule carries.

    Raises
    ------
    ScheduleError
        If the order does not name every rank once, or does not start or end at the root.

    Notes
    -----
    broadcast, reduce: ``p - 2 + k`` steps of ``n / k`` bytes for k chunks. all_reduce is one up and one down the chain.
    With the default order the sums fit ``order="rank"``.
    """
    if n_ranks == 1:
        return Schedule(collective, 1, n_chunks, (), algorithm)
    if order is None:
        line = np.arange(n_ranks) if collective.reduces else np.roll(np.arange(n_ranks), -collective.root)
    else:
        line = np.asarray(order, dtype=np.int64)
        ends = {"broadcast": line[:1], "reduce": line[-1:]}.get(collective.name, line[:0])
        if not np.array_equal(np.sort(line), np.arange(n_ranks)) or (ends != collective.root).any():
            raise ScheduleError(
                f"{algorithm} {collective.name}: got order {line.tolist()}, wanted each of {n_ranks} ranks once"
                + (
                    f", with the root {collective.root} {'first' if collective.name == 'broadcast' else 'last'}"
                    if ends.size
                    else ""
                )
            )
    if not collective.reduces:
        return Schedule(collective, n_ranks, n_chunks, _down(line, n_chunks, reduce=False), algorithm)
    up = Schedule(collective, n_ranks, n_chunks, _down(line, n_chunks, reduce=True), algorithm)
    last = int(line[-1])
    if collective.name == "all_reduce":
        down = Schedule(Collective("broadcast", last), n_ranks, n_chunks, _down(line[::-1], n_chunks, reduce=False))
    elif last != collective.root:
        chunks = np.arange(n_chunks)
        send = Step(np.full(n_chunks, last), np.full(n_chunks, collective.root), chunks, False)
        down = Schedule(Collective("broadcast", last), n_ranks, n_chunks, (send,))
    else:
        return up
    return then(up, down, collective=collective, algorithm=algorithm)


def parse_chain(text: str) -> dict[str, Any]:
    """Read what follows the colon in ``"chain:16"``."""
    if not text.isdecimal() or not int(text):
        raise ArgumentError(f"got {text!r} after its colon, wanted a number of chunks")
    return {"n_chunks": int(text)}


def _down(line: NDArray[np.int64], n_chunks: int, *, reduce: bool) -> tuple[Step, ...]:
    steps = []
    for step in range(len(line) - 2 + n_chunks):
        link = np.arange(max(0, step - n_chunks + 1), min(step, len(line) - 2) + 1)
        steps.append(Step(line[link], line[link + 1], step - link, reduce))
    return tuple(steps)
