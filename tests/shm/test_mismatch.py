"""Ranks that disagree on a call: MismatchError everywhere, with both values and the odd ranks, and nothing written."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multiring as mr
from multiring.collectives.communicator import Communicator
from tests.shm.helpers import array, caught, join
from tests.support.ranks import results, run_ranks

pytestmark = pytest.mark.shm

N = 40  # Divides by all sizes here.
Do = Callable[[Communicator, Any, Any], Any]


def doing(name: str, **options: Any) -> Do:
    return lambda c, x, out: getattr(c, name)(x, out, **options)


def body(rank: int, exchange: Any, size: int, odd: list[int], usual: Do, other: Do, setting: dict[str, Any]) -> Any:
    comm = join(rank, exchange, size)
    symmetric = setting.get("symmetric", False)
    mine = setting.get("theirs", {}) if rank in odd else {}
    count, dtype = mine.get("count", setting.get("count", N)), mine.get("dtype", "float32")
    x, out = (array(comm, count, dtype, symmetric, v) for v in (rank + 1, -7))
    before = x.tobytes(), out.tobytes()
    comm.barrier()
    do = other if rank in odd else usual
    first = caught(lambda: do(comm, x, out))
    again = caught(lambda: do(comm, x, out))
    third = caught(comm.barrier)
    untouched = (x.tobytes(), out.tobytes()) == before
    comm.close()
    return first, again, third, untouched, comm.closed


def all_mismatch(size: int, odd: list[int], usual: Do, other: Do, *texts: str, **setting: Any) -> None:
    for first, again, third, untouched, closed in results(run_ranks(size, body, size, odd, usual, other, setting)):
        assert first[0] == "MismatchError"
        for text in texts:
            assert text in first[1]
        assert "nothing was written" in first[1]
        assert untouched
        assert again[:2] == third[:2] == first[:2]
        assert closed


SUM = doing("all_reduce")
WRONG: dict[str, tuple[Do, Do, dict[str, Any], list[str]]] = {
    "count": (SUM, SUM, {"theirs": {"count": N - 1}}, ["count 39 against 40"]),
    "dtype": (SUM, SUM, {"theirs": {"dtype": "int32"}}, ["dtype int32 against float32"]),
    "op": (SUM, doing("all_reduce", op="max"), {}, ["op max against sum"]),
    "root": (
        lambda c, x, out: c.broadcast(x, 0),
        lambda c, x, out: c.broadcast(x, 2),
        {},
        ["root 2 against 0"],
    ),
    "order": (SUM, doing("all_reduce", order="rank"), {}, ["order rank against None"]),
    "wire": (SUM, doing("all_reduce", wire="bfloat16"), {}, ["wire bfloat16 against float32"]),
    "accumulate": (SUM, doing("all_reduce", accumulate="float64"), {}, ["accumulate float64 against float32"]),
    "algorithm": (
        doing("all_reduce", algorithm="direct"),
        doing("all_reduce", algorithm="ring"),
        {},
        ["algorithm ring against direct"],
    ),
    "collective": (SUM, lambda c, x, out: c.broadcast(x, 0), {}, ["collective broadcast against all_reduce"]),
    "barrier": (SUM, lambda c, x, out: c.barrier(), {}, ["barrier(", "all_reduce(40 x float32, op='sum')"]),
    "counts": (
        lambda c, x, out: c.reduce_scatter_v(x, [20, 10, 10], out[: [20, 10, 10][c.rank]]),
        lambda c, x, out: c.reduce_scatter_v(x, [10, 20, 10], out[:20]),
        {},
        ["the counts of each rank"],
    ),
    "premul_sum": (
        doing("all_reduce", op=mr.premul_sum(2.0)),
        doing("all_reduce", op=mr.premul_sum(3.0)),
        {},
        ["differing in"],
    ),
}


@pytest.mark.parametrize("symmetric", [False, True], ids=["ordinary", "symmetric"])
@pytest.mark.parametrize("what", WRONG)
def test_rank_1_differs(what: str, symmetric: bool) -> None:
    usual, other, setting, texts = WRONG[what]
    all_mismatch(3, [1], usual, other, "rank 1: ", "ranks 0 and 2 have", *texts, symmetric=symmetric, **setting)


def test_several_ranks_differ() -> None:
    all_mismatch(5, [1, 3], SUM, doing("all_reduce", op="max"), "ranks 1 and 3: ", "ranks 0, 2 and 4 have")


@pytest.mark.parametrize(("counts"), [(409_600, 409_598), (1, 2), (100, 200)], ids=str)
@pytest.mark.parametrize("algorithm", ["direct", "ring", "one_shot"])
def test_counts_that_match_by_luck_elsewhere(counts: tuple[int, int], algorithm: str) -> None:
    """As many slices, or as many steps, on both ranks: the counts are compared all the same (NCCL #1417)."""
    do = doing("all_reduce", algorithm=algorithm)
    all_mismatch(2, [1], do, do, f"count {counts[1]} against {counts[0]}", count=counts[0], theirs={"count": counts[1]})


def test_calls_in_another_order() -> None:
    """Equal sizes, all_reduce and broadcast swapped on rank 0 (Horovod #100)."""

    def swapped(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 3)
        x = np.full(N, rank, np.float32)
        calls = [lambda: comm.all_reduce(x), lambda: comm.broadcast(x, 1)]
        found = [caught(call) for call in (calls if rank else calls[::-1])]
        return found, x.tobytes() == np.full(N, rank, np.float32).tobytes()

    for rank, (found, untouched) in enumerate(results(run_ranks(3, swapped))):
        assert untouched, rank
        assert [f[0] for f in found] == ["MismatchError"] * 2
        assert "rank 0: broadcast(40 x float32, root=1) where ranks 1 and 2 have all_reduce(40" in found[0][1]
        assert "call 1 of the communicator" in found[0][1]


def test_a_step_more_on_one_rank_is_named_with_its_call() -> None:
    """Rank 0 saves a checkpoint by a broadcast that the others do not make (SpeechBrain #2401)."""

    def one_more(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 2)
        x = np.ones(N, np.float32)
        for _ in range(485):
            comm.all_reduce(x)
        if rank == 0:
            return caught(lambda: comm.broadcast(x, 0))
        return caught(lambda: comm.all_reduce(x))

    for found in results(run_ranks(2, one_more)):
        assert found[0] == "MismatchError"
        assert "call 486" in found[1]
        assert "broadcast(40 x float32, root=0)" in found[1]
        assert "all_reduce(40 x float32, op='sum')" in found[1]


# --- send and recv ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "wanted", "texts"),
    [
        ((100, "float32"), (90, "float32"), ["400 bytes of float32", "360 bytes of float32"]),
        ((100, "float32"), (100, "int32"), ["400 bytes of float32", "400 bytes of int32"]),
        ((100_000, "float32"), (100_001, "float32"), ["400000 bytes", "400004 bytes"]),
    ],
    ids=["count", "dtype", "many-boxes"],
)
def test_send_and_recv_that_differ(sent: tuple[int, str], wanted: tuple[int, str], texts: list[str]) -> None:
    def pair(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 3)
        x = np.full(*([sent, wanted, wanted][rank][:1]), 5, dtype=[sent, wanted, wanted][rank][1])
        if rank == 0:
            found = caught(lambda: comm.send(x, 1))
        elif rank == 1:
            found = caught(lambda: comm.recv(x, 0))
        else:
            found = ("", "", 0.0)
        return found, caught(comm.barrier), bool((x == 5).all())

    answers = results(run_ranks(3, pair))
    for rank, (found, later, untouched) in enumerate(answers):
        assert untouched
        text = found[1] if rank == 1 else later[1]
        assert later[0] == "MismatchError", later
        assert "rank 1 got another message from rank 0" in text
        for part in texts:
            assert part in text
    assert answers[1][0][0] == "MismatchError"


