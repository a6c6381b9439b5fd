"""The sweep with contenders that are right, wrong by one element, or late to change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from multiring.bench.cases import Case
from multiring.bench.rows import Row, count_errors
from multiring.bench.sweep import Settings, Sweep, needed_bytes
from multiring.bench.world import World
from multiring.kernels.dtypes import DTYPES
from multiring.kernels.operations import OPERATIONS


class Alone:
    """A communicator of one rank."""

    rank = 0
    size = 1

    def all_gather(self, mine: Any, rows: Any) -> None:
        rows[...] = mine

    def barrier(self) -> None:
        pass


class Copying:
    """What every collective is for one rank, with a fault."""

    def __init__(self, name: str = "multiring", fault: Callable[[Any, int], None] | None = None) -> None:
        self.name = name
        self.fault = fault
        self.calls = 0

    def bind(self, case: Case, send: Any, receive: Any, in_place: bool) -> Callable[[], object]:
        def call() -> None:
            self.calls += 1
            if receive is not send:
                receive[...] = send
            if self.fault is not None:
                self.fault(receive, self.calls)

        return call

    def how(self, case: Case, in_place: bool) -> str:
        return "a copy"


def settings(collective: str = "all_reduce", checks: int = 1, nbytes: int = 4096) -> Settings:
    operations = (("sum", OPERATIONS["sum"]),) if collective == "all_reduce" else ()
    return Settings(collective, (nbytes,), (DTYPES["float32"],), operations, (), iterations=3, warmup=1, checks=checks)


def measured(ours: Copying, peers: tuple[Copying, ...] = (), **options: Any) -> list[Row]:
    return list(Sweep(World(Alone()), settings(**options), [ours], peers).rows())


def test_a_right_contender_is_right() -> None:
    (row,) = measured(Copying(), (Copying("mpi"),))
    assert row.out_of_place is not None
    assert row.in_place is not None
    assert (row.out_of_place.n_wrong, row.in_place.n_wrong) == (0, 0)
    assert row.out_of_place.peers["mpi"].ratio is not None
    assert row.out_of_place.peers["mpi"].how == "a copy"
    assert row.iterations == 3


def spoil(index: int, call: int) -> Callable[[Any, int], None]:
    def fault(receive: Any, number: int) -> None:
        if number == call:
            receive[index] += 1

    return fault


def test_b122_one_wrong_element_is_one_wrong_element(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = measured(Copying(fault=spoil(17, call=1)))
    assert row.out_of_place is not None
    assert row.out_of_place.n_wrong == 1
    assert count_errors([row]) == 1
    told = capsys.readouterr().err
    assert "rank 0: multiring all_reduce out of place, 4096 bytes of float32, op sum: 1 of 1024 elements" in told
    assert "the first at index 17: got " in told


def test_b124_the_last_element_of_any_size_is_checked() -> None:
    for count in (1, 2, 1023, 1024, 1025):
        (row,) = measured(Copying(fault=spoil(-1, call=1)), nbytes=4 * count)
        assert row.out_of_place is not None
        assert row.out_of_place.n_wrong == 1


def test_the_timed_calls_are_checked_too() -> None:
    # Of each half: one check, one warm-up, three timed calls; the last of all is the tenth.
    ours = Copying(fault=spoil(5, call=10))
    (row,) = measured(ours)
    assert ours.calls == 10
    assert count_errors([row]) == 1


def test_an_output_that_is_not_written_is_wrong() -> None:
    class Idle(Copying):
        def bind(self, case: Case, send: Any, receive: Any, in_place: bool) -> Callable[[], object]:
            return lambda: None

    (row,) = measured(Idle())
    assert row.out_of_place is not None
    assert row.out_of_place.n_wrong == 2 * 1024


def test_an_input_that_is_changed_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    class Greedy(Copying):
        def bind(self, case: Case, send: Any, receive: Any, in_place: bool) -> Callable[[], object]:
            def call() -> None:
                receive[...] = send
                if not in_place:
                    send[3] = -1

            return call

    (row,) = measured(Greedy())
    assert row.out_of_place is not None
    assert row.out_of_place.n_wrong == 1
    assert "of the input (which must not change) are wrong" in capsys.readouterr().err


def test_a_wrong_peer_is_not_our_error() -> None:
    (row,) = measured(Copying(), (Copying("mpi", fault=spoil(0, call=1)),))
    assert count_errors([row]) == 0
    assert row.out_of_place is not None
    assert row.out_of_place.peers["mpi"].n_wrong == 1


def test_unchecked_is_not_right() -> None:
    (row,) = measured(Copying(fault=spoil(0, call=1)), checks=0)
    assert row.out_of_place is not None
    assert row.out_of_place.n_wrong is None


def test_what_has_no_call_in_place_has_no_half() -> None:
    (row,) = measured(Copying(), collective="all_to_all")
    assert row.out_of_place is not None
    assert row.in_place is None


def test_undefined_combinations_are_left_out() -> None:
    operations = tuple(OPERATIONS.items())
    asked = Settings("all_reduce", (8, 16), (DTYPES["int32"], DTYPES["float32"]), operations)
    combinations = {(case.dtype.name, case.operation_name) for case in asked.cases(2)}
    assert ("int32", "avg") not in combinations
    assert ("float32", "bxor") not in combinations
    assert len(list(asked.cases(2))) == 2 * len(combinations)


def test_needed_memory_counts_every_buffer() -> None:
    asked = settings(nbytes=1 << 20)
    assert needed_bytes(asked, 2) == 4 << 20
    assert needed_bytes(asked, 2, ("mpi",)) == 6 << 20


def test_zero_bytes_are_measured() -> None:
    (row,) = measured(Copying(), nbytes=0)
    assert row.case.size_bytes == 0
    assert row.out_of_place is not None
    assert row.out_of_place.alg_bw_gbs == 0
    assert np.isfinite(row.out_of_place.time_us)
