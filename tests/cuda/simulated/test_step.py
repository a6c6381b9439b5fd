"""Whole collectives by the step kernels, each rank's kernel in a simulator of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multiring.collectives.schedules.algorithms import algorithms_for
from multiring.kernels.cuda import records as r
from multiring.kernels.dtypes import DTYPES, numpy_dtype
from multiring.kernels.operations import OPERATIONS, premul_sum
from multiring.kernels.records import (
    ABORT_CULPRIT_SHIFT,
    ABORT_MISMATCH,
    ABORT_RANK_MASK,
    ABORT_REASON_SHIFT,
    ABORT_TIMEOUT,
)
from tests.cuda.step_harness import Ranks, request
from tests.kernels.span_harness import canonical, expected, same_bits

pytestmark = pytest.mark.sim

CASES = [
    # size, collective, dtype, operation, wire, algorithm, count, visible, blocks
    (2, "all_reduce", "float32", "sum", None, "ring", 300, (True, True), 2),
    (3, "all_reduce", "float32", "sum", None, "ring", 401, (False, False), 2),
    (3, "all_reduce", "bfloat16", "avg", None, "direct", 333, (True, True), 4),
    (2, "all_reduce", "float32", "sum", "bfloat16", "direct", 250, (True, True), 1),
    (2, "all_reduce", "float16", "max", None, "recursive_doubling", 130, (False, True), 2),
    (4, "all_reduce", "int32", "sum", None, "halving_doubling", 515, (True, False), 2),
    (3, "reduce_scatter", "float64", "sum", None, "ring", 100, (True, True), 2),
    (3, "all_gather", "uint8", None, None, "ring", 500, (True, True), 2),
    (3, "broadcast", "float32", None, None, "binomial", 257, (False, False), 2),
    (2, "all_to_all", "complex128", None, None, "direct", 12, (True, True), 1),
]


def integers(dtype: str, count: int, rank: int) -> Any:
    """Return integers in a dtype, so that any order of adding gives one exact answer."""
    drawn = np.random.default_rng(rank).integers(-8 if dtype != "uint8" else 0, 9, count)
    return drawn.astype(numpy_dtype(DTYPES[dtype]))


def answers(collective: str, xs: list[Any], operation: str | None, size: int) -> list[Any]:
    if collective == "all_reduce":
        return [expected(xs, str(operation))] * size
    if collective == "reduce_scatter":
        return list(np.array_split(expected(xs, str(operation)), size))
    if collective == "all_gather":
        return [np.concatenate(xs)] * size
    if collective == "broadcast":
        return [xs[0]] * size
    parts = [np.split(x, size) for x in xs]
    return [np.concatenate([part[rank] for part in parts]) for rank in range(size)]


def make(case: tuple[Any, ...]) -> tuple[Ranks, list[Any]]:
    size, collective, dtype, operation, wire, algorithm, count, visible, blocks = case
    assert algorithm in algorithms_for(collective)
    operation_ = OPERATIONS[operation] if operation else None
    ranks = Ranks(size, request(collective, dtype, operation_, wire), algorithm, count, blocks=blocks, visible=visible)
    xs = [integers(dtype, len(x), rank) for rank, x in enumerate(ranks.x)]
    for x, values in zip(ranks.x, xs, strict=True):
        x[:] = values
    return ranks, answers(collective, xs, operation, size)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case[:6])))
def test_fused(case: tuple[Any, ...]) -> None:
    ranks, wanted = make(case)
    ranks.run(lambda rank: ranks.fused(rank, times=3))
    for rank, out in enumerate(wanted):
        assert ranks.errors[rank][r.ERROR_RECORD] == 0
        same_bits(ranks.out[rank], out, f"rank {rank}")
        assert ranks.states[rank].reshape(ranks.blocks, -1)[:, r.STATE_EPOCH].tolist() == [3] * ranks.blocks


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case[:6])))
def test_stepped(case: tuple[Any, ...]) -> None:
    ranks, wanted = make(case)
    ranks.stepped()
    for rank, out in enumerate(wanted):
        same_bits(ranks.out[rank], out, f"rank {rank}")


def test_a_scale_on_the_way_in() -> None:
    ranks = Ranks(2, request("all_reduce", "float32", premul_sum(0.5)), "direct", 150)
    for rank in range(2):
        ranks.x[rank][:] = np.arange(150) + rank
    ranks.run(ranks.fused)
    for out in ranks.out:
        assert out.tolist() == [0.5 * i + 0.5 * (i + 1) for i in range(150)]


def test_every_rank_gets_the_same_bits() -> None:
    ranks = Ranks(3, request("all_reduce", "bfloat16", OPERATIONS["sum"]), "ring", 200)
    generator = np.random.default_rng(4)
    for x in ranks.x:
        x[:] = generator.normal(size=200).astype(x.dtype)
    ranks.run(ranks.fused)
    assert len({canonical(out).tobytes() for out in ranks.out}) == 1


def record(ranks: Ranks, rank: int) -> tuple[int, int]:
    """Return (reason, culprit) of a rank's error."""
    word = int(ranks.errors[rank][r.ERROR_RECORD])
    return word >> ABORT_REASON_SHIFT, (word >> ABORT_CULPRIT_SHIFT) & ABORT_RANK_MASK


def test_a_silent_peer_is_named_when_the_time_is_up() -> None:
    ranks = Ranks(3, request("all_reduce", "float32", OPERATIONS["sum"]), "ring", 100, limit_ms=300)
    ranks.run(lambda rank: None if rank == 1 else ranks.fused(rank))
    assert record(ranks, 0) == record(ranks, 2) == (ABORT_TIMEOUT, 1)
    assert (ranks.out[0].view(np.uint8) == 0xEE).all(), "something was written"


def test_unequal_calls_are_seen_by_every_rank() -> None:
    ranks = Ranks(3, request("all_reduce", "float32", OPERATIONS["sum"]), "ring", 100)
    ranks.calls[2][r.CALL_SIGNATURE] = 78
    ranks.run(ranks.fused)
    assert record(ranks, 0) == record(ranks, 1) == (ABORT_MISMATCH, 2)
    assert record(ranks, 2)[0] == ABORT_MISMATCH
    for out in ranks.out:
        assert (out.view(np.uint8) == 0xEE).all(), "something was written"


def test_the_abort_word_ends_a_wait() -> None:
    ranks = Ranks(2, request("all_reduce", "float32", OPERATIONS["sum"]), "ring", 100)
    ranks.aborts[0][0] = 1
    ranks.run(lambda rank: None if rank == 1 else ranks.fused(rank))
    assert ranks.errors[0][r.ERROR_RECORD] == 0
    assert ranks.states[0][r.STATE_EPOCH] == 0


def test_a_variant_that_was_not_lowered_is_an_error() -> None:
    ranks = Ranks(2, request("all_reduce", "float32", OPERATIONS["sum"]), "ring", 100)
    for call in ranks.calls:
        call[r.CALL_VARIANTS + 3 * r.VARIANT_WORDS] = 0
    ranks.run(ranks.fused)
    assert record(ranks, 0) == record(ranks, 1) == (r.REASON_NO_PROGRAM, 3)
