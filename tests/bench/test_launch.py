"""`multiring launch`: what it tells the ranks, how it ends, and that nothing outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from multiring.bench.local_ranks import core_shares, rank_environment, run_ranks
from multiring.errors import LaunchError

pytestmark = pytest.mark.shm

LAUNCH = [sys.executable, "-m", "multiring", "launch"]


def launched(*words: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*LAUNCH, *words], capture_output=True, text=True, timeout=60, check=False, **more)  # type: ignore[call-overload,no-any-return]


def python(code: str) -> list[str]:
    return ["--", sys.executable, "-c", code]


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline, "did not happen within 30 s"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


@pytest.fixture
def background() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        started.append(subprocess.Popen([*LAUNCH, *words], stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_ranks_are_told_who_they_are_under_one_token() -> None:
    code = (
        "import json, os\nnames = {k: v for k, v in os.environ.items() if k.startswith('MULTIRING_')}\n"
        "os.write(1, json.dumps(names).encode() + b'\\n')"
    )
    done = launched("-n", "3", *python(code))
    assert done.returncode == 0, done.stderr
    told = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda names: names["MULTIRING_RANK"])
    assert len({names.pop("MULTIRING_JOB") for names in told}) == 1
    outer = {name: value for name, value in os.environ.items() if name.startswith("MULTIRING_")}
    wanted = outer | {"MULTIRING_SIZE": "3", "MULTIRING_LOCAL_SIZE": "3"}
    assert told == [wanted | {"MULTIRING_RANK": str(r), "MULTIRING_LOCAL_RANK": str(r)} for r in range(3)]


def test_ranks_meet() -> None:
    code = (
        "import os; from multiring.collectives.bootstrap import connect\n"
        "met = connect(os.environ, 60); os.write(1, b'%r\\n' % met.all_gather(b'%d' % met.rank)); met.barrier()"
    )
    done = launched("-n", "3", *python(code))
    assert (done.returncode, done.stdout) == (0, "[b'0', b'1', b'2']\n" * 3), done.stderr


def test_an_outer_launcher_is_hidden_from_the_ranks() -> None:
    outer = {"PMI_RANK": "1", "PMIX_RANK": "1", "OMPI_COMM_WORLD_RANK": "1", "SLURM_PROCID": "1", "PATH": "/bin"}
    assert set(rank_environment(outer, 0, 2, "t")) == {
        "PATH", "MULTIRING_RANK", "MULTIRING_SIZE", "MULTIRING_LOCAL_RANK", "MULTIRING_LOCAL_SIZE", "MULTIRING_JOB",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("cores", "n_ranks", "shares"),
    [
        ([0, 1], 2, [[0], [1]]),
        ([7, 3, 5, 1, 9], 2, [[1, 3], [5, 7]]),
        ([0, 1, 2], 3, [[0], [1], [2]]),
        ([0, 1], 3, None),
    ],
)
def test_cores_are_shared_equally_or_not_at_all(cores: list[int], n_ranks: int, shares: list[list[int]] | None) -> None:
    assert core_shares(cores, n_ranks) == shares


@pytest.mark.parametrize("flag", ["--bind", "--no-bind"])
def test_ranks_are_bound(flag: str) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core: nothing to divide")
    code = "import os; os.write(1, f\"{os.environ['MULTIRING_RANK']} {sorted(os.sched_getaffinity(0))}\\n\".encode())"
    done = launched("-n", "2", flag, *python(code))
    shares = core_shares(cores, 2) if flag == "--bind" else [cores, cores]
    assert shares
    assert sorted(done.stdout.splitlines()) == [f"{rank} {share}" for rank, share in enumerate(shares)]


@pytest.mark.parametrize(
    ("how", "status", "said"),
    [
        ("raise SystemExit(7)", 7, "rank 1 (process {pid}) failed first: exit status 7"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "rank 1 (process {pid}) failed first: killed by SIGKILL (9)"),
        ("1 / 0", 1, "rank 1 (process {pid}) failed first: exit status 1"),
    ],
)
def test_the_rank_that_failed_first_is_named_and_gives_the_status(how: str, status: int, said: str) -> None:
    """The others raise what they lost within their 3 s; the traceback of the first is visible."""
    code = f"""
import os, signal, sys, time
if os.environ["MULTIRING_RANK"] == "1":
    print(os.getpid(), flush=True)
    {how}
time.sleep(0.5)
sys.stderr.write("the survivor said so\\n")
sys.exit(9)
"""
    done = launched("-n", "2", *python(code))
    assert done.returncode == status
    assert said.format(pid=done.stdout.strip()) in done.stderr
    assert done.stderr.count("failed first") == 1
    assert "the survivor said so" in done.stderr
    assert ("ZeroDivisionError" in done.stderr) == (how == "1 / 0")


def test_survivors_that_do_not_end_are_ended_first_by_term_then_by_kill() -> None:
    code = """
import os, signal, sys, time
rank = os.environ["MULTIRING_RANK"]
if rank == "2":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(1, b"%s %d\\n" % (rank.encode(), os.getpid()))
if rank == "0":
    time.sleep(0.3)
    sys.exit(4)
