"""What must cross between nodes, by closed forms and by counting; and the exchange itself under mpiexec."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiring.bench.cases import COLLECTIVES, make_case
from multiring.bench.wire_limit import node_flows, rank_flows, wire_limit_bytes
from multiring.kernels.dtypes import DTYPES

MIB = 1 << 20


@pytest.mark.parametrize(
    ("collective", "wanted_mib"),
    # 12 MiB on 3 nodes of 2 ranks.
    [
        ("all_reduce", 16), ("reduce_scatter", 8), ("all_gather", 8), ("broadcast", 12), ("reduce", 12),
        ("gather", 8), ("scatter", 8), ("all_to_all", 16), ("sendrecv", 12),
    ],
)  # fmt: skip
def test_bytes_of_the_busiest_of_3_nodes(collective: str, wanted_mib: int) -> None:
    case = make_case(collective, 6, 12 * MIB, DTYPES["float32"], root=3 if COLLECTIVES[collective].rooted else -1)
    assert wire_limit_bytes(case, (0, 0, 1, 1, 2, 2)) == wanted_mib * MIB


def test_bytes_are_those_of_the_type_that_travels() -> None:
    plain = make_case("all_reduce", 4, 4 * MIB, DTYPES["float32"])
    narrow = make_case("all_reduce", 4, 4 * MIB, DTYPES["float32"], wire=DTYPES["bfloat16"])
    assert [wire_limit_bytes(case, (0, 0, 1, 1)) for case in (plain, narrow)] == [4 * MIB, 2 * MIB]


def test_neighbours_that_are_all_on_other_nodes_send_all() -> None:
    case = make_case("sendrecv", 4, MIB, DTYPES["float32"])
    assert wire_limit_bytes(case, (0, 0, 1, 1)) == MIB
    assert wire_limit_bytes(case, (0, 1, 0, 1)) == 2 * MIB


def test_a_chain_from_the_root_and_to_it() -> None:
    nodes = (0, 0, 1, 1, 2, 2)
    to, of = (make_case(name, 6, 400, DTYPES["float32"], root=5) for name in ("broadcast", "reduce"))
    assert node_flows(to, nodes) == [(2, 0, 400), (0, 1, 400)]
    assert node_flows(of, nodes) == [(0, 2, 400), (1, 0, 400)]


@st.composite
def placed(draw: st.DrawFn) -> tuple[int, ...]:
    n_nodes = draw(st.integers(1, 4))
    more = draw(st.lists(st.integers(0, n_nodes - 1), max_size=6))
    return tuple(draw(st.permutations([*range(n_nodes), *more])))


@given(st.sampled_from(sorted(COLLECTIVES)), placed(), st.integers(0, 5000))
def test_what_a_node_must_get_reaches_it(collective: str, node_of: tuple[int, ...], nbytes: int) -> None:
    n_ranks, n_nodes, root = len(node_of), max(node_of) + 1, len(node_of) // 2
    case = make_case(collective, n_ranks, nbytes, DTYPES["int16"], root=root if COLLECTIVES[collective].rooted else -1)
    part, flows = case.count * 2, node_flows(case, node_of)
    for node in range(n_nodes):
        own = [rank for rank in range(n_ranks) if node_of[rank] == node]
        got = sum(flow[2] for flow in flows if flow[1] == node)
        others = n_ranks - len(own)
        wanted = {
            "all_reduce": -(-2 * (n_nodes - 1) * part // n_nodes),
            "broadcast": part * (node != node_of[root]),
            "reduce": part * (n_nodes > 1 and (node + 1) % n_nodes != node_of[root]),  # all but the chain's far end
            "all_gather": others * part,
            "gather": others * part * (node == node_of[root]),
            "scatter": len(own) * part * (node != node_of[root]),
            "all_to_all": len(own) * others * part,
            "sendrecv": part * sum(node_of[rank - 1] != node for rank in own),
        }.get(collective, 0)
        if collective == "reduce_scatter":  # what arrives are partial sums: those that others pass on
            wanted = (n_ranks - node_of.count((node - 1) % n_nodes)) * part * (n_nodes > 1)
        assert got == wanted
    assert all(a != b and n > 0 for a, b, n in flows)


@given(st.sampled_from(sorted(COLLECTIVES)), placed(), st.integers(0, 5000))
def test_ranks_divide_what_their_nodes_send(collective: str, node_of: tuple[int, ...], nbytes: int) -> None:
    root = 0 if COLLECTIVES[collective].rooted else -1
    flows = node_flows(make_case(collective, len(node_of), nbytes, DTYPES["int16"], root=root), node_of)
    divided = rank_flows(flows, node_of)
    for a, b, wanted in flows:
        shares = [n for source, target, n in divided if (node_of[source], node_of[target]) == (a, b)]
        assert sum(shares) == wanted
        assert max(shares) - min(shares) <= 1
    assert len({(source, target) for source, target, _ in divided}) == len(divided)


@pytest.mark.mpi
@pytest.mark.parametrize("node_of", ["0011", "0102", "0123", "012"])
def test_the_exchange_moves_these_bytes(mpi_run: Callable[..., subprocess.CompletedProcess[str]], node_of: str) -> None:
    done = mpi_run(len(node_of), Path(__file__).with_name("mpi_nodes.py").read_text(), node_of)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == [f"{rank}:{len(COLLECTIVES)}" for rank in range(len(node_of))]
