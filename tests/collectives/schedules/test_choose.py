"""The choice, its reason, and who may overrule it."""

from __future__ import annotations

import pytest

from multiring.collectives.schedules import COLLECTIVES, Collective, choose, is_rank_ordered, parse_algorithms, verify
from multiring.errors import ArgumentError

ALL_REDUCE = Collective("all_reduce")


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("n_ranks", [1, 2, 5])
@pytest.mark.parametrize("nbytes", [0, 8192, 1 << 26])
def test_every_call_gets_a_schedule_that_is_right(collective: str, n_ranks: int, nbytes: int) -> None:
    choice = choose(Collective(collective), n_ranks, nbytes, order="rank", reduces16=True)
    verify(choice.schedule)
    assert is_rank_ordered(choice.schedule)
    assert choice.reason
    assert choice.algorithm not in [loser.algorithm for loser in choice.alternatives]


def test_short_sums_take_one_step_and_long_ones_two() -> None:
    short, long = choose(ALL_REDUCE, 4, 8192), choose(ALL_REDUCE, 4, 8193)
    assert (short.algorithm, short.schedule.n_steps) == ("one_shot", 1)
    assert (long.algorithm, long.schedule.n_steps) == ("direct", 2)
    assert short.reason.startswith("8192 bytes are at most 8192")
    assert long.reason.startswith("8193 bytes are more than 8192")
    assert choose(Collective("reduce", 3), 4, 8).algorithm == "one_shot"
    assert choose(Collective("all_gather"), 4, 8).algorithm == "direct"
    assert "ring" in [loser.algorithm for loser in long.alternatives]


def test_the_caller_wins_over_the_environment_and_that_over_the_rule() -> None:
    environment = "all_reduce:ring;all_gather:direct"
    assert choose(ALL_REDUCE, 4, 8, environment_choice=environment).algorithm == "ring"
    assert choose(ALL_REDUCE, 4, 8, environment_choice=environment).reason == "MULTIRING_ALGORITHM asks for it"
    assert choose(ALL_REDUCE, 4, 8, environment_choice=environment, algorithm="direct").algorithm == "direct"
    assert choose(Collective("broadcast"), 4, 8, environment_choice=environment).algorithm == "direct"


def test_order_rank_refuses_a_ring_and_passes_over_the_environment_s() -> None:
    with pytest.raises(ArgumentError, match=r"algorithm='ring' does not add 4 ranks in ascending rank, "
                                            r"as order='rank' wants: use one of direct, one_shot, chain"):  # fmt: skip
        choose(ALL_REDUCE, 4, 8, order="rank", algorithm="ring")
    choice = choose(ALL_REDUCE, 4, 8, order="rank", environment_choice="all_reduce:ring")
    assert choice.algorithm == "one_shot"
    assert "ring passed over: MULTIRING_ALGORITHM asks for it, but it does not add in ascending rank" in choice.reason
    assert choose(ALL_REDUCE, 4, 8, order="rank", algorithm="chain").algorithm == "chain"
    assert choose(Collective("all_gather"), 4, 8, order="rank", algorithm="ring").algorithm == "ring"


def test_a_schedule_is_built_once() -> None:
    assert choose(ALL_REDUCE, 4, 1 << 20).schedule is choose(ALL_REDUCE, 4, 1 << 22).schedule


def test_wrong_wishes_are_named() -> None:
    with pytest.raises(ArgumentError, match="order: got 'ring', wanted None or 'rank'"):
        choose(ALL_REDUCE, 4, 8, order="ring")
    with pytest.raises(
        ArgumentError, match="algorithm: 'nccl' is not known, wanted one that serves all_reduce: direct"
    ):
        choose(ALL_REDUCE, 4, 8, algorithm="nccl")


def test_the_environment_is_read_up_to_the_first_colon() -> None:
    assert parse_algorithms(" all_reduce: ring ;; all_gather:direct; ") == {
        "all_reduce": "ring",
        "all_gather": "direct",
    }
    assert parse_algorithms("") == {}
    # What follows the second colon belongs to the algorithm, which may refuse it.
    with pytest.raises(ArgumentError, match="algorithm 'ring': got '4x8' after its colon, wanted nothing"):
        parse_algorithms("all_reduce:ring:4x8")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ring", "entry 'ring', wanted COLLECTIVE:ALGORITHM such as all_reduce:ring"),
        ("all_reduce:", "entry 'all_reduce:', wanted COLLECTIVE:ALGORITHM"),
        ("allreduce:ring", "entry 'allreduce:ring' names collective 'allreduce', wanted one of barrier, all_reduce"),
        ("all_reduce:ring;all_reduce:direct", "all_reduce was given before, as 'ring'; give it once"),
        ("gather:ring", "entry 'gather:ring': algorithm: 'ring' does not serve gather, wanted one that serves gather"),
    ],
)
def test_a_wrong_environment_is_named(text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        parse_algorithms(text)
