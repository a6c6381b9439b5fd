"""`multiring lab`: what it tells the ranks, how it ends, and that nothing outlives it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab.helpers import is_alive, lab, left_of, name_of, wait_until

pytestmark = pytest.mark.lab

RING = """
import json, os, platform, sys
import numpy as np
from mpi4py import MPI
world = MPI.COMM_WORLD
sent, received = np.full(100_000, world.rank, np.int64), np.full(100_000, -1, np.int64)
world.Sendrecv(sent, (world.rank + 1) % world.size, 0, received, (world.rank - 1) % world.size, 0)
total = np.empty_like(sent)
world.Allreduce(sent, total)
line = {
    "rank": world.rank, "size": world.size, "host": platform.node(), "host_id": os.environ["MULTIRING_HOST_ID"],
    "local": world.Split_type(MPI.COMM_TYPE_SHARED).size, "net": os.readlink("/proc/self/ns/net"),
    "uts": os.readlink("/proc/self/ns/uts"), "transports": os.environ["UCX_TLS"], "words": sys.argv[1:],
    "before": sorted(set(received.tolist())), "total": sorted(set(total.tolist())),
}
os.write(1, (json.dumps(line) + "\\n").encode())
"""


def python(code: str, *words: str) -> list[str]:
    return ["--", sys.executable, "-c", code, *words]


def place(hosts: int, ranks: int) -> list[str]:
    return ["--hosts", str(hosts), "--ranks", str(ranks)]


@pytest.mark.parametrize(("hosts", "ranks"), [(2, 2), (4, 1), (1, 2)])
def test_ranks_are_placed_in_blocks_and_know_their_host(hosts: int, ranks: int) -> None:
    done = lab(*place(hosts, ranks), "--rate", "200mbit", *python(RING, "-n", "an argument", "$HOME"))
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    assert len(said) == 1
    name = name_of(said[0])
    assert f"{hosts} host{'s' * (hosts > 1)} ({name}-host0" in said[0]
    assert f"of {ranks} rank{'s' * (ranks > 1)} each, 200mbit in each direction, burst 128kb, latency 50ms" in said[0]
    lines: list[dict[str, Any]] = sorted(map(json.loads, done.stdout.splitlines()), key=lambda line: line["rank"])
    size = hosts * ranks
    assert [line["rank"] for line in lines] == list(range(size))
    for line in lines:
        assert line["host"] == line["host_id"] == f"{name}-host{line['rank'] // ranks}"
        assert (line["size"], line["local"], line["transports"]) == (size, ranks, "tcp,self")
        assert line["words"] == ["-n", "an argument", "$HOME"]
        assert line["before"] == [(line["rank"] - 1) % size]
        assert line["total"] == [size * (size - 1) // 2]
    for kind in ("net", "uts"):
        by_host = [{line[kind] for line in lines[host * ranks :][:ranks]} for host in range(hosts)]
        assert len({Path(f"/proc/self/ns/{kind}").readlink().name, *(s for [s] in map(list, by_host))}) == hosts + 1
    assert left_of(name) == []


def test_an_outer_host_id_is_not_taken_over_and_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIRING_HOST_ID", "elsewhere")
    monkeypatch.setenv("UCX_TLS", "all")
    done = lab(*place(2, 1), "--", "sh", "-c", 'echo "$MULTIRING_HOST_ID $(uname -n) $UCX_TLS $MULTIRING_LAB_HOSTS"')
    assert done.returncode == 0, done.stderr
    words = [line.split() for line in done.stdout.splitlines()]
    assert len(words) == 2
    assert all(host_id == host and rest == ["all", "2"] for host_id, host, *rest in words)


def test_standard_input_is_rank_0s() -> None:
    code = 'if [ "$PMI_RANK" = 0 ]; then read -r line; echo "got $line"; fi'
    done = lab(*place(2, 1), "--", "sh", "-c", code, input="from outside\n")
    assert (done.returncode, done.stdout) == (0, "got from outside\n")


FAILING = """
import os, platform, sys, tempfile, time
from pathlib import Path
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
MPI.COMM_WORLD.Barrier()
if rank == int(sys.argv[1]):
    os._exit(3) if sys.argv[2] == "exit" else os.kill(os.getpid(), 9)
name = platform.node().partition("-")[0]
failures = next(Path(tempfile.gettempdir()).glob(f"multiring-{name}.*")) / "failures"
while not failures.exists():
    time.sleep(0.01)
