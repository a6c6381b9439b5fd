"""A schedule of the caller's own: verified when it is given, executed as it is, explained with a price."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multiring.collectives.schedules import Collective, Schedule, Step, build, verify
from multiring.collectives.schedules.cost import cost
from multiring.collectives.schedules.measured_cost import Manner
from multiring.collectives.schedules.saved_plan import load, save
from multiring.errors import ArgumentError, ArgumentTypeError, ScheduleError
from multiring.topology.assumed import ASSUMED
from multiring.topology.cluster import cluster_topology
from tests.collectives.fake_executor import on_ranks as on_threads
from tests.collectives.real_ranks import on_ranks

pytestmark = pytest.mark.shm

STAR = Schedule(
    Collective("all_reduce"),
    3,
    1,
    # Ranks 1 and 2 give to rank 0 at once, which gives to both.
    (Step([1, 2], [0, 0], [0, 0], True), Step([0, 0], [1, 2], [0, 0], False)),
    "star",
)


def without(schedule: Schedule, index: int, row: int) -> Schedule:
    """Leave out one transfer."""
    step = schedule.steps[index]
    kept = np.arange(len(step)) != row
    less = Step(step.src[kept], step.dst[kept], step.chunk[kept], step.reduce[kept])
    steps = (*schedule.steps[:index], less, *schedule.steps[index + 1 :])
    return Schedule(schedule.collective, schedule.n_ranks, schedule.n_chunks, steps, "mine")


def test_it_is_executed(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("plans")

    def body(comm: Any) -> None:
        x = np.arange(1000, dtype=np.int64) * (comm.rank + 1)
        comm.all_reduce(x, schedule=STAR)
        np.testing.assert_array_equal(x, np.arange(1000) * 6)
        # A plan that was saved is a schedule to pass on.
        plan = comm.plan("all_reduce", count=1000, dtype="int64", algorithm="ring")
        save(plan, folder / f"{comm.rank}")
        comm.barrier()
        again = load(folder / "0").schedule
        out = np.full(1000, -1, np.int64)
        comm.all_reduce(x, out, schedule=again)
        np.testing.assert_array_equal(out, np.arange(1000) * 18)

    on_ranks(3, body)


def test_a_broken_one_is_refused_and_the_communicator_lives() -> None:
    ring = build("ring", "all_reduce", 3)

    def body(comm: Any) -> None:
        x = np.ones(10, np.float32)
        with pytest.raises(ScheduleError, match=r"mine all_reduce of 3 ranks, .*rank \d chunk \d lacks rank\(s\) \[\d"):
            comm.all_reduce(x, schedule=without(ring, 0, 1))
        with pytest.raises(
            ScheduleError, match=r"mine all_reduce of 3 ranks, after the last of 2 steps: rank 2 chunk 0"
        ):
            comm.all_reduce(x, schedule=without(STAR, 1, 1))
        twice = Schedule(STAR.collective, 3, 1, (STAR.steps[0], STAR.steps[0], STAR.steps[1]), "mine")
        with pytest.raises(ScheduleError, match=r"step 1: rank 0 chunk 0 gets rank\(s\) \[1, 2\] added twice"):
            comm.all_reduce(x, schedule=twice)
        assert x.tolist() == [1.0] * 10
        comm.all_reduce(x, schedule=STAR)
        assert x.tolist() == [3.0] * 10

    on_ranks(3, body)


def test_one_that_does_not_fit_the_call_is_refused() -> None:
    def body(comm: Any) -> None:
        x = np.ones(10, np.float32)
        wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
            ({"schedule": "ring"}, ArgumentTypeError, "schedule: got str, wanted a Schedule"),
            ({"schedule": STAR, "algorithm": "ring"}, ArgumentError, "got algorithm='ring' and a schedule"),
            ({"schedule": build("ring", "all_reduce", 4)}, ArgumentError, "got one for 4 ranks, wanted 3"),
            ({"schedule": build("ring", "all_gather", 3)}, ArgumentError, "got one for all_gather with root 0"),
            ({"schedule": build("ring", "all_reduce", 3), "order": "rank"}, ArgumentError, "does not add in ascending"),
        ]
        for options, kind, message in wrong:
            with pytest.raises(kind, match=message):
                comm.all_reduce(x, **options)
        comm.all_reduce(x, schedule=STAR, order="rank")
        assert x.tolist() == [3.0] * 10

    on_ranks(3, body)


def test_one_whose_ranks_add_differently_is_refused() -> None:
    # Ranks 0 and 3 get (0 + 1) + (2 + 3), ranks 1 and 2 get (0 + 2) + (1 + 3).
    steps = (Step([1, 0, 2, 3], [0, 2, 3, 1], [0] * 4, True), Step([3, 0, 1, 2], [0, 3, 2, 1], [0] * 4, True))
    schedule = Schedule(Collective("all_reduce"), 4, 1, steps, "two ways")
    verify(schedule)

    def body(comm: Any) -> None:
        with pytest.raises(ScheduleError, match="two ways all_reduce of 4 ranks adds in another order on another rank"):
            comm.prepare("all_reduce", np.ones(4), schedule=schedule)

    on_threads(4, body)


def test_a_plan_has_its_price_on_the_host() -> None:
    def body(comm: Any) -> None:
        plan = comm.plan("all_reduce", nbytes=1 << 20, algorithm="ring")
        # By the rates that are assumed until the machine is measured.
        topology, named = cluster_topology((0, 0, 0), measured=ASSUMED), Manner(named=True)
        assert plan.predicted_us == cost(build("ring", "all_reduce", 3), topology, 1 << 20, manner=named).total_us
        assert plan.to_json()["algorithm"] == "ring"
        shown = comm.explain("all_reduce", nbytes=1 << 20, algorithm="ring")
        assert shown == str(plan)
        assert f"predicted {plan.predicted_us:.1f} us" in shown
        assert [other.predicted_us for other in plan.alternatives] == sorted(
            other.predicted_us for other in plan.alternatives if other.predicted_us is not None
        )
        mine = comm.plan("all_reduce", count=30, schedule=STAR)
        assert (mine.algorithm, mine.reason, mine.alternatives) == ("star", "the caller gave this schedule", ())
        assert comm.plan("barrier", nbytes=0).predicted_us is not None

    on_ranks(3, body)
