"""The stress program in short (in full: ``HYPOTHESIS_PROFILE=deep``), and faults planted to see it find them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from multiring.collectives import plan
from multiring.collectives.executor import Executor
from multiring.collectives.plan import Table
from multiring.collectives.program import Lowered
from multiring.kernels.records import (
    CONTEXT_PARITY_MASK,
    PROGRAM_EXIT_BEGIN,
    PROGRAM_EXIT_END,
    PROGRAM_OPERANDS,
    PROGRAM_WAITS,
    WAIT_LAG,
    WAIT_POSITION,
    WAIT_WORDS,
)
from tests.shm.stress import Options, Plant, run
from tests.shm.stress_calls import MOVING, REDUCING
from tests.support.ranks import results

pytestmark = pytest.mark.shm

DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"


@pytest.mark.parametrize(
    ("options", "calls_deep"),
    [
        (Options(ranks=2, calls=600, seed=1, delay=20), 30_000),
        (Options(ranks=3, calls=400, seed=2, delay=40), 30_000),
        (Options(ranks=4, calls=400, seed=3, spins=0, yields=0), 30_000),
        (Options(ranks=5, calls=250, seed=4, delay=10), 10_000),
    ],
    ids=["2-ranks", "3-ranks", "4-ranks-futex-only", "5-ranks"],
)
@pytest.mark.timeout(1800 if DEEP else 200)
def test_every_element_of_every_call_is_right(options: Options, calls_deep: int) -> None:
    calls = calls_deep if DEEP else options.calls
    outcomes = run(dataclasses.replace(options, calls=calls), limit_s=1700 if DEEP else 180)
    for result in results(outcomes):
        assert sum(result["kinds"].values()) == calls


# --- planted faults --------------------------------------------------------------------------------------------------


def altered(alter: Callable[[Table], None]) -> Plant:
    """Return a plant that alters every program table, on every rank alike."""
    encode = plan.encode

    def plant(executors: list[Executor]) -> None:
        def encode_wrong(
            lowered: Lowered, rank: int, n_steps: int, members: Sequence[int] | None = None, n_places: int = 0
        ) -> Table:
            table = encode(lowered, rank, n_steps, members, n_places)
            alter(table)
            return table

        plan.encode = encode_wrong  # In this forked rank alone.

    return plant


def waits(table: Table) -> Table:
    """Return the waits of a program, as rows."""
    return table[table[PROGRAM_WAITS] : table[PROGRAM_OPERANDS]].reshape(-1, WAIT_WORDS)


def free_slots_early(table: Table) -> None:
    rows = waits(table)
    rows[rows[:, WAIT_LAG] > 0, WAIT_LAG] += 1


def never_wait_for_slots(table: Table) -> None:
    rows = waits(table)
    rows[rows[:, WAIT_LAG] > 0, WAIT_POSITION] = -(1 << 60)


def leave_at_once(table: Table) -> None:
    table[PROGRAM_EXIT_END] = table[PROGRAM_EXIT_BEGIN]


def never_wait_within_a_slice(table: Table) -> None:
    exits = np.arange(len(waits(table))) >= table[PROGRAM_EXIT_BEGIN]
    rows = waits(table)
    rows[(rows[:, WAIT_LAG] == 0) & ~exits, WAIT_POSITION] = -(1 << 60)


def read_one_slice_early(table: Table) -> None:
    """Waits within a slice are for the slice before: a read no longer waits for its write."""
    exits = np.arange(len(waits(table))) >= table[PROGRAM_EXIT_BEGIN]
    rows = waits(table)
    rows[(rows[:, WAIT_LAG] == 0) & ~exits, WAIT_LAG] = 1


def one_parity(executors: list[Executor]) -> None:
    for executor in executors:
        executor._context.words[CONTEXT_PARITY_MASK] = 0


@pytest.mark.parametrize(
    ("plant", "symmetric", "kinds"),
    [
        (altered(free_slots_early), 0.0, REDUCING + MOVING),
        (altered(never_wait_for_slots), 0.0, REDUCING + MOVING),
        (altered(leave_at_once), 1.0, REDUCING + MOVING),
        (altered(never_wait_within_a_slice), 0.5, REDUCING),
        (altered(read_one_slice_early), 0.0, REDUCING),
        (one_parity, 0.5, REDUCING + MOVING),
    ],
    ids=[
        "slot-freed-early",
        "slot-not-waited-for",
        "no-exit-wait",
        "no-read-after-write",
        "stale-slice",
        "one-parity",
    ],
)
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_planted_fault_is_found(plant: Plant, symmetric: float, kinds: tuple[str, ...], ranks: int) -> None:
    options = Options(ranks=ranks, calls=2000, seed=11, delay=60, symmetric=symmetric, kinds=kinds, timeout_s=10.0)
    outcomes = run(options, plant, limit_s=90.0)
    errors = [o.error for o in outcomes if o.error]
    # The first rank to see it stops; the others then lose it, or disagree with it.
    assert errors, f"2000 calls went well in spite of the fault: {[o.result for o in outcomes]}"
    assert any(sign in text for text in errors for sign in ("WrongError", "MismatchError")), errors