time.sleep(0.5)  # for what mpiexec does about it
os.write(1, b"rank %d lives\\n" % rank)
os._exit(5)
"""


@pytest.mark.parametrize(("how", "status"), [("exit", 3), ("kill", 137)])
@pytest.mark.parametrize("rank", [0, 3])
def test_the_status_is_that_of_the_rank_that_failed_first(how: str, status: int, rank: int) -> None:
    """The others live on, those of its host too, and get time to say what they lost."""
    done = lab(*place(2, 2), *python(FAILING, str(rank), how))
    assert done.returncode == status, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {other} lives" for other in range(4) if other != rank]
    assert f"multiring lab: rank {rank} failed first: " in done.stderr
    assert ("killed by SIGKILL (9)" if how == "kill" else "exit status 3") in done.stderr
    assert left_of(name_of(done.stderr)) == []


def test_survivors_that_go_on_for_ever_are_ended() -> None:
    done = lab(*place(2, 2), "--survivors", "0.5", "--", "sh", "-c", '[ "$PMI_RANK" != 2 ] || exit 4; exec sleep 600')
    assert done.returncode == 4
    assert "multiring lab: rank 2 failed first: exit status 4\n" in done.stderr
    assert "multiring lab: ranks still ran 0.5 s after that, and are ended\n" in done.stderr
    assert left_of(name_of(done.stderr)) == []


def test_a_run_that_takes_too_long_is_ended() -> None:
    done = lab(*place(2, 1), "--timeout", "1", "--", "sleep", "600")
    assert done.returncode == 124
    assert "multiring lab: ranks did not end within 1 s, and are ended\n" in done.stderr
    assert left_of(name_of(done.stderr)) == []


LINGER = """
import os, signal, sys, time
def leave(number, frame):
    os.write(1, b"got %d\\n" % number)
    sys.exit(0)
signal.signal(signal.SIGINT, leave if len(sys.argv) < 2 else signal.SIG_IGN)
signal.signal(signal.SIGTERM, leave if len(sys.argv) < 2 else signal.SIG_IGN)
os.write(1, b"%d\\n" % os.getpid())
time.sleep(600)
"""


@pytest.mark.parametrize("stubborn", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_all_ranks_and_nothing_is_left(
    background: Callable[..., subprocess.Popen[str]], number: signal.Signals, stubborn: bool
) -> None:
    process = background(*place(2, 2), *python(LINGER, *["stubborn"] * stubborn))
    assert process.stdout
    assert process.stderr
    pids = [int(process.stdout.readline()) for _ in range(4)]
    assert all(map(is_alive, pids))
    process.send_signal(number)
    said = process.stdout.read()
    assert process.wait(timeout=60) == 128 + number
    assert said.count(f"got {int(number)}\n") == (0 if stubborn else 4)
    assert not any(map(is_alive, pids))
    assert left_of(name_of(process.stderr.read())) == []


def test_a_lab_that_was_killed_takes_its_ranks_along_and_the_next_one_removes_the_rest(
    background: Callable[..., subprocess.Popen[str]],
) -> None:
    living = background(*place(1, 1), *python(LINGER))
    dying = background(*place(2, 2), *python(LINGER))
    assert living.stdout
    assert dying.stdout
    assert dying.stderr
    other = int(living.stdout.readline())
    pids = [int(dying.stdout.readline()) for _ in range(4)]
    dying.kill()
    dying.wait()
    wait_until(lambda: not any(map(is_alive, pids)))
    name = name_of(dying.stderr.read())
    assert left_of(name)
    done = lab(*place(1, 1), "--", "true")
    assert done.returncode == 0, done.stderr
    assert left_of(name) == []
    assert is_alive(other)


def test_the_limit_of_the_wire_is_measured_between_hosts() -> None:
    program = Path(__file__).parents[1] / "bench" / "mpi_nodes.py"
    done = lab(*place(2, 2), "--", sys.executable, str(program), "0011")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == [f"{rank}:9" for rank in range(4)]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([*place(2, 1), "--", "no-such-program"], "no-such-program: cannot be started: got no such program"),
        ([*place(0, 1), "--", "true"], "0 is not in the range 1<=x<=200"),
        ([*place(2, 0), "--", "true"], "0 is not in the range x>=1"),
        (["--hosts", "2", "--", "true"], "Missing option '--ranks'"),
        (place(2, 1), "Missing argument 'COMMAND"),
        ([*place(2, 1), "--rate", "1parsec", "--", "true"], "--rate: got '1parsec', wanted a rate above 0 as tc"),
        ([*place(2, 1), "--rate", "99999999999tbit", "--", "true"], "lab: got an error from tc -n lab"),
    ],
)
def test_bad_usage_is_one_line_and_status_2(words: list[str], text: str) -> None:
    done = lab(*words)
    assert done.returncode == 2
    assert text in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: multiring lab: ")]
    assert len(errors) == 1
    assert len(done.stderr.splitlines()) <= 2  # what was built, if it was
    assert not done.stderr.startswith("multiring lab: ") or left_of(name_of(done.stderr)) == []


def test_open_mpi_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from multiring.bench.lab import job
    from multiring.bench.lab.network import Network
    from multiring.bench.mpiexec import Mpiexec
    from multiring.errors import LaunchError

    monkeypatch.setattr(job, "find_mpiexec", lambda environ: Mpiexec("/somewhere/mpiexec", "openmpi", "5.0"))
    with pytest.raises(LaunchError, match="got /somewhere/mpiexec, which is Open MPI's, wanted MPICH's for a lab"):
        job.run_job(Network(1), 1, ["true"])
