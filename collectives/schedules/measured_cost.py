"""The parts of a call's time on measured hosts: what :func:`~multiring.collectives.schedules.cost.cost` adds up there.

One rule prices and fits: a call is a table of how often it does what a coefficient stands for, and its price is that
table times the coefficients. In a step, the core that handles most bytes counts; ranks that share a core add up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.schedules.schedule import Schedule
from multiring.collectives.schedules.volume import chunk_bytes
from multiring.collectives.schedules.work import Work, work
from multiring.topology.measured import COEFFICIENTS, COLUMN, KNOTS_BYTES, HostRates, knot_weights

__all__ = ["MANNERS", "MOVING", "SUMMING", "SYMMETRIC", "WAITING", "Manner", "features"]

WAITING, MOVING, SUMMING = range(3)
"""The parts of a step: what it takes for no bytes, copies, sums."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How a call is made.

    Attributes
    ----------
    symmetric : bool
        On arrays in memory that all ranks reach.
    in_place : bool
        Input and output are one array.
    named : bool
        The caller names the algorithm: such a call takes a longer way through Python.
    """

    symmetric: bool = True
    in_place: bool = False
    named: bool = False


SYMMETRIC = Manner()
MANNERS = tuple(Manner(symmetric, in_place) for symmetric in (True, False) for in_place in (False, True))
"""All that the choice must do for."""


def features(
    schedule: Schedule, nbytes: int, rates: HostRates, manner: Manner, nodes: tuple[int, ...]
) -> NDArray[np.float64]:
    """Return how often a call does what each coefficient stands for.

    Parameters
    ----------
    schedule : Schedule
    nbytes : int
        Bytes of the whole vector, as in :func:`~multiring.collectives.schedules.volume.chunk_bytes`.
    rates : HostRates
        Numbers of ranks and cores and the executor's sizes; its coefficients are not used.
    manner : Manner
    nodes : tuple of int
        The node of each rank.

    Returns
    -------
    ndarray of float64, shape (1 + n_steps, 3, coefficients)
        The call before its first step, then each step; :data:`WAITING`, :data:`MOVING` and :data:`SUMMING`.
    """
    sizes = chunk_bytes(schedule, nbytes)
    longest = int(sizes.max())
    through_slots = work(schedule, False, manner.in_place)
    eager = through_slots.n_places * _up(longest, 8) <= rates.eager_bytes
    done = through_slots if eager or not manner.symmetric else work(schedule, True, manner.in_place)
    slices = 1 if eager else _slices(longest, done.n_places, rates.slot_bytes)
    found = np.zeros((1 + done.n_steps, 3, len(COEFFICIENTS)))
    kind = "eager" if eager else "symmetric" if manner.symmetric else "ordinary"
    found[0, WAITING, COLUMN[f"call.{kind}"]] = 1.0
    where = "in_place" if manner.in_place else "out_of_place"
    start = f"{'named' if manner.named else 'start'}.{schedule.collective.name}.{where}"
    if start in COLUMN:
        found[0, WAITING, COLUMN[start]] = 1.0
    _fill(found, done, sizes, _Processors(rates, nodes), manner.in_place, slices)
    found[1:, WAITING, COLUMN["step.eager" if eager else "step"]] = found[1:, WAITING, COLUMN["act"]] > 0
    if slices > 1:
        for each in ("step", "act"):
            found[1:, WAITING, COLUMN[f"slice.{each}"]] = found[1:, WAITING, COLUMN[each]] * (slices - 1)
    return found


def _fill(
    found: NDArray[np.float64],
    done: Work,
    sizes: NDArray[np.int64],
    processors: _Processors,
    in_place: bool,
    slices: int,
) -> None:
    """Enter the bytes and the acts that a step's time depends on."""
    moved = sizes[done.chunk].astype(np.float64)
    shape = (found.shape[0], processors.n_ranks)

    def by_rank(values: NDArray[np.float64]) -> NDArray[np.float64]:
        table: NDArray[np.float64] = np.zeros(shape)
        np.add.at(table, (done.step + 1, done.rank), values)
        return table

    traffic = by_rank((done.reads + done.writes) * moved)
    counted = processors.shares(traffic)
    # Slices follow each other: with many, the busiest of all steps together decides, not that of each step.
    in_steps = (traffic * counted).sum()
    whole = traffic.sum(axis=0, keepdims=True)
    together = (whole * processors.shares(whole)).sum()
    share = 1.0 if in_steps <= 0 else (in_steps + (slices - 1) * together) / (slices * in_steps)
    found[:, WAITING, COLUMN["act"]] = (by_rank((moved > 0).astype(np.float64)) * counted).sum(axis=1)
    warm = done.sums & in_place
    weights = knot_weights(float(done.arrays @ sizes))
    for part, chosen in ((MOVING, ~done.sums), (SUMMING, done.sums)):

        def kilobytes(times: NDArray[np.int64], chosen: NDArray[np.bool_] = chosen) -> NDArray[np.float64]:
            return np.asarray((by_rank(times * chosen * moved) * counted).sum(axis=1) * share / 1000.0)

        for table, times in (
            ("own_read", done.own_reads),
            ("peer_read", done.peer_reads),
            ("write", done.array_writes * ~done.sums),
            ("sum_write", done.array_writes * (done.sums & ~warm)),
            ("rewrite", done.array_writes * warm),
        ):
            at = COLUMN[f"{table}.{KNOTS_BYTES[0]}"]
            found[:, part, at : at + weights.size] = kilobytes(times)[:, None] * weights
        write = "slot_sum_write" if part == SUMMING else "slot_write"
        for name, times in (("slot_read", done.slot_reads), (write, done.slot_writes)):
            found[:, part, COLUMN[name]] = kilobytes(times)
        if part == SUMMING:
            found[:, part, COLUMN["sum"]] = kilobytes(done.reads)


class _Processors:
    """The cores that ranks run on.

    Ranks that are more than cores share them evenly, as the system moves them about: a step then takes what all ranks
    of a node do, by its cores, or what the busiest rank does, if that is more.
    """

    def __init__(self, rates: HostRates, nodes: tuple[int, ...]) -> None:
        node = np.array(nodes, dtype=np.int64)
        self.n_ranks = node.size
        # A row for each rank alone, then one for each node that has more ranks than cores.
        crowded = [one for one in sorted(set(nodes)) if (node == one).sum() > rates.n_cores]
        together = [(node == one) / max(rates.n_cores, 1) for one in crowded]
        self._views = np.concatenate([np.eye(self.n_ranks), np.array(together).reshape(len(together), self.n_ranks)])

    def shares(self, traffic: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return, for each step, how much each rank's work counts."""
        return np.asarray(self._views[(traffic @ self._views.T).argmax(axis=1)])


def _slices(longest: int, n_places: int, slot_bytes: int) -> int:
    """Return into how many pieces the executor cuts a chunk that passes through slots."""
    if not n_places or not longest:
        return 1
    piece = max(slot_bytes // n_places, 1)
    return -(-longest // (piece & ~255 if piece >= 256 else piece))


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
