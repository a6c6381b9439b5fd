"""Which ranks are on which node, and what happens where nodes cannot reach each other."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiring.collectives.executor import Executor
from multiring.collectives.nodes import Nodes
from multiring.errors import LaunchError


@given(st.lists(st.integers(0, 4), min_size=1, max_size=9))
def test_ranks_with_equal_identities_are_one_node(identities: list[int]) -> None:
    nodes = Nodes.of(identities, [f"host of {i}" for i in identities])
    assert sorted(set(nodes.node_of)) == list(range(nodes.count)) == list(range(len(set(identities))))
    firsts = [nodes.node_of.index(node) for node in range(nodes.count)]
    assert firsts == sorted(firsts)
    for rank, identity in enumerate(identities):
        members = nodes.members(rank)
        assert members == [r for r, other in enumerate(identities) if other == identity]
        others = nodes.others(rank)
        assert sorted([*members, *(r for ranks in others for r in ranks)]) == list(range(len(identities)))
        assert all(len({identities[r] for r in ranks}) == 1 for ranks in others)


def test_some_of_the_ranks_in_another_order() -> None:
    nodes = Nodes.of("aabbc", ["h1", "h1", "h2", "h2", "h3"]).of_some([4, 2, 0])
    assert nodes == Nodes((0, 1, 2), ("h3", "h2", "h1"))


def test_host_names_decide_nothing() -> None:
    assert Nodes.of([("boot", "x")] * 2, ["one", "other"]).count == 1
    assert Nodes.of([("boot", "x"), ("MULTIRING_HOST_ID", "x")], ["same", "same"]).count == 2


def test_several_nodes_without_a_network() -> None:
    nodes = Nodes.of("ab", ["h1", "h2"])
    with pytest.raises(LaunchError, match="the 2 ranks are on 2 nodes, and no network joins them"):
        Executor(0, 2, lambda payload: [payload, payload], nodes=nodes)


@pytest.mark.shm
def test_several_nodes_without_mpi_are_refused() -> None:
    program = """
import os
os.environ["MULTIRING_HOST_ID"] = str(os.getpid())
import multiring as mr
mr.init()
"""
    done = subprocess.run(
        [sys.executable, "-m", "multiring", "launch", "-n", "2", "--", sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "the 2 ranks are on 2 nodes" in done.stderr
    assert "were started without MPI; between nodes multiring needs it: start the program with mpiexec" in done.stderr
