"""The table of steps and bytes in docs/algorithms.md, made from the schedules themselves.

``python -m multiring.collectives.schedules.table docs/algorithms.md`` writes it anew; a test compares the two.
"""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path

import numpy as np

from multiring.collectives.schedules.algorithms import ALGORITHMS, build
from multiring.collectives.schedules.collective import Collective
from multiring.collectives.schedules.ordering import is_rank_ordered, n_roundings
from multiring.collectives.schedules.schedule import Schedule

__all__ = ["RANKS", "replace_table", "table"]

RANKS = (4, 6, 8, 32)
BEGIN, END = "<!-- generated table: begin -->", "<!-- generated table: end -->"


def table() -> str:
    """Return the table of all algorithms and collectives, as Markdown."""
    heads = ["algorithm", "collective", *(f"p = {p}" for p in RANKS), "roundings at 8", "rank order"]
    rows = [f"| {' | '.join(heads)} |", "|---|---|" + "---|" * (len(RANKS) + 2)]
    for name, algorithm in ALGORITHMS.items():
        for collective in algorithm.collectives:
            schedules = {p: build(name, Collective(collective), p) for p in RANKS}
            cells = [f"{schedules[p].n_steps}: {_share(schedules[p])}" for p in RANKS]
            reduces = schedules[8].collective.reduces
            order = ("yes" if all(map(is_rank_ordered, schedules.values())) else "no") if reduces else ""
            roundings = str(n_roundings(schedules[8])) if reduces else ""
            rows.append(f"| {name} | {collective} | {' | '.join(cells)} | {roundings} | {order} |")
    return "\n".join(rows)


def replace_table(text: str) -> str:
    """Return a text with what stands between its two marks replaced by the table."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"got no lines {BEGIN} and {END}, wanted both: the table goes between them")
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def _share(schedule: Schedule) -> str:
    """Most bytes that a rank sends, as a fraction of the vector."""
    chunks = schedule.n_chunks
    if schedule.collective.n_parts(schedule.n_ranks) > schedule.n_ranks:
        chunks //= schedule.n_ranks  # all_to_all: the vector is one rank's row
    sent = sum(
        (np.bincount(step.src, minlength=schedule.n_ranks) for step in schedule.steps),
        np.zeros(schedule.n_ranks, dtype=np.int64),
    )
    share = Fraction(int(sent.max()), chunks)
    return "0" if not share else "n" if share == 1 else f"{share} n"


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(replace_table(page.read_text(encoding="utf-8")), encoding="utf-8")
