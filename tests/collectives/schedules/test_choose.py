"""The choice, its reason, and who may overrule it."""

from __future__ import annotations

import pytest

from multiring.collectives.schedules import (
    COLLECTIVES,
    Collective,
    choose,
    cost,
    is_rank_ordered,
    parse_algorithms,
    verify,
)
from multiring.collectives.schedules.explore import candidates, explore
from multiring.errors import ArgumentError, ScheduleError
from multiring.topology import Resource, Topology

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


def cluster(n_nodes: int, per_node: int) -> Topology:
    """Fast ports inside a node, one slow NIC for each node."""

    def route(src: int, dst: int) -> tuple[Resource, ...]:
        a, b = src // per_node, dst // per_node
        if a == b:
            return Resource(f"out {src}", 0.5, 200.0), Resource(f"in {dst}", 0.5, 200.0)
        return Resource(f"NIC {a} out", 5.0, 12.0), Resource(f"NIC {b} in", 5.0, 12.0)

    ranks = range(n_nodes * per_node)
    return Topology("cluster", tuple(map(str, ranks)), tuple(rank // per_node for rank in ranks), route)


@pytest.mark.parametrize("nbytes", [64, 1 << 16, 1 << 26])
@pytest.mark.parametrize("collective", ["all_reduce", "broadcast", "all_to_all"])
def test_on_a_topology_the_cheapest_is_chosen(collective: str, nbytes: int) -> None:
    topology, wanted = cluster(4, 4), Collective(collective)
    choice = choose(wanted, 16, nbytes, topology=topology)
    assert choice.predicted_us == pytest.approx(cost(choice.schedule, topology, nbytes).total_us)
    prices = [loser.predicted_us for loser in choice.alternatives if loser.predicted_us is not None]
    assert len(prices) == len(choice.alternatives)
    assert prices == sorted(prices)
    assert choice.predicted_us is not None
    assert choice.predicted_us <= prices[0]
    assert "us on cluster, the least" in choice.reason


def test_short_vectors_take_few_steps_and_long_ones_leave_the_node_little() -> None:
    topology = cluster(4, 4)
    short = choose(ALL_REDUCE, 16, 64, topology=topology)
    assert short.schedule.n_steps <= 4
    long = explore(ALL_REDUCE, topology, 1 << 26)
    by_name = {one.algorithm: one.predicted_us for one in long}
    # Nearest ranks first: the box that follows the machine, not the one across it.
    assert by_name["box:4x4"] < by_name["recursive_doubling"]
    assert by_name["box:2x8"] > by_name["box:4x4"]


def test_order_rank_holds_on_a_topology() -> None:
    topology = cluster(2, 3)
    choice = choose(ALL_REDUCE, 6, 1 << 22, topology=topology, order="rank")
    assert is_rank_ordered(choice.schedule)
    assert choose(ALL_REDUCE, 6, 1 << 22, topology=topology, algorithm="ring").predicted_us is not None


def test_an_automatic_box_is_the_cheapest_box() -> None:
    topology = cluster(4, 4)
    choice = choose(ALL_REDUCE, 16, 1 << 24, topology=topology, algorithm="box:auto")
    boxes = tuple(name for name in candidates(ALL_REDUCE, 16) if name.startswith("box:"))
    assert set(boxes) == {f"box:{shape}" for shape in
                          ("2x8", "4x4", "8x2", "2x2x4", "2x4x2", "4x2x2", "2x2x2x2")}  # fmt: skip
    assert choice.algorithm == explore(ALL_REDUCE, topology, 1 << 24, boxes)[0].algorithm
    staged = choose(ALL_REDUCE, 16, 1 << 24, topology=topology, environment_choice="all_reduce:box:auto:bruck")
    assert staged.algorithm.endswith(":bruck")
    assert choose(ALL_REDUCE, 7, 64, algorithm="box:auto").algorithm == "box:7"
    with pytest.raises(ArgumentError, match="'box' does not serve gather"):
        choose(Collective("gather"), 4, 64, algorithm="box:auto")


def test_a_topology_has_the_ranks_of_the_call() -> None:
    with pytest.raises(ArgumentError, match="choose: got 4 ranks on cluster of 6, wanted equal numbers"):
        choose(ALL_REDUCE, 4, 64, topology=cluster(2, 3))


def test_an_environment_for_all_ranks_is_passed_over_by_a_part_of_them() -> None:
    environment = "all_reduce:box:4x8"
    assert choose(ALL_REDUCE, 32, 1 << 20, environment_choice=environment).algorithm == "box:4x8"
    choice = choose(ALL_REDUCE, 4, 1 << 20, environment_choice=environment)
    assert choice.algorithm == "direct"
    assert "box:4x8 passed over: MULTIRING_ALGORITHM asks for it, but box 4x8: got 4 ranks, wanted 32" in choice.reason
    with pytest.raises(ScheduleError, match="box 4x8: got 4 ranks, wanted 32"):
        choose(ALL_REDUCE, 4, 1 << 20, algorithm="box:4x8")


def test_only_a_box_can_be_automatic() -> None:
    with pytest.raises(ArgumentError, match="'torus': box: got 'auto', wanted sizes such as 4x8x8"):
        choose(ALL_REDUCE, 4, 64, algorithm="torus:auto")


def test_the_reason_says_how_often_16_bit_sums_are_rounded() -> None:
    said = "sums are rounded to 16 bits up to 3 times on their way"
    assert said in choose(ALL_REDUCE, 4, 64, algorithm="ring", reduces16=True).reason
    assert said not in choose(ALL_REDUCE, 4, 64, algorithm="ring").reason
    assert "rounded" not in choose(ALL_REDUCE, 4, 64, algorithm="direct", reduces16=True).reason
    assert "rounded" not in choose(Collective("all_gather"), 4, 64, algorithm="ring", reduces16=True).reason
