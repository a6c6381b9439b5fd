"""The stopwatch, with a clock that the test turns."""

from __future__ import annotations

import numpy as np
import pytest

from multiring.bench.timing import Trial, iterations_for, measure_ns, slowest_us, timer_overhead_ns


class Clock:
    """Stands still unless a call lets time pass."""

    def __init__(self) -> None:
        self.now = 0
        self.log: list[str] = []

    def __call__(self) -> int:
        return self.now

    def trial(self, name: str, takes: int) -> Trial:
        def call() -> None:
            self.log.append(name)
            self.now += takes

        def rewrite(k: int) -> None:
            self.log.append(f"rewrite {name} {k}")
            self.now += 1_000_000

        return Trial(name, rewrite, call, lambda k: self.log.append(f"verify {name} {k}"))

    def barrier(self) -> None:
        self.log.append("barrier")
        self.now += 1_000_000


def test_only_the_call_is_timed_and_inputs_are_rewritten_before_each() -> None:
    clock = Clock()
    taken = measure_ns([clock.trial("ours", 100), clock.trial("mpi", 300)], 3, 1, clock.barrier, clock)
    np.testing.assert_array_equal(taken, [[100, 100, 100], [300, 300, 300]])
    calls = [index for index, entry in enumerate(clock.log) if entry in ("ours", "mpi")]
    assert len(calls) == 2 * 4
    for index in calls:
        assert clock.log[index - 1] == "barrier"
        assert clock.log[index - 2].startswith(f"rewrite {clock.log[index]} ")


def test_contenders_take_turns_and_the_first_turn_rotates() -> None:
    clock = Clock()
    measure_ns([clock.trial("ours", 1), clock.trial("mpi", 1)], 4, 0, clock.barrier, clock)
    order = [entry for entry in clock.log if entry in ("ours", "mpi")]
    assert order == ["ours", "mpi", "mpi", "ours", "ours", "mpi", "mpi", "ours"]


def test_the_last_result_is_verified() -> None:
    clock = Clock()
    measure_ns([clock.trial("ours", 1)], 3, 2, clock.barrier, clock)
    assert [entry for entry in clock.log if entry.startswith("verify")] == ["verify ours 2"]


def test_the_slowest_rank_counts_in_each_iteration() -> None:
    by_rank = np.array([[[1000.0, 2000.0, 9000.0]], [[4000.0, 1000.0, 1000.0]]])
    np.testing.assert_array_equal(slowest_us(by_rank), [[4.0], [2.0]])


def test_the_clock_itself_is_subtracted() -> None:
    ticks = iter(range(0, 10**6, 7))
    assert timer_overhead_ns(lambda: next(ticks), 11) == 7
    ticks = iter(range(0, 10**6, 7))
    taken = measure_ns([Trial("idle", lambda k: None, lambda: None)], 2, 0, lambda: None, lambda: next(ticks))
    np.testing.assert_array_equal(taken, [[1, 1]])


@pytest.mark.parametrize(("low", "high"), [(8, 1 << 20), (1 << 20, 64 << 20)])
def test_short_calls_are_repeated_more(low: int, high: int) -> None:
    assert iterations_for(low) > iterations_for(high) >= 20
