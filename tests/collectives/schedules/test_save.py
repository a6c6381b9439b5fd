"""A saved schedule is the same schedule; anything else in the file is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from multiring.collectives.schedules import ALGORITHMS, COLLECTIVES, Collective, build
from multiring.collectives.schedules.save import from_json, to_json
from multiring.errors import ScheduleError


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_is_saved_is_read_back(name: str) -> None:
    for collective in ALGORITHMS[name].collectives:
        root = 2 if COLLECTIVES[collective].rooted else 0
        schedule = build(name, Collective(collective, root), 6)
        again = from_json(to_json(schedule))
        assert again == schedule
        assert hash(again) == hash(schedule)


def changed(**values: Any) -> str:
    good = json.loads(to_json(build("direct", "all_gather", 2)))
    return json.dumps(good | values)


STEP = {"src": [0], "dst": [1], "chunk": [0], "reduce": [False]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "schedule file: not JSON"),
        ("[]", "schedule file: got format 'list', wanted 'multiring schedule 1'"),
        ("{}", "schedule file: got format None, wanted 'multiring schedule 1'"),
        (changed(n_ranks="2"), "schedule file: got n_ranks '2', wanted int"),
        (changed(n_ranks=True), "schedule file: got n_ranks True, wanted int"),
        (changed(steps=None), "schedule file: got steps None, wanted list"),
        (changed(steps=[3]), "schedule file: step 0: got int, wanted an object"),
        (changed(steps=[STEP | {"src": [0, 1]}]), r"step 0: columns of \[2, 1, 1, 1\], wanted equal lengths"),
        (changed(steps=[STEP | {"src": [0.5]}]), "step 0: got 0.5 in src, wanted int of 32 bits at most"),
        (changed(steps=[STEP | {"chunk": [1 << 40]}]), "step 0: got 1099511627776 in chunk, wanted int of 32 bits"),
        (changed(steps=[STEP | {"reduce": [0]}]), "step 0: got 0 in reduce, wanted bool"),
        (changed(steps=[STEP | {"dst": [2]}]), r"step 0 transfer 0→2 =c0 names a rank outside 0..1"),
        (changed(collective="allgather"), "collective: got 'allgather', wanted one of barrier"),
    ],
)
def test_anything_else_is_refused(text: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        from_json(text)
