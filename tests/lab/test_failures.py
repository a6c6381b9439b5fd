"""A host whose cable is pulled, and a rank that is killed, in the middle of collectives: what the others get."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from multiring.bench.lab.job import run_job
from multiring.bench.lab.link import Link
from multiring.bench.lab.network import Network
from tests.lab.helpers import is_alive, left_of, wait_until

pytestmark = pytest.mark.lab

LIMIT_S = 4.0
PROGRAM = """
import os, pathlib, sys
import numpy as np
import multiring as mr

folder, limit_s = pathlib.Path(sys.argv[1]), float(sys.argv[2])
comm = mr.init(timeout=limit_s)
x = np.ones(200_000, dtype=np.float32)
for call in range(1_000_000):
    try:
        comm.all_reduce(x, op="max")
        assert (x == 1).all()
    except mr.MultiringError as error:
        (folder / f"error{comm.rank}").write_text(f"{comm.n_nodes} nodes: {type(error).__name__} {error}")
        raise
    if call == 3:
        (folder / f"pid{comm.rank}.new").write_text(str(os.getpid()))
        (folder / f"pid{comm.rank}.new").rename(folder / f"pid{comm.rank}")
"""


def run(folder: Path, n_hosts: int, n_ranks: int, harm: Callable[[Network], None]) -> str:
    """Run the program in a lab, do harm once all ranks are at it, and return the lab's name."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    pids = [folder / f"pid{rank}" for rank in range(n_hosts * n_ranks)]

    with Network(n_hosts, Link("1gbit")) as network:

        def wait_and_harm() -> None:
            wait_until(lambda: all(pid.exists() for pid in pids))
            harm(network)

        helper = threading.Thread(target=wait_and_harm)
        helper.start()
        run_job(
            network, n_ranks, [sys.executable, str(program), str(folder), str(LIMIT_S)], timeout_s=60, survivors_s=6
        )
        helper.join()
    assert not any(is_alive(int(pid.read_text())) for pid in pids)
    return network.name


def errors(folder: Path) -> dict[int, str]:
    return {int(path.name.removeprefix("error")): path.read_text() for path in folder.glob("error*")}


@pytest.mark.parametrize(("n_hosts", "n_ranks"), [(2, 2), (3, 1)])
def test_a_host_that_is_cut_off(tmp_path: Path, n_hosts: int, n_ranks: int) -> None:
    name = run(tmp_path, n_hosts, n_ranks, lambda network: network.cut(1))
    found = errors(tmp_path)
    assert sorted(found) == list(range(n_hosts * n_ranks))
    for text in found.values():
        assert text.startswith(f"{n_hosts} nodes: CollectiveTimeout "), text
        assert f"did not come within the time limit of {LIMIT_S:g} s: rank" in text
        assert "over MPI" in text or "to call all_reduce" in text or "over shared memory" in text
    assert left_of(name) == []


def test_a_rank_that_is_killed(tmp_path: Path) -> None:
    def kill(network: Network) -> None:
        os.kill(int((tmp_path / "pid3").read_text()), signal.SIGKILL)

    name = run(tmp_path, 2, 2, kill)
    found = errors(tmp_path)
    assert sorted(found) == [0, 1, 2]
    for text in found.values():
        assert text.startswith("2 nodes: PeerLostError rank 3 on "), text
    assert left_of(name) == []


def test_the_only_rank_of_a_host_is_killed(tmp_path: Path) -> None:
    def kill(network: Network) -> None:
        os.kill(int((tmp_path / "pid1").read_text()), signal.SIGKILL)

    name = run(tmp_path, 3, 1, kill)
    found = errors(tmp_path)
    assert sorted(found) == [0, 2]
    for text in found.values():
        assert text.startswith("3 nodes: PeerLostError rank 1 on "), text
    assert left_of(name) == []