time.sleep(600)
"""
    started = time.monotonic()
    done = launched("-n", "3", *python(code))
    assert done.returncode == 4
    assert time.monotonic() - started >= 5  # 3 s of grace and 2 s to heed SIGTERM, in full
    assert "rank(s) 1, 2 still ran and got SIGTERM" in done.stderr
    assert "rank(s) 2 still ran and got SIGKILL" in done.stderr
    assert not any(is_alive(int(line.split()[1])) for line in done.stdout.splitlines())


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_reach_every_rank(
    background: Callable[..., subprocess.Popen[str]], number: signal.Signals, status: int
) -> None:
    code = f"""
import os, signal, sys, time
def handle(number, frame):
    os.write(1, f"rank {{os.environ['MULTIRING_RANK']}} got {{number}}\\n".encode()); os._exit(0)
signal.signal({int(number)}, handle)
os.write(1, b"ready\\n")
time.sleep(600)
"""
    process = background("-n", "2", *python(code))
    assert process.stdout
    assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    process.send_signal(number)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == status
    assert sorted(output.splitlines()) == [f"rank {rank} got {int(number)}" for rank in range(2)]
    assert "failed first" not in errors


def test_a_second_interrupt_kills(background: Callable[..., subprocess.Popen[str]]) -> None:
    code = (
        "import os, signal, time; signal.signal(2, lambda *_: os.write(1, b'no\\n')); os.write(1, b'x\\n')\n"
        "while True: time.sleep(60)"
    )
    process = background("-n", "1", *python(code))
    assert process.stdout
    for wanted in ("x\n", "no\n"):
        assert process.stdout.readline() == wanted
        process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_outlives_launch_whatever_ends_it(
    background: Callable[..., subprocess.Popen[str]], number: signal.Signals
) -> None:
    """Neither a rank nor what it started (ompi issue 1379: after the launcher's end the others spun for ever)."""
    code = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_DFL)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
os.write(1, b"%d %d\\n" % (os.getpid(), child.pid))
time.sleep(600)
"""
    process = background("-n", "2", *python(code))
    assert process.stdout
    pids = [int(word) for _ in range(2) for word in process.stdout.readline().split()]
    assert len(pids) == 4
    assert all(map(is_alive, pids))
    process.send_signal(number)
    wait_until(lambda: not any(map(is_alive, pids)))
    assert process.wait(timeout=30) == (-9 if number == signal.SIGKILL else 128 + number)


def test_what_a_rank_left_behind_is_ended_with_it() -> None:
    done = launched("-n", "1", "--", "sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!")
    assert done.returncode == 0
    assert not is_alive(int(done.stdout))


def test_nothing_is_left_in_shared_memory_and_a_second_run_works(
    background: Callable[..., subprocess.Popen[str]],
) -> None:
    code = (
        "import os, time; from multiring.collectives.bootstrap import connect\n"
        "met = connect(os.environ, 60); os.write(1, b'met\\n'); time.sleep(600)"
    )
    before = set(os.listdir("/dev/shm"))  # noqa: PTH208
    for _ in range(2):
        process = background("-n", "2", *python(code))
        assert process.stdout
        assert [process.stdout.readline() for _ in range(2)] == ["met\n"] * 2
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
    assert {name for name in set(os.listdir("/dev/shm")) - before if "multiring" in name} == set()  # noqa: PTH208


def test_a_path_with_a_space(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    program = folder / "my program.py"
    program.write_text("import os, sys; os.write(1, f'{sys.argv[1:]} {os.getcwd()}\\n'.encode())")
    done = launched("-n", "2", "--", sys.executable, str(program), "-n", "an argument", cwd=folder)
    assert done.stdout == f"['-n', 'an argument'] {folder}\n" * 2


def test_output_is_tagged_line_by_line() -> None:
    code = "import os, sys; print('a\\nb'); sys.stderr.write('no newline')"
    done = launched("-n", "2", "--tag-output", *python(code))
    assert sorted(done.stdout.splitlines()) == ["[0] a", "[0] b", "[1] a", "[1] b"]
    assert sorted(done.stderr.splitlines()) == ["[0] no newline", "[1] no newline"]


def test_standard_input_is_inherited() -> None:
    done = launched("-n", "1", *python("print(input())"), input="from outside\n")
    assert done.stdout == "from outside\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["-n", "2", "--", "no-such-program"], "no-such-program: cannot be started: No such file"),
        (["-n", "0", "--", "true"], "0 is not in the range x>=1"),
        (["--", "true"], "Missing option '-n'"),
        (["-n", "2"], "Missing argument 'COMMAND"),
    ],
)
def test_bad_usage_is_one_line_and_status_2(words: list[str], text: str) -> None:
    done = launched(*words)
    assert done.returncode == 2
    assert text in done.stderr
    assert done.stderr.startswith("error: multiring launch: ")
    assert done.stderr.count("\n") == 1


def test_no_ranks_are_refused() -> None:
    with pytest.raises(LaunchError, match="ranks: got 0, wanted at least 1"):
        run_ranks(["true"], 0)


def test_more_ranks_than_memory_holds_are_refused_before_any_is_started(capfd: pytest.CaptureFixture[str]) -> None:
    started: list[str] = []
    with pytest.raises(LaunchError, match=r"ranks: got 1000000, wanted at most \d+: a Python process .* MiB left"):
        run_ranks(["true"], 1_000_000, say=started.append)
    assert not started
