"""The bench command for real: ranks as processes, in shared memory and under mpiexec."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from multiring.bench.cases import COLLECTIVES
from multiring.bench.report import table_header
from multiring.bench.start import start_local

SMALL = ("-b", "8", "-e", "4K", "-f", "32", "-n", "3", "-w", "1")


def refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def run(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "multiring.bench.sweep_command", *arguments],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
        env={**os.environ, **(environment or {})},
    )


@pytest.mark.shm
@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_a_reader_that_went_away_ends_it_quietly(n_ranks: int) -> None:
    """As ``| head`` does."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "multiring", "bench", "all_reduce", "-g", str(n_ranks), "-b", "8", "-e", "64"],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=250,
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(("first", "wanted"), [(141, ""), (1, "multiring bench: rank 0 (process")])
def test_only_a_reader_that_went_away_is_not_spoken_of(
    first: int, wanted: str, capfd: pytest.CaptureFixture[str]
) -> None:
    program = f"import os, sys, time; sys.exit({first}) if os.environ['MULTIRING_RANK'] == '0' else time.sleep(600)"
    assert start_local(2, [sys.executable, "-c", program]) == first
    said = capfd.readouterr().err
    assert said == "" if not wanted else said.startswith(wanted) and "rank(s) 1 still ran and got SIGTERM" in said


@pytest.mark.shm
@pytest.mark.parametrize("collective", sorted(COLLECTIVES))
def test_two_ranks_measure_every_collective_right(collective: str) -> None:
    done = run(collective, "-g", "2", *SMALL, "-d", "bfloat16", "--json", "-")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout, parse_constant=refuse)
    assert report["errors"] == 0
    assert report["average_bus_bandwidth"] > 0
    assert report["config"]["ranks"] == 2
    assert len(report["config"]["binding"]) == 2
    assert [line["size"] for line in report["results"]] == [8, 256, 4096]
    for line in report["results"]:
        for half in (line["out_of_place"], line["in_place"]):
            if half is not None:
                assert half["nwrong"] == 0
                assert half["time"] > 0
                assert half["limit_us"] > 0
                assert half["predicted_us"] is None or half["predicted_us"] > 0
    # The table went to the other stream, whole, and once.
    assert done.stderr.count("#       size") == 1
    assert done.stderr.rstrip().endswith(f"# Collective test concluded: {collective}")


@pytest.mark.shm
def test_four_ranks_share_cores_and_say_so(tmp_path: Path) -> None:
    if len(os.sched_getaffinity(0)) >= 4:
        pytest.skip("this machine has a core for each rank")
    path = tmp_path / "out.csv"
    done = run("all_reduce", "-g", "4", *SMALL, "--prepared", "--unregistered", "--csv", str(path))
    assert done.returncode == 0, done.stderr
    assert f"# binding: not bound: 4 ranks on {len(os.sched_getaffinity(0))} core" in done.stdout
    assert "one cache line from core to core takes n/a" in done.stdout
    with path.open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 6
    assert done.stderr == ""


@pytest.mark.shm
def test_every_algorithm_has_its_line() -> None:
    done = run("all_reduce", "-g", "2", "-b", "1K", "-e", "1K", "-n", "2", "--algorithm", "all")
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if line and not line.startswith("#")]
    assert {"direct", "ring"} <= {line[13] for line in lines}
    assert table_header()[1] in done.stdout


def test_b120_one_rank_alone_has_no_bus_bandwidth() -> None:
    done = run("all_reduce", *SMALL, "--json", "-")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout, parse_constant=refuse)
    assert report["average_bus_bandwidth"] is None
    assert report["results"][0]["out_of_place"]["bus_bw"] is None
    assert "n/a (one rank: nothing crosses a bus)" in done.stderr


@pytest.mark.shm
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("wrong", "rank 1: multiring all_reduce out of place, 1024 bytes of float32, op sum: 1 of 256 elements"),
        ("raise", "rank 1: RuntimeError: planted fault"),
        ("kill", "rank 1 (process "),
    ],
)
def test_b122_a_faulty_rank_makes_the_command_fail(fault: str, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    program = str(Path(__file__).with_name("faulty_bench.py"))
    command = [sys.executable, program, fault, "all_reduce", "-b", "1K", "-e", "1K", "-n", "2"]
    assert start_local(2, command) == 1
    output = capfd.readouterr()
    assert said in output.err
    assert ("# Out of bounds values : 1 FAILED" in output.out) == (fault == "wrong")


@pytest.mark.mpi
def test_the_peer_is_measured_in_the_same_run() -> None:
    done = run("all_reduce", "-g", "2", *SMALL, "--peer", "mpi", "--json", "-")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout, parse_constant=refuse)
    assert report["config"]["started_by"] == "mpi"
    for line in report["results"]:
        for half in (line["out_of_place"], line["in_place"]):
            peer = half["peers"]["mpi"]
            assert peer["ratio"] == pytest.approx(peer["time"] / half["time"])
            assert peer["nwrong"] == 0


@pytest.mark.mpi
def test_usage_errors_end_with_2_and_one_line_under_mpi_too() -> None:
    done = run("all_reduce", "-g", "2", "--peer", "mpi", "-n", "0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "multiring bench: -n: got 0 iterations, wanted at least 1\n"
