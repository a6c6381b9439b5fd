"""Time limits are finite seconds above 0 everywhere, and whatever goes wrong before a call is published as refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multiring as mr
from multiring.collectives import initialise
from multiring.errors import ArgumentError, ArgumentTypeError
from tests.collectives import fake_executor
from tests.collectives.cases import caught, same
from tests.collectives.conftest import OnRanks

SECONDS = "wanted a finite number of seconds above 0 and at most 1e9"
WRONG: dict[str, tuple[Any, str, str]] = {
    "inf": (math.inf, "ArgumentError", "got inf"),
    "minus inf": (-math.inf, "ArgumentError", "got -inf"),
    "nan": (math.nan, "ArgumentError", "got nan"),
    "numpy's nan": (np.float32("nan"), "ArgumentError", "got np.float32(nan)"),
    "1e300": (1e300, "ArgumentError", "got 1e+300"),
    "just above": (math.nextafter(1e9, math.inf), "ArgumentError", "got 1000000000.0000001"),
    "huge": (10**400, "ArgumentError", "got a whole number of 1329 bits"),
    "unprintable": (10**5000, "ArgumentError", "got a whole number of 16610 bits"),
    "zero": (0, "ArgumentError", "got 0"),
    "below zero": (-1.5, "ArgumentError", "got -1.5"),
    "bool": (True, "ArgumentError", "got True"),
    "numpy's bool": (np.True_, "ArgumentError", "got np.True_"),
    "text": ("5", "ArgumentTypeError", "got '5'"),
    "bytes": (b"5", "ArgumentTypeError", "got b'5'"),
    "list": ([1.0], "ArgumentTypeError", "got [1.0]"),
}
Call = Callable[..., Any]


def ones(n: int = 4) -> Any:
    return np.ones(n, np.float32)


COLLECTIVES: dict[str, Call] = {
    "all_reduce": lambda c, **o: c.all_reduce(ones(), **o),
    "all_reduce out": lambda c, **o: c.all_reduce(ones(), ones(), **o),
    "all_reduce_many": lambda c, **o: c.all_reduce_many([ones(), ones(3)], **o),
    "all_reduce_many of none": lambda c, **o: c.all_reduce_many([], **o),
    "reduce": lambda c, **o: c.reduce(ones(), **o),
    "reduce_scatter": lambda c, **o: c.reduce_scatter(ones(), **o),
    "reduce_scatter_v": lambda c, **o: c.reduce_scatter_v(ones(), [1, 3], **o),
    "broadcast": lambda c, **o: c.broadcast(ones(), **o),
    "broadcast out": lambda c, **o: c.broadcast(ones(), 0, ones(), **o),
    "all_gather": lambda c, **o: c.all_gather(ones(), **o),
    "all_gather_v": lambda c, **o: c.all_gather_v(ones(), [4, 4], **o),
    "all_gather_v asking": lambda c, **o: c.all_gather_v(ones(), **o),
    "all_to_all": lambda c, **o: c.all_to_all(ones(), **o),
    "all_to_all_v": lambda c, **o: c.all_to_all_v(ones(), [[2, 2], [2, 2]], **o),
    "all_to_all_v asking": lambda c, **o: c.all_to_all_v(ones(), [2, 2], **o),
    "gather": lambda c, **o: c.gather(ones(), **o),
    "scatter": lambda c, **o: c.scatter(ones(), ones(2), **o),
    "barrier": lambda c, **o: c.barrier(**o),
}
BETWEEN_TWO: dict[str, Call] = {
    "send": lambda c, **o: c.send(ones(), 1 - c.rank, **o),
    "recv": lambda c, **o: c.recv(ones(), 1 - c.rank, **o),
    "send_recv": lambda c, **o: c.send_recv(ones(), 1 - c.rank, ones(), 1 - c.rank, **o),
}
PREPARED: dict[str, tuple[Any, ...]] = {
    "all_reduce": (ones(),),
    "all_reduce_many": ([ones()],),
    "reduce": (ones(),),
    "reduce_scatter": (ones(),),
    "broadcast": (ones(),),
    "all_gather": (ones(),),
    "all_to_all": (ones(),),
    "gather": (ones(),),
    "scatter": (ones(), ones(2)),
    "reduce_scatter_v": (ones(), [1, 3]),
    "all_gather_v": (ones(), [4, 4]),
    "all_to_all_v": (ones(), [[2, 2], [2, 2]]),
    "send_recv": (ones(), 0, ones(), 0),
    "barrier": (),
}
ANY_RANK: dict[str, Call] = COLLECTIVES | {"split": lambda c, **_: c.split(0), "dup": lambda c, **_: c.dup()}


def test_a_wrong_time_limit_is_refused_by_every_call(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> None:
        for name, call in (COLLECTIVES | BETWEEN_TWO).items():
            method = name.split()[0]
            for case, (value, kind, text) in WRONG.items():
                assert caught(call, comm, timeout=value) == (
                    kind,
                    f"{method}: timeout: {text}, {SECONDS}, or None",
                ), (name, case)
        for name, arguments in PREPARED.items():
            for case, (value, kind, text) in WRONG.items():
                got = caught(comm.prepare, name, *arguments, timeout=value)
                assert got[0] == kind, (name, case, got)
                assert f"timeout: {text}, {SECONDS}, or None" in got[1]
        same(comm.all_reduce(ones()), np.full(4, 2, np.float32))

    on_ranks(2, body)


def test_the_longest_and_the_shortest_kind_of_limit_is_taken(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> None:
        for call in COLLECTIVES.values():
            for value in (1e9, 10**9, np.float32(60), np.int64(60)):
                call(comm, timeout=value)

    on_ranks(2, body)


def test_true_is_refused_after_the_same_call_with_one_second() -> None:
    """True equals 1: a call that is remembered by its arguments must still tell them apart."""

    def body(comm: Any) -> None:
        y = ones()
        for _ in range(3):
            comm.all_reduce(y, timeout=1)
            comm.all_reduce(y, timeout=1.0)
        assert caught(comm.all_reduce, y, timeout=True)[0] == "ArgumentError"
        assert caught(comm.all_reduce, y, check=0)[0] == "ArgumentTypeError"

    fake_executor.on_ranks(1, body)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_wrong_limit_on_one_rank_meets_the_others_in_step(name: str) -> None:
    """Its next call must not be matched with the one that it refused."""
    call = COLLECTIVES[name]

    def body(comm: Any) -> tuple[str, ...]:
        first = caught(call, comm, timeout=math.inf if comm.rank == 0 else 60)[0]
        return first, caught(comm.all_reduce, ones())[0]

    silent = name == "all_reduce_many of none"  # nothing is sent where nothing is wrong
    got = fake_executor.on_ranks(2, lambda c: body(c) if not silent else ("ArgumentError", "MismatchError"))
    assert got[0] == ("ArgumentError", "MismatchError")
    assert silent or got[1] == ("MismatchError", "MismatchError")


def test_a_wrong_limit_on_one_of_real_ranks(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> tuple[str, ...]:
        y = ones()
        first = caught(comm.all_reduce, y, timeout=math.inf) if comm.rank == 0 else caught(comm.all_reduce, y)
        same(y, ones())
        return first[0], caught(comm.all_reduce, y)[0]

    assert on_ranks(2, body) == [("ArgumentError", "MismatchError"), ("MismatchError", "MismatchError")]


class Broken(BaseException):
    """Stands for whatever a builder may raise."""


@pytest.mark.parametrize("error", [OverflowError, MemoryError, KeyError, KeyboardInterrupt, Broken])
@pytest.mark.parametrize("name", [n for n in COLLECTIVES if n != "all_reduce_many of none"])
def test_whatever_is_raised_while_planning_is_published(name: str, error: type[BaseException]) -> None:
    call = COLLECTIVES[name]

    def body(comm: Any) -> tuple[str, ...]:
        if comm.rank == 1:
            return caught(call, comm)[0], caught(comm.all_reduce, ones())[0]
        executor = comm._engine.executor
        usual = executor.prepare

        def broken(*_: Any) -> Any:
            raise error("broken")

        executor.prepare = broken
        try:
            with pytest.raises(error, match="broken"):
                call(comm)
        finally:
            executor.prepare = usual
        return error.__name__, caught(comm.all_reduce, ones())[0]

    assert fake_executor.on_ranks(2, body) == [(error.__name__, "MismatchError"), ("MismatchError", "MismatchError")]


class Unreadable:
    """An argument whose every conversion fails."""

    def __index__(self) -> int:
        raise RuntimeError("unreadable")

    __float__ = __iter__ = __index__


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.all_reduce(ones(), timeout=Unreadable()),
        lambda c: c.broadcast(ones(), root=Unreadable()),
        lambda c: c.gather(ones(), count=Unreadable()),
        lambda c: c.gather(ones(), count=1 << 200),
        lambda c: c.reduce_scatter_v(ones(), Unreadable()),
        lambda c: c.all_gather_v(ones(), [Unreadable(), 4]),
        lambda c: c.all_to_all_v(ones(), [Unreadable(), 2]),
        lambda c: c.all_reduce_many(Unreadable()),
        lambda c: c.all_reduce(ones(), op=Unreadable()),
        lambda c: c.all_reduce(ones(), wire=Unreadable()),
        lambda c: c.all_reduce(ones(), build=1),
        lambda c: c.all_reduce(ones(), executor=1),
        lambda c: c.all_gather_v(ones(), [4, 4], build=1),
        lambda c: c.split(Unreadable()),
        lambda c: c.split(1 << 80),
        lambda c: c.split(0, -(1 << 63) - 1),
        lambda c: c.raw.all_reduce(0, 0, 4, "float32", []),
        lambda c: c.raw.all_reduce(0, 0, Unreadable(), "float32"),
        lambda c: c.raw.all_reduce(None, 0, 4, "float32"),
        lambda c: c.raw.all_reduce(0, 1 << 64, 4, "float32"),
        lambda c: c.raw.all_reduce(-1, 0, 4, "float32"),
        lambda c: c.raw.broadcast(0, 0, 4, {}),
    ],
)
def test_arguments_that_cannot_be_converted_are_published(call: Call) -> None:
    def body(comm: Any) -> tuple[bool, str]:
        first = caught(call, comm)[0] if comm.rank == 0 else caught(comm.all_reduce, ones())[0]
        return first == "MismatchError", caught(comm.all_reduce, ones())[0]

    assert fake_executor.on_ranks(2, body) == [(False, "MismatchError"), (True, "MismatchError")]


def test_a_refusal_that_is_caught_inside_a_group_keeps_its_place(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> str:
        def both() -> None:
            with comm.group():
                if comm.rank == 0:
                    assert caught(comm.all_reduce, ones(), timeout=math.nan)[0] == "ArgumentError"
                else:
                    comm.all_reduce(ones())
                comm.all_reduce(ones())

        return caught(both)[0]

    assert on_ranks(2, body) == ["MismatchError"] * 2


def test_a_split_inside_a_group_is_refused_in_its_place() -> None:
    def body(comm: Any) -> str:
        def both() -> None:
            with comm.group():
                if comm.rank == 0:
                    assert "split: called inside a group" in caught(comm.split, 0)[1]
                comm.all_reduce(ones())

        return caught(both)[0]

    assert fake_executor.on_ranks(2, body) == ["MismatchError"] * 2


@pytest.mark.parametrize("case", [c for c in WRONG if c != "zero"])
def test_waiting_for_a_work_takes_finite_seconds_too(case: str) -> None:
    value, kind, text = WRONG[case]

    def body(comm: Any) -> None:
        work = comm.all_reduce(ones(), async_op=True)
        wanted = (kind, f"wait: timeout: {text}, wanted a finite number of seconds from 0 to 1e9, or None")
        assert caught(work.wait, value) == wanted
        work.wait(1e9)
        assert caught(work.wait, value) == wanted
        same(work.wait(0), ones())

    fake_executor.on_ranks(1, body)


@pytest.mark.parametrize("case", WRONG)
def test_init_and_from_mpi_take_finite_seconds(case: str) -> None:
    value, kind, text = WRONG[case]
    assert caught(mr.init, timeout=value) == (kind, f"init: timeout: {text}, {SECONDS}")
    assert caught(mr.Communicator.from_mpi, 3, timeout=value) == (kind, f"from_mpi: timeout: {text}, {SECONDS}")


def test_init_takes_no_none() -> None:
    with pytest.raises(ArgumentTypeError, match=r"init: timeout: got None, wanted a finite number of seconds above 0"):
        mr.init(timeout=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["inf", "nan", "1e300", "-1", "0", "soon", "", "1000000001", "True"])
def test_the_environment_s_limit_is_checked_alike(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIRING_TIMEOUT_S", text)
    with pytest.raises(ArgumentError) as raised:
        initialise.init("host", 60.0)
    assert str(raised.value) == f"MULTIRING_TIMEOUT_S: got {text!r}, {SECONDS}"
