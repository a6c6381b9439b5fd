"""The page of algorithms says what the schedules do."""

from __future__ import annotations

from pathlib import Path

import pytest

from multiring.collectives.schedules import ALGORITHMS, build, bytes_sent
from multiring.collectives.schedules.table import replace_table, table

PAGE = Path(__file__).parents[3] / "docs" / "algorithms.md"


def test_the_table_is_that_of_the_schedules() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert replace_table(text) == text, "run python -m multiring.collectives.schedules.table docs/algorithms.md"


def test_the_table_agrees_with_bytes_counted_another_way() -> None:
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table().splitlines()[2:]]
    assert len(rows) == sum(len(algorithm.collectives) for algorithm in ALGORITHMS.values())
    for name, collective, *cells in rows:
        steps, share = cells[2].split(": ")
        schedule = build(name, collective, 8)
        nbytes = 64 * schedule.n_chunks
        share = share.replace("n", "").strip() or "1"
        above, _, below = share.partition("/")
        assert schedule.n_steps == int(steps)
        assert int(bytes_sent(schedule, nbytes).max()) * int(below or 1) == int(above) * nbytes


def test_the_page_names_every_algorithm() -> None:
    text = PAGE.read_text(encoding="utf-8")
    prose = text[: text.index("<!-- generated table: begin -->")]
    assert [name for name in ALGORITHMS if f"**{name}" not in prose] == []


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="wanted both: the table goes between them"):
        replace_table("# nothing")
