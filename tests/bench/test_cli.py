"""The command group: help, exit statuses, errors of one line, readers that go away."""

from __future__ import annotations

import re
import subprocess
import sys

import click
import pytest

from multiring.bench import cli
from multiring.errors import TopologyError

PRESENT = list(cli.cli.list_commands(click.Context(cli.cli)))


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "multiring", *words], capture_output=True, text=True, check=False)


def test_help_lists_the_commands_that_are_there() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert {"launch", "doctor"} <= set(PRESENT)
    for name in cli.COMMANDS:
        assert (f"\n  {name} " in done.stdout) == (name in PRESENT)


@pytest.mark.parametrize("name", PRESENT)
def test_every_command_has_help_with_an_example(name: str) -> None:
    done = run(name, "--help")
    assert done.returncode == 0, done.stderr
    assert re.search(rf"Examples?:\s+multiring {name}\b", done.stdout)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["nonsense"], "error: multiring: No such command 'nonsense'. (see multiring --help)\n"),
        (
            ["doctor", "--nonsense"],
            "error: multiring doctor: No such option '--nonsense'. (see multiring doctor --help)\n",
        ),
    ],
)
def test_bad_usage_is_one_line_and_status_2(words: list[str], text: str) -> None:
    done = run(*words)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", text)


def test_no_words_show_the_help_and_are_bad_usage() -> None:
    done = run()
    assert done.returncode == 2
    assert "Usage: multiring" in done.stderr


def failing(error: BaseException) -> click.Command:
    @click.command()
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (TopologyError("line 3:\n  strange"), 1, "error: line 3: strange\n"),
        (click.ClickException("a check failed"), 1, "error: a check failed\n"),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
    ],
)
def test_errors_are_one_line(
    error: BaseException,
    status: int,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda *_: failing(error))
    with pytest.raises(SystemExit) as ended:
        cli.main(["anything"])
    assert (ended.value.code, capsys.readouterr().err) == (status, text)


def test_a_reader_that_goes_away_is_no_failed_check() -> None:
    command = f"'{sys.executable}' -m multiring --help | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.returncode in (0, 141)


def test_a_closed_standard_output_is_harmless() -> None:
    command = f"exec '{sys.executable}' -m multiring --help >&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
