"""The hosts of a lab: what is built, what separates them, and that nothing is left."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from multiring.bench.lab.link import Link
from multiring.bench.lab.network import Network, _cores_of_hosts
from multiring.errors import LaunchError
from tests.lab.helpers import is_alive, left_of

pytestmark = pytest.mark.lab


def on(network: Network, host: int, *words: str, status: int = 0) -> str:
    """Run words on a host and return what they printed."""
    done = subprocess.run(network.command(host, list(words)), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == status, done.stderr
    return done.stdout.strip()


CONNECT = ["python3", "-c", "import socket, sys; print(socket.create_connection((sys.argv[1], 7), 1).recv(9).decode())"]
CORES = ["python3", "-c", "import os; print(*os.sched_getaffinity(0))"]
SERVE = (
    "import socket; s = socket.create_server(('', 7)); print('here', flush=True)\nwhile True: s.accept()[0].send(b'ok')"
)


def test_hosts_have_names_addresses_and_limited_wires_of_their_own() -> None:
    with Network(3, Link("100mbit", "64kb", "20ms")) as network:
        assert [host.name for host in network.hosts] == [f"{network.name}-host{i}" for i in range(3)]
        assert [on(network, i, "uname", "-n") for i in range(3)] == [host.name for host in network.hosts]
        here = os.sched_getaffinity(0)
        cores = [{int(core) for core in on(network, i, *CORES).split()} for i in range(3)]
        assert [set(host.cores) for host in network.hosts] == cores
        assert all(own and own <= here for own in cores)
        own = Path("/proc/self/ns/net").readlink()
        assert len({own, *(on(network, i, "readlink", "/proc/self/ns/net") for i in range(3))}) == 4
        for index, host in enumerate(network.hosts):
            links = json.loads(on(network, index, "ip", "-json", "-4", "address"))
            assert [(link["ifname"], link["addr_info"][0]["local"]) for link in links] == [
                ("lo", "127.0.0.1"),
                ("eth0", host.address),
            ]
            for limit in network.limits(index):
                assert re.search(r"^qdisc tbf \w+: (dev \w+ )?root .*rate 100Mbit burst 64Kb lat 20ms", limit)
                assert "\n" not in limit
    assert left_of(network.name) == []


@pytest.mark.parametrize(
    ("cores", "n_hosts", "shares"),
    [
        ([0, 1], 1, [(0, 1)]),
        ([0, 1], 2, [(0,), (1,)]),
        ([2, 3, 4, 5, 6], 2, [(2, 3), (4, 5)]),
        ([4, 7], 3, [(4,), (7,), (4,)]),
    ],
)
def test_cores_are_shared_out(cores: list[int], n_hosts: int, shares: list[tuple[int, ...]]) -> None:
    assert _cores_of_hosts(cores, n_hosts) == shares
    assert _cores_of_hosts(cores, n_hosts, bind=False) == [tuple(cores)] * n_hosts


def test_hosts_reach_one_another_until_a_cable_is_pulled() -> None:
    with Network(2) as network:
        words = network.command(1, ["python3", "-c", SERVE])
        server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert server.stdout
        assert server.stdout.readline() == "here\n"
        address = network.hosts[1].address
        assert on(network, 0, *CONNECT, address) == "ok"
        network.cut(1)
        on(network, 0, *CONNECT, address, status=1)
        network.mend(1)
        assert on(network, 0, *CONNECT, address) == "ok"
        assert network.pids(1) == network.pids() == [server.pid]
    assert server.wait(timeout=10) != 0
    server.stdout.close()
    assert left_of(network.name) == []


def test_two_labs_at_once_do_not_meet() -> None:
    """They have equal addresses: what is served in one is not there in the other."""
    with Network(2) as one, Network(2) as other:
        assert one.name != other.name
        assert [host.address for host in one.hosts] == [host.address for host in other.hosts]
        server = subprocess.Popen(one.command(1, ["python3", "-c", SERVE]), stdout=subprocess.PIPE, text=True)
        assert server.stdout
        assert server.stdout.readline() == "here\n"
        assert on(one, 0, *CONNECT, one.hosts[1].address) == "ok"
        on(other, 0, *CONNECT, one.hosts[1].address, status=1)
        other.close()
        assert left_of(other.name) == []
        assert on(one, 0, *CONNECT, one.hosts[1].address) == "ok"
    server.wait(timeout=10)
    server.stdout.close()
    assert left_of(one.name) == []


@pytest.mark.parametrize("stubborn", [False, True])
def test_processes_are_asked_then_killed_and_none_but_the_labs_own(stubborn: bool) -> None:
    handler = "signal.SIG_IGN" if stubborn else "lambda *_: sys.exit(7)"
    code = f"import signal, sys, time; signal.signal(signal.SIGTERM, {handler}); print(1, flush=True); time.sleep(600)"
    outside = subprocess.Popen(["sleep", "600"])
    try:
        with Network(1) as network:
            words = network.command(0, ["python3", "-c", code])
            inside = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            assert inside.stdout
            assert inside.stdout.readline() == "1\n"
            network.end_processes()
            assert network.pids() == []
            assert inside.wait(timeout=10) == (-9 if stubborn else 7)
            inside.stdout.close()
        assert is_alive(outside.pid)
    finally:
        outside.kill()
        outside.wait()


def test_a_lab_that_cannot_be_built_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Link, "words", lambda self, device: ["qdisc", "add", "dev", device, "root", "nonsense"])
    network = Network(2)
    with pytest.raises(
        LaunchError, match=r"lab: got an error from tc -n lab\S+ qdisc add .*nonsense.*; wanted a kernel"
    ):
        network.__enter__()
    assert network.name
    assert left_of(network.name) == []


def test_what_is_missing_is_said_before_anything_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        LaunchError, match="lab: got no ip nor tc nor unshare nor taskset on PATH; install iproute2, util"
    ):
        Network(2).__enter__()
    monkeypatch.undo()
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(LaunchError, match="lab: got user 1000, wanted root: network namespaces need it; use sudo"):
        Network(2).__enter__()


def test_a_name_is_free_again_after_its_lab() -> None:
    names = []
    for _ in range(2):
        with Network(1) as network:
            names.append(network.name)
    assert names[0] == names[1]
