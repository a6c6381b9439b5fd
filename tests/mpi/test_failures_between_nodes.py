"""Ranks of several nodes that disagree, leave, hang or are killed: every survivor is told, soon, and the job ends."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.mpi

Run = Callable[..., subprocess.CompletedProcess[str]]
PROGRAM = (Path(__file__).parent / "failures_between_nodes.py").read_text()
LAYOUTS = ["0011", "0001", "0123"]

DISAGREE = {
    "counts_differ": r"\(count (200 against 100|100 against 200)\)",
    "large_counts_differ": r"\(count (2097152 against 1048576|1048576 against 2097152)\)",
    "collectives_differ": r"\(collective (broadcast against all_reduce|all_reduce against broadcast), op ",
    "ops_differ": r"\(op (max against sum|sum against max)\)",
    "algorithms_differ": r"\(algorithm (direct against one_shot|one_shot against direct)\)",
    "one_call_more": r"(their call 1 of the communicator against call 2|broadcast|their call 2)",
    "messages_differ": r"rank 3 got another message from rank 0 than it expected: 400 bytes of float32 came,",
    "large_messages_differ": r"4194304 bytes of float32 came, and rank 3 waits for rank 0 in send or recv of 4194304",
}
ELSE = {
    "leaves_early": ("CommunicatorClosed", r"rank 3 closed the communicator or exited|it closed|was closed here"),
    "aborted": ("CommunicatorClosed", r"rank 0 aborted the communicator: had enough"),
    "never_comes": ("CollectiveTimeout", r"did not come within the time limit of 2 s: rank \d waits "),
    "message_never_comes": (
        "CollectiveTimeout",
        r"rank 0 did not come within the time limit of 2 s: rank (3 waits for rank 0 in send or recv|\d waits)",
    ),
}


def answers(done: subprocess.CompletedProcess[str], scenario: str) -> list[tuple[int, str, str]]:
    """Return (rank, kind, text) of what each rank met in a scenario."""
    found = []
    for line in done.stdout.split("\n"):
        name, *rest = line.split("|", 3)
        if name == scenario:
            assert rest[1] == "soon", line
            kind, _, text = rest[2].partition(" ")
            found.append((int(rest[0]), kind, text))
    return found


def check(
    done: subprocess.CompletedProcess[str],
    scenario: str,
    ranks: set[int],
    kind: str,
    pattern: str,
    excused: set[int] | None = None,
) -> None:
    found = answers(done, scenario)
    assert sorted(rank for rank, _, _ in found) == sorted([*ranks, *ranks]), (
        scenario,
        done.stdout,
        done.stderr[-2000:],
    )
    for rank in excused or ():
        if (rank, "none", "") in found:
            found.remove((rank, "none", ""))
    for rank, got, text in found:
        assert got == kind, (scenario, rank, got, text)
        assert re.search(pattern, text), (scenario, rank, text)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks_that_disagree(mpi_run: Run, layout: str) -> None:
    done = mpi_run(4, PROGRAM, layout, *DISAGREE)
    for scenario, pattern in DISAGREE.items():
        check(done, scenario, {0, 1, 2, 3}, "MismatchError", pattern)


def test_a_node_that_disagrees_inside_tells_the_others(mpi_run: Run) -> None:
    done = mpi_run(4, PROGRAM, "0011", "a_node_disagrees_inside", "refused_on_one_rank")
    check(done, "a_node_disagrees_inside", {0, 1, 2, 3}, "MismatchError", r"\(count 100 against 101\)")
    kinds = {(rank, kind) for rank, kind, _ in answers(done, "refused_on_one_rank")}
    assert kinds == {(0, "ArgumentError"), *((rank, "MismatchError") for rank in range(4))}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks_that_leave_abort_or_stay_away(mpi_run: Run, layout: str) -> None:
    done = mpi_run(4, PROGRAM, layout, *ELSE)
    for scenario, (kind, pattern) in ELSE.items():
        # Who comes late may find all it needs in the call that failed on the others; its next call fails too.
        excused = {3} if scenario == "never_comes" else set()
        check(done, scenario, {0, 1, 2, 3}, kind, pattern, excused)


@pytest.mark.parametrize(
    ("layout", "scenario"),
    [
        ("0011", "killed_in_a_call"),
        ("0123", "killed_in_a_call"),
        ("0001", "killed_between_calls"),
        ("0011", "killed_while_all_others_wait_elsewhere"),
    ],
)
def test_a_rank_that_is_killed(mpi_run: Run, layout: str, scenario: str) -> None:
    done = mpi_run(4, PROGRAM, layout, scenario, leave_survivors=True, timeout_s=60)
    found = answers(done, scenario)
    assert sorted(rank for rank, _, _ in found) == [0, 0, 1, 1, 2, 2], (done.stdout, done.stderr[-2000:])
    check(
        done,
        scenario,
        {0, 1, 2},
        "PeerLostError",
        r"rank 3 on \S+ ended (or cannot be reached over MPI )?while it was needed",
    )
