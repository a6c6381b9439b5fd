"""A saved plan can be executed and compared; a file that is not one is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from multiring.collectives.schedules import Collective, Schedule, choose
from multiring.collectives.schedules.explanation import Explanation, explain
from multiring.collectives.schedules.saved_plan import differences, load, save
from multiring.errors import ScheduleError
from multiring.topology import host_topology

ALL_REDUCE = Collective("all_reduce")


def made(nbytes: int = 1000, algorithm: str = "box:3x2", n_ranks: int = 6) -> Explanation:
    choice = choose(ALL_REDUCE, n_ranks, nbytes, algorithm=algorithm)
    return explain(choice, nbytes, host_topology(n_ranks))


def test_what_is_loaded_can_be_executed(tmp_path: Path, execute: Callable[[Schedule, int, int], None]) -> None:
    plan = made()
    save(plan, tmp_path / "plan")
    again = load(tmp_path / "plan")
    assert again.schedule == plan.schedule
    assert again.to_json() == plan.to_json()
    assert again.trace() == plan.trace()
    assert differences(plan, again) == ()
    execute(again.schedule, 17, 3)


def test_a_plan_without_a_topology_has_no_prices(tmp_path: Path) -> None:
    plan = explain(choose(ALL_REDUCE, 3, 12, algorithm="ring"), 12)
    assert plan.predicted_us is None
    save(plan, tmp_path / "plan")
    assert load(tmp_path / "plan").to_json() == plan.to_json()
    assert "us" not in str(plan).split("because")[0]
    with pytest.raises(ScheduleError, match="trace: ring has no predicted times, wanted a plan made on a topology"):
        plan.trace()


def test_differences_name_what_changed() -> None:
    found = differences(made(1000), made(2000))
    assert "nbytes: 1000 -> 2000" in found
    assert any(line.startswith("predicted_us: ") for line in found)
    assert not any(line.startswith("step ") for line in found)


def test_another_wire_is_priced_by_its_bytes() -> None:
    choice = choose(ALL_REDUCE, 2, 4000, algorithm="ring")
    plan = explain(choice, 4000, host_topology(2), "float32", "bfloat16", 2000)
    assert plan.predicted_us == pytest.approx(2 * (0.2 + 1000 / 12e3))
    assert plan.bytes_sent_per_rank == 2000
    assert "4000 bytes of float32, bfloat16 on the way" in str(plan)


def broken(tmp_path: Path, **values: Any) -> Path:
    """Return a file of a good plan in which some values are others."""
    save(made(), tmp_path / "good")
    found = json.loads((tmp_path / "good").read_text())
    for path, value in values.items():
        place, keys = found, path.split("__")
        for key in keys[:-1]:
            place = place[int(key) if key.isdecimal() else key]
        place[keys[-1]] = value
    (tmp_path / "bad").write_text(json.dumps(found))
    return tmp_path / "bad"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"format": "multiring plan 9"}, "bad: got format 'multiring plan 9', wanted 'multiring plan 1'"),
        ({"schedule": 3}, "bad: got schedule 3, wanted dict"),
        ({"schedule__n_ranks": 5}, "bad: .*outside 0..4"),
        ({"schedule__steps": []}, "bad: box all_reduce of 6 ranks, after the last of 0 steps: rank 0 chunk 0 lacks"),
        ({"steps": []}, "bad: got 0 priced steps, wanted 6"),
        ({"steps__0__latency_us": -1.0}, "bad: steps 0: got latency_us -1.0, wanted float"),
        ({"steps__1__transfers": []}, "bad: steps 1: got 0 transfers, wanted 6, as in its schedule"),
        ({"steps__1__transfers__2__link": 7}, "bad: steps 1: transfers 2: got link 7, wanted str"),
        ({"nodes": [0]}, r"bad: got nodes \[0\], wanted one for each of 6 ranks"),
        ({"nbytes": True}, "bad: got nbytes True, wanted int"),
        ({"alternatives": [1]}, "bad: alternatives 0: got int, wanted an object"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        load(broken(tmp_path, **values))


@pytest.mark.parametrize(("text", "message"), [("{", "not JSON"), ("[]", "got format 'list'"), ("\x00", "not JSON")])
def test_other_text_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bad").write_text(text)
    with pytest.raises(ScheduleError, match=f"bad: {message}"):
        load(tmp_path / "bad")
