"""A second, plain executor of schedules, and the right answers in numpy: neither knows how multiring runs them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from multiring.collectives.schedules import Collective, Op, Schedule

Vector = NDArray[np.int64]
POISON = -(10**12)


def cut(size: int, parts: int) -> list[slice]:
    """Cut as numpy.array_split does: the first ``size % parts`` pieces get one more."""
    edges = np.cumsum([0] + [len(piece) for piece in np.array_split(np.arange(size), parts)]).tolist()
    return [slice(first, last) for first, last in itertools.pairwise(edges)]


def execute(schedule: Schedule, count: int, seed: int) -> None:
    """Run a schedule on integers, each rank with its own vector, and compare what it promises with numpy."""
    collective, n_ranks = schedule.collective, schedule.n_ranks
    parts = collective.n_parts(n_ranks)
    size = count * parts if collective.name == "all_to_all" else count
    chunks_per_part = schedule.n_chunks // parts
    pieces = [
        slice(part.start + chunk.start, part.start + chunk.stop)
        for part in cut(size, parts)
        for chunk in cut(part.stop - part.start, chunks_per_part)
    ]
    assert pieces[-1].stop == size
    everywhere = np.random.default_rng(seed).integers(-99, 99, (n_ranks, size))
    held = np.full((n_ranks, size), POISON)
    for rank in range(n_ranks):
        for chunk in collective.before(rank, n_ranks, schedule.n_chunks).tolist():
            held[rank, pieces[chunk]] = everywhere[rank, pieces[chunk]]
    for step in schedule.steps:
        read = [held[transfer.src, pieces[transfer.chunk]].copy() for transfer in step]
        for transfer, values in zip(step, read, strict=True):
            target = held[transfer.dst, pieces[transfer.chunk]]
            target[:] = target + values if transfer.op is Op.REDUCE else values
    for rank in range(n_ranks):
        for chunk in collective.after(rank, n_ranks, schedule.n_chunks).tolist():
            origin = owner(collective, n_ranks, chunk // chunks_per_part)
            wanted = everywhere.sum(0) if collective.reduces else everywhere[origin]
            np.testing.assert_array_equal(held[rank, pieces[chunk]], wanted[pieces[chunk]])


def owner(collective: Collective, n_ranks: int, part: int) -> int:
    """Return the rank that a part comes from where nothing is reduced."""
    return {"all_gather": part, "gather": part, "all_to_all": part // n_ranks}.get(collective.name, collective.root)


def left_folds(schedule: Schedule) -> list[str]:
    """Run a schedule on texts, which do not commute: what each promised slot was added from, brackets included."""
    n_ranks, n_chunks = schedule.n_ranks, schedule.n_chunks
    held = {(rank, chunk): str(rank) for rank in range(n_ranks) for chunk in range(n_chunks)}
    for step in schedule.steps:
        gathered: dict[tuple[int, int], list[tuple[int, str]]] = {}
        for transfer in step:
            slot = (transfer.dst, transfer.chunk)
            own = [(transfer.dst, held[slot])] if transfer.op is Op.REDUCE else []
            gathered.setdefault(slot, own).append((transfer.src, held[transfer.src, transfer.chunk]))
        for slot, values in gathered.items():
            ascending = [text for _, text in sorted(values)]
            total = ascending[0]
            for text in ascending[1:]:
                total = f"({total}+{text})"
            held[slot] = total
    return [
        held[rank, chunk]
        for rank in range(n_ranks)
        for chunk in schedule.collective.after(rank, n_ranks, n_chunks).tolist()
    ]


@pytest.fixture(scope="session", name="execute")
def _execute() -> Callable[[Schedule, int, int], None]:
    return execute


@pytest.fixture(scope="session", name="left_folds")
def _left_folds() -> Callable[[Schedule], list[str]]:
    return left_folds
