"""The bench on several nodes: what it reports of them, and the limit that it measures."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from multiring.bench.wire_limit import IN_FLIGHT, SLICE_BYTES
from multiring.bench.world import World

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize(("wire", "itemsize"), [((), 4), (("bfloat16",), 2)])
def test_the_report_says_nodes_hosts_and_the_limit_of_the_wire(
    mpi_run: Callable[..., subprocess.CompletedProcess[str]], wire: tuple[str, ...], itemsize: int
) -> None:
    done = mpi_run(4, Path(__file__).with_name("nodes_bench.py").read_text(), *wire)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    config = report["config"]
    assert (config["ranks"], config["nodes"], config["node_of_rank"]) == (4, 2, [0, 1, 0, 1])
    assert (config["ranks_per_node"], config["hosts"]) == ([2, 2], [platform.node()] * 2)
    assert config["limit"].startswith("exchange over MPI of limit_bytes of the busiest node, in the type that travels")
    assert f"in slices of {SLICE_BYTES >> 10} KiB, {IN_FLIGHT} of each rank in flight" in config["limit"]
    assert report["errors"] == 0
    assert [line["size"] for line in report["results"]] == [1024, 65536]
    for line in report["results"]:
        for half in (line["out_of_place"], line["in_place"]):
            # 2(H-1)/H of the vector, with H = 2, in the type that travels.
            assert half["limit_bytes"] == line["count"] * itemsize
            assert half["limit_us"] > 0
            assert half["peers"]["mpi"]["nwrong"] == 0
    assert f"# nodes: 2, ranks: 2 on {platform.node()}, 2 on {platform.node()}; limit: exchange" in done.stderr


def test_one_node_is_one_world() -> None:
    class Alone:
        rank, size = 0, 1

        def all_gather(self, mine: object, rows: object) -> None:
            rows[...] = mine  # type: ignore[index]

    world = World(Alone())
    assert world.node_of == (0,)
    assert world.n_nodes == 1
    assert world.on_node() is world
