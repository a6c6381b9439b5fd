"""Schedules that nobody would write: random, and right."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from multiring.collectives.schedules import (
    COLLECTIVES,
    Collective,
    Op,
    Schedule,
    Step,
    Transfer,
    algorithms_for,
    build,
    merge,
    on,
    then,
)

Arrows = list[tuple[int, int, Op]]
"""(source, destination, what) of one chunk in one step."""


class _Chunk:
    """One chunk on its way: who holds which sum of it.

    ``useful`` are values that together hold every rank once, each on one rank or more; what other ranks hold is junk:
    partial sums that were overtaken, or nothing.
    """

    def __init__(self, rng: random.Random, collective: Collective, n_ranks: int, n_chunks: int, chunk: int) -> None:
        self.rng = rng
        self.n_ranks = n_ranks
        starts = [r for r in range(n_ranks) if chunk in collective.before(r, n_ranks, n_chunks)]
        self.wanted = [r for r in range(n_ranks) if chunk in collective.after(r, n_ranks, n_chunks)]
        self.sums: dict[int, frozenset[int]] = {r: frozenset([r]) for r in starts}
        self.useful = [(frozenset([r]), {r}) for r in starts]

    @property
    def done(self) -> bool:
        return len(self.useful) == 1 and set(self.wanted) <= self.useful[0][1]

    def step(self, wild: float) -> Arrows:
        """Make one step; the wilder, the more goes on besides what is needed."""
        rng, before = self.rng, dict(self.sums)
        arrows: Arrows = []
        busy: set[int] = set()

        def copy(src: int, dst: int) -> None:
            arrows.append((src, dst, Op.COPY))
            busy.add(dst)
            self.sums[dst] = before[src]

        def add(sources: Sequence[int], dst: int) -> None:
            arrows.extend((src, dst, Op.REDUCE) for src in sources)
            busy.add(dst)
            self.sums[dst] = before[dst].union(*(before[src] for src in sources))

        if len(self.useful) > 1:
            rng.shuffle(self.useful)
            merged: list[tuple[frozenset[int], set[int]]] = []
            while self.useful:
                some = [self.useful.pop() for _ in range(min(len(self.useful), rng.choice([1, 2, 2, 2, 3, 4])))]
                if len(some) == 1:
                    merged += some
                    continue
                holders: set[int] = set()
                everyone = [r for _, ranks in some for r in ranks]
                for dst in rng.sample(everyone, len(everyone)):
                    if holders and rng.random() < 0.5:
                        continue
                    add([rng.choice(sorted(ranks)) for _, ranks in some if dst not in ranks], dst)
                    holders.add(dst)
                merged.append((frozenset().union(*(s for s, _ in some)), holders))
            self.useful = merged
        else:
            value, holders = self.useful[0]
            lacking = [r for r in self.wanted if r not in holders]
            for dst in rng.sample(lacking, rng.randint(min(1, len(lacking)), len(lacking))):
                copy(rng.choice(sorted(holders)), dst)
            self.useful = [(value, holders | busy)]
        for dst in range(self.n_ranks):
            if dst in busy or rng.random() > wild:
                continue
            mine = next((entry for entry in self.useful if dst in entry[1]), None)
            if mine is not None:
                # A holder may be overwritten with what it holds, also by one that it overwrites.
                others = [r for r in mine[1] if r != dst and before.get(r) == mine[0] == before.get(dst)]
                if others:
                    copy(rng.choice(others), dst)
                continue
            src = rng.choice([r for r in before if r != dst] or [dst])
            if src == dst:
                continue
            if dst in before and not before[src] & before[dst] and rng.random() < 0.5:
                add([src], dst)
            else:
                copy(src, dst)
            for value, holders in self.useful:
                if self.sums[dst] == value:
                    holders.add(dst)
        return arrows


def random_schedule(seed: int, n_ranks: int, *, collective: str | None = None, wild: float | None = None) -> Schedule:
    """Return a random schedule: each chunk goes its own way, and all orders within a step are random."""
    rng = random.Random(seed)
    name = collective or rng.choice([c for c in COLLECTIVES if c != "barrier"])
    goal = Collective(name, rng.randrange(n_ranks) if COLLECTIVES[name].rooted else 0)
    n_chunks = goal.n_parts(n_ranks) * rng.choice([1, 1, 2, 3] if name != "all_to_all" else [1])
    how_wild = rng.choice([0.0, 0.2, 0.6]) if wild is None else wild
    steps: list[list[Transfer]] = []
    for chunk in range(n_chunks):
        state = _Chunk(rng, goal, n_ranks, n_chunks, chunk)
        at = rng.choice([0, 0, 1, 2])
        extra = rng.choice([0, 0, 1, 3]) if how_wild else 0
        while not state.done or extra:
            extra -= int(state.done)
            arrows = state.step(how_wild)
            while len(steps) <= at:
                steps.append([])
            steps[at] += [Transfer(src, dst, chunk, op) for src, dst, op in arrows]
            at += rng.choice([1, 1, 1, 2])
    for step in steps:
        rng.shuffle(step)
    return Schedule(goal, n_ranks, n_chunks, tuple(Step.of(step) for step in steps), f"random-{seed}")


def random_box(seed: int, rows: int, columns: int) -> Schedule:
    """Return an all_reduce over a box of ranks in random order: inside the rows, across the columns, back."""
    rng = random.Random(seed)
    n_ranks = rows * columns
    ranks = rng.sample(range(n_ranks), n_ranks)
    box = [ranks[row * columns : (row + 1) * columns] for row in range(rows)]
    per_share = rng.choice([2, 4, 2 * rows])
    n_chunks = columns * per_share
    shares = [np.arange(c * per_share, (c + 1) * per_share) for c in range(columns)]

    def small(name: str, n: int, most: int) -> Schedule:
        """Draw a schedule of at most ``most`` chunks for each part."""
        while True:
            algorithm = rng.choice(algorithms_for(name))
            options = {"order": rng.sample(range(n), n)} if algorithm == "ring" else {}
            schedule = build(algorithm, name, n, **options)
            if schedule.n_chunks <= most * schedule.collective.n_parts(n):
                return schedule

    def inside(name: str) -> Schedule:
        rings = []
        for row in box:
            schedule = small(name, columns, per_share)
            groups = [g.tolist() for share in shares for g in np.array_split(share, schedule.n_chunks // columns)]
            rings.append(on(schedule, row, groups, n_ranks, n_chunks))
        return merge(*rings)

    across = []
    for column in range(columns):
        schedule = small("all_reduce", rows, per_share)
        groups = [part.tolist() for part in np.array_split(shares[column], schedule.n_chunks)]
        across.append(on(schedule, [row[column] for row in box], groups, n_ranks, n_chunks))
    return then(
        inside("reduce_scatter"),
        merge(*across),
        inside("all_gather"),
        collective=Collective("all_reduce"),
        algorithm=f"box-{seed}",
    )


def recursive_doubling(power: int) -> Schedule:
    """Return an all_reduce of ``2 ** power`` ranks: partners exchange all they have, every slot is read and written."""
    n_ranks = 1 << power
    ranks = np.arange(n_ranks)
    steps = tuple(Step(ranks ^ (1 << bit), ranks, np.zeros_like(ranks), True) for bit in range(power))
    return Schedule(Collective("all_reduce"), n_ranks, 1, steps, "recursive_doubling")


def rotation(n_ranks: int, n_steps: int) -> Schedule:
    """Return a broadcast that then hands the chunk round: each copy lands where the old value is being read."""
    ranks = np.arange(n_ranks)
    first = Step(np.zeros(n_ranks - 1, dtype=np.int64), ranks[1:], ranks[1:] * 0, False)
    turns = [Step(ranks, np.roll(ranks, -1), ranks * 0, False) for _ in range(n_steps)]
    return Schedule(Collective("broadcast"), n_ranks, 1, (first, *turns), "rotation")