# --- refusals --------------------------------------------------------------------------------------------------------


def refusal(rank: int, exchange: Any, refusing: list[int], size: int) -> Any:
    comm = join(rank, exchange, size)
    x, out = np.full(N, rank, np.float32), np.full(N, -7, np.float32)
    comm.barrier()
    first = caught(lambda: comm.all_reduce(x, out[:10] if rank in refusing else out))
    second = caught(lambda: comm.all_reduce(x, out))
    return first, second, float(out[0]), bool((x == rank).all())


def test_one_rank_refuses() -> None:
    answers = results(run_ranks(3, refusal, [1], 3))
    for rank, (first, second, value, untouched) in enumerate(answers):
        assert (value, untouched) == (-7.0, True)
        if rank == 1:
            assert first[0] == "ArgumentError"
            assert "got shape (10,), wanted (40,)" in first[1]
            assert first[2] < 1.0
        else:
            assert first[:2] == second[:2]
        assert second[0] == "MismatchError"
        assert "rank 1: a call that was refused for a bad argument where ranks 0 and 2 have all_reduce" in second[1]


def test_the_refusal_waits_for_all_calls_before_it_names_the_odd_rank() -> None:
    """Rank 2 is last: its line of an earlier call is not its answer to the call that rank 1 refused."""

    def late(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 3)
        x, out = np.full(N, rank, np.float32), np.full(N, -7, np.float32)
        comm.broadcast(x, 0)
        comm.broadcast(x, 0)
        if rank == 1:
            caught(lambda: comm.all_reduce(x, out[:10]))
        if rank == 2:
            time.sleep(0.3)
        return caught(lambda: comm.all_reduce(x, out))

    for found in results(run_ranks(3, late)):
        assert found[0] == "MismatchError"
        assert "ranks 0 and 2 have all_reduce(40 x float32, op='sum')" in found[1]
        assert "broadcast" not in found[1]


def test_all_ranks_refuse_and_go_on() -> None:
    for first, second, value, _ in results(run_ranks(3, refusal, [0, 1, 2], 3)):
        assert first[0] == "ArgumentError"
        assert second[0] == ""
        assert value == 3.0


def test_refusing_many_times_in_step_is_legal() -> None:
    def often(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 3)
        x = np.ones(8, np.float32)
        for step in range(50):
            for _ in range(1 + step % 3):
                assert caught(lambda: comm.all_reduce(x, op="nonsense"))[0] == "ArgumentError"
            comm.all_reduce(x, op="max")
        comm.close()
        return float(x.sum())

    assert results(run_ranks(3, often)) == [8.0] * 3


def test_a_rank_that_refuses_and_leaves_is_named_to_a_late_peer() -> None:
    """Its traceback ends it; a peer that comes to the call seconds later hears of the refusal, not of a timeout."""

    def leaves(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 2)
        x = np.ones(N, np.float32)
        if rank == 1:
            found = caught(lambda: comm.all_reduce(x, x[1:]))
            comm.close()
            return found
        time.sleep(3.0)
        return caught(lambda: comm.all_reduce(x))

    late, left = results(run_ranks(2, leaves))
    assert left[0] == "ArgumentError"
    assert late[0] == "MismatchError"
    assert "rank 1: a call that was refused" in late[1] or "has a call that was refused" in late[1]
