"""``multiring tune``: what it refuses, shows, checks and keeps; the measuring itself is tested by running it small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from multiring.bench.cli import cli
from multiring.bench.tune import merged, tune
from multiring.bench.tune_report import check_files, check_lines, rates_lines
from multiring.errors import ArgumentError
from multiring.topology.measured import Estimate, HostRates, Measured, NetworkRates
from multiring.topology.tuning_file import read, to_json, write

RATES = HostRates(2, 2, {"step": Estimate(0.5, 0.25, 0.75)}, n_points=9, median_error=0.05, p90_error=0.2)
NETWORK = NetworkRates(Estimate(20.0, 19.0, 21.0), Estimate(0.125, 0.12, 0.13), 2, 4)


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(tune, list(arguments), prog_name="multiring tune")


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "tuning.json"
    write(to_json(Measured((RATES,), NETWORK), version="1.2.3", date="2030-01-02", host="here"), path)
    return path


def test_the_command_is_there_and_has_an_example() -> None:
    assert "tune" in cli.list_commands(None)  # type: ignore[arg-type]
    said = invoke("--help")
    assert said.exit_code == 0
    assert "Example:" in said.output


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--ranks", "1"), "--ranks: got 1, wanted at least 2: one rank has nobody to wait for"),
        (("--ranks", "two"), "'two' is not a valid integer"),
        (("--maxbytes", "junk", "--ranks", "2"), "-e: got 'junk'"),
        (("--check", "no/such.json"), "--check: cannot read no/such.json: No such file"),
        ((), "MULTIRING_TUNING=off leaves no file to store in; give one with --output"),
    ],
)
def test_bad_usage(arguments: tuple[str, ...], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIRING_TUNING", str(tmp_path / "x.json") if arguments else "off")
    said = invoke(*arguments)
    assert said.exit_code == 2
    assert why in said.output


def test_show(stored: Path) -> None:
    said = invoke("--show", "--output", str(stored))
    assert said.exit_code == 0
    assert "measured on here" in said.output
    assert "by multiring 1.2.3" in said.output
    assert "shared memory, 2 ranks on 2 cores" in said.output
    assert "0.5000  [   0.2500,   0.7500]  step: a step, us" in said.output
    assert "0.1250  [   0.1200,   0.1300]  bandwidth: of a node's port each way, GB/s" in said.output


def test_show_without_a_file(tmp_path: Path) -> None:
    said = CliRunner().invoke(cli, ["tune", "--show", "--output", str(tmp_path / "none.json")])
    assert said.exit_code == 1
    assert "run multiring tune first" in str(said.exception)


def test_what_is_not_measured_anew_stays(stored: Path) -> None:
    four = HostRates(4, 2, {})
    newer = HostRates(2, 2, {"act": Estimate(1.0, 1.0, 1.0)})
    assert merged(stored, [four], None) == Measured((RATES, four), NETWORK)
    assert merged(stored, [newer], None) == Measured((newer,), NETWORK)
    assert merged(stored.with_name("none.json"), [four], None) == Measured((four,))
    document = json.loads(stored.read_text())
    document["machine"] = {"cpu": "another", "cpus": 1}
    stored.write_text(json.dumps(document))
    assert merged(stored, [four], None) == Measured((four,))


def report(path: Path, ranks: int, errors: list[float]) -> str:
    """Write a benchmark's report whose predictions are off by so much."""
    half = [{"time": 100.0, "predicted_us": 100.0 * (1 + error)} for error in errors]
    results = [
        {"size": 8 << at, "experiment_name": "all_reduce", "out_of_place": each, "in_place": None}
        for at, each in enumerate(half)
    ]
    path.write_text(json.dumps({"config": {"ranks": ranks}, "results": results}))
    return str(path)


def test_check_says_how_far_off(tmp_path: Path) -> None:
    good = report(tmp_path / "good.json", 2, [0.1, -0.1, 0.2])
    bad = report(tmp_path / "bad.json", 4, [0.1, 0.9, 0.9])
    lines, kept = check_lines(check_files([good]))
    assert kept
    assert "    2  all_reduce           3    10.0%    18.0%    20.0%  all_reduce, 32 bytes out of place" in lines
    assert lines[-1] == "kept: the goal is a median of 20% and a 90th percentile of 50%"
    said = invoke("--check", good, "--check", bad)
    assert said.exit_code == 1
    assert "MISSED" in said.output
    assert invoke("--check", good).exit_code == 0


def test_check_refuses_other_files(tmp_path: Path) -> None:
    strange = tmp_path / "strange.json"
    strange.write_text("{}")
    with pytest.raises(ArgumentError, match=r"got KeyError: 'results', wanted a report of multiring bench --json"):
        check_files([str(strange)])
    strange.write_text("no json")
    with pytest.raises(ArgumentError, match="got JSONDecodeError"):
        check_files([str(strange)])
    empty = report(tmp_path / "empty.json", 2, [])
    with pytest.raises(ArgumentError, match="has no predicted times"):
        check_files([empty])


def test_rates_that_are_nothing_are_left_out() -> None:
    rates = HostRates(2, 2, {"step": Estimate(0.0, 0.0, 1.0), "act": Estimate(1.0, 1.0, 1.0)})
    lines = list(rates_lines(Measured((rates,))))
    assert not any("step:" in line for line in lines)
    assert any("act:" in line for line in lines)


@pytest.mark.shm
def test_a_small_run_stores_what_a_communicator_reads(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    command = [sys.executable, "-m", "multiring", "tune", "--ranks", "2", "--quick", "-e", "32K", "-o", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert f"stored in {path}" in done.stdout
    (rates,) = read(path.read_text()).hosts
    assert (rates.n_ranks, rates.n_cores) == (2, len(os.sched_getaffinity(0)))
    assert rates.n_points > 100
    assert rates.values.sum() > 0
