"""The command line: what it refuses, before anything starts."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from multiring.bench import sweep_command
from multiring.bench.sweep_command import bench

LAUNCHERS = ("MULTIRING_", "PMI", "OMPI", "SLURM", "MPI_", "RANK", "WORLD_SIZE", "LOCAL_")


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith(LAUNCHERS):
            monkeypatch.delenv(name)


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(bench, list(arguments), prog_name="multiring bench")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("all_reduce", "-b", "1M", "-e", "1K"), "-b/-e: got a first size of 1048576 bytes above the last, 1024"),
        (("all_reduce", "-f", "1"), "-f: got 1, wanted a factor above 1"),
        (("all_reduce", "-f", "1", "-i", "0"), "-i: got a step of 0 bytes"),
        (("all_reduce", "-f", "-2"), "-f: got '-2'"),
        (("all_reduce", "-b", "0"), "-b: got 0 with a factor"),
        (("all_reduce", "-n", "0"), "-n: got 0 iterations"),
        (("all_reduce", "-w", "-1"), "-w: got -1 warm-up iterations"),
        (("all_reduce", "-c", "-1"), "-c: got -1 checks"),
        (("all_reduce", "-b", "12junk"), "-b: got '12junk'"),
        (("all_reduce", "-i", "2X"), "-i: got '2X'"),
        (("all_reduce", "-e", "8E"), "-e: got '8E', out of range"),
        (("all_reduce", "-e", "7E", "-b", "7E"), "are available; wanted a smaller -e or fewer ranks"),
        (("hypercube",), "collective: got 'hypercube'"),
        (("all_reduce", "-o", "median"), "-o: got 'median'"),
        (("all_reduce", "-d", "float128x"), "-d: got 'float128x'"),
        (("all_reduce", "-d", "int32", "-o", "avg"), "op='avg' is not defined for dtype int32"),
        (("reduce", "-g", "2", "-r", "2"), "-r: got 2, wanted a rank from 0 to 1, or all"),
        (("reduce", "-r", "first"), "-r: got 'first'"),
        (("all_reduce", "-g", "0"), "-g: got 0 ranks"),
        (("all_reduce", "--peer", "gloo"), "--peer: got 'gloo', which this version cannot measure yet; wanted mpi"),
        (("all_reduce", "--peer", "smoke"), "--peer: got 'smoke', wanted one of mpi, gloo, nccl"),
        (("all_reduce", "--device", "cuda"), "--device: got 'cuda'"),
        (("all_reduce", "--order", "ring"), "--order: got 'ring'"),
        (("all_gather", "--order", "rank"), "--order: got 'rank' for all_gather, which does not reduce"),
        (("all_reduce", "--wire", "int8"), "--wire: got 'int8' for float"),
        (("all_reduce", "--json", "no/such/folder/x.json"), "--json: got 'no/such/folder/x.json', wanted a file in a"),
        (("all_reduce", "--csv", "-"), "--csv: got '-', wanted a file"),
        (("all_reduce", "--wire", "foo"), "multiring bench: --wire: got 'foo', wanted one of int8"),
        (("all_reduce", "-d", "foo"), "multiring bench: -d: got 'foo', wanted one of int8"),
        (("all_reduce", "--algorithm", "magic"), "algorithm: 'magic' is not known, wanted one that serves all_reduce"),
        (("all_to_all", "--algorithm", "ring"), "algorithm: 'ring' does not serve all_to_all"),
        (("sendrecv", "--algorithm", "all"), "--algorithm: got 'all' for sendrecv"),
        (("all_reduce", "--plot", "x.pdf"), "--plot: got 'x.pdf', wanted a file that ends in .png, .svg, .html"),
    ],
)
def test_b118_bad_arguments_end_with_one_line_and_2(arguments: tuple[str, ...], message: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_unknown_flags_end_with_2() -> None:
    assert invoke("all_reduce", "--nonsense").exit_code == 2
    assert invoke().exit_code == 2


def test_help_has_an_example_and_the_formulas() -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    assert "multiring bench all_reduce -g 2" in result.stdout
    assert "busbw = algbw times 2(n-1)/n for all_reduce" in result.stdout


@pytest.mark.parametrize("flags", [("-g", "3"), ("--ranks", "3")])
def test_ranks_are_started_with_the_same_arguments(monkeypatch: pytest.MonkeyPatch, flags: tuple[str, str]) -> None:
    started: list[Any] = []

    def start_local(*given: Any) -> int:
        started.append(given)
        return 1

    monkeypatch.setattr("multiring.bench.start.start_local", start_local)
    result = invoke("all_reduce", *flags, "-e", "1K")
    assert result.exit_code == 1
    ((n_ranks, command),) = started
    assert n_ranks == 3
    assert command[1:] == ["-m", "multiring.bench.sweep_command", "all_reduce", *flags, "-e", "1K"]


def test_a_job_of_another_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIRING_RANK", "0")
    monkeypatch.setenv("MULTIRING_SIZE", "4")
    result = invoke("all_reduce", "-g", "2")
    assert result.exit_code == 2
    assert "-g: got 2 ranks in a job of 4; wanted 4, or no -g" in result.stderr
    result = invoke("all_reduce", "--peer", "mpi")
    assert "--peer mpi: got ranks that no mpiexec started" in result.stderr


def test_only_one_rank_of_a_machine_complains(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "SIZE": "2", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}.items():
        monkeypatch.setenv(f"MULTIRING_{name}", value)
    result = invoke("all_reduce", "-n", "0")
    assert (result.exit_code, result.stderr) == (2, "")


def test_the_module_names_what_it_gives() -> None:
    assert sweep_command.__all__ == ["bench"]
