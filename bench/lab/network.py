"""Hosts as network namespaces, each with one rate-limited wire to a switch in a namespace of its own.

.. code-block:: text

    lab7-host0            lab7-switch            lab7-host1
      eth0 ─── tbf ── tbf ─── bridge ─── tbf ── tbf ─── eth0

Nothing is made outside these namespaces: several labs, and the machine's own network, do not see one another.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from types import TracebackType

from multiring.bench.lab.link import Link
from multiring.bench.lab.registry import Claim, claim_name
from multiring.bench.lab.tools import run_tool, why_no_lab
from multiring.bench.local_ranks import core_shares
from multiring.errors import ArgumentError, LaunchError

__all__ = ["MOST_HOSTS", "Host", "Network"]

MOST_HOSTS = 200
_SUBNET = IPv4Network("10.77.0.0/16")
_DEVICE = "eth0"
_NAMESPACES = Path("/run/netns")
_TERMINATE_S = 2.0
# Called as NAME COMMAND...: the name is also what uname tells, in a UTS namespace of its own.
_ENTER = 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"'


@dataclass(frozen=True, slots=True)
class Host:
    """One host of a lab.

    Attributes
    ----------
    index : int
    name : str
        Its host name, and that of its network namespace.
    address : str
        Of its only wire.
    cores : tuple of int
        On which its programs run.
    """

    index: int
    name: str
    address: str
    cores: tuple[int, ...]


class Network:
    """Hosts on a switch; a context manager that leaves nothing behind.

    Parameters
    ----------
    n_hosts : int
    link : Link, optional
        The wire of each host; 1 Gbit/s where omitted.
    bind : bool
        Whether each host gets its share of the cores; else all have all.

    Attributes
    ----------
    name : str
        Of the lab; its namespaces begin with it. Empty before it is entered.
    hosts : tuple of Host
    folder : Path
        For files of programs that run in the lab; removed with it.
    """

    def __init__(self, n_hosts: int, link: Link | None = None, bind: bool = True) -> None:
        if not 1 <= n_hosts <= MOST_HOSTS:
            raise ArgumentError(f"--hosts: got {n_hosts}, wanted 1 to {MOST_HOSTS}")
        self.link = link or Link()
        self.name = ""
        self.hosts: tuple[Host, ...] = ()
        self.folder = Path()
        self._n_hosts = n_hosts
        self._bind = bind
        self._claim: Claim | None = None

    def __enter__(self) -> Network:
        """Build it, after removing what dead labs left.

        Raises
        ------
        LaunchError
            What is missing for it, or what ``ip`` or ``tc`` said.
        """
        if reason := why_no_lab():
            raise LaunchError(f"lab: {reason}")
        self._claim = claim_name(_remove)
        self.name = self._claim.name
        self.hosts = tuple(
            Host(index, f"{self.name}-host{index}", str(_SUBNET[index + 1]), cores)
            for index, cores in enumerate(_cores_of_hosts(sorted(os.sched_getaffinity(0)), self._n_hosts, self._bind))
        )
        try:
            self.folder = Path(tempfile.mkdtemp(prefix=_folder_prefix(self.name)))
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all processes in the lab and remove it; harmless a second time."""
        if self._claim is not None:
            _remove(self.name)
            self._claim.release()
            self._claim = None

    @property
    def switch(self) -> str:
        """The namespace of the switch, whose ports are ``port0``, ``port1`` and so on."""
        return f"{self.name}-switch"

    def command(self, host: int, words: list[str]) -> list[str]:
        """Return the words that run a program on a host and its cores."""
        name = self.hosts[host].name
        cores = ",".join(map(str, self.hosts[host].cores))
        return [
            "taskset",
            "-c",
            cores,
            "ip",
            "netns",
            "exec",
            name,
            "unshare",
            "--uts",
            "sh",
            "-c",
            _ENTER,
            name,
            *words,
        ]

    def pids(self, host: int | None = None) -> list[int]:
        """Return the processes that run on a host, or on all."""
        hosts = self.hosts if host is None else (self.hosts[host],)
        return [pid for each in hosts for pid in _pids(each.name)]

    def end_processes(self) -> None:
        """End all processes on all hosts: asked first, killed 2 s later."""
        _end_processes([host.name for host in self.hosts])

    def cut(self, host: int) -> None:
        """Pull a host's cable: packets to and from it are lost, and nobody is told."""
        run_tool("ip", "-n", self.switch, "link", "set", f"port{host}", "down")

    def mend(self, host: int) -> None:
        """Put a host's cable back."""
        run_tool("ip", "-n", self.switch, "link", "set", f"port{host}", "up")

    def limits(self, host: int) -> tuple[str, str]:
        """Return what ``tc`` says of a host's wire: of what leaves the host, and of what reaches it."""
        return (
            run_tool("tc", "-n", self.hosts[host].name, "qdisc", "show", "dev", _DEVICE).strip(),
            run_tool("tc", "-n", self.switch, "qdisc", "show", "dev", f"port{host}").strip(),
        )

    def _build(self) -> None:
        switch = self.switch
        run_tool("ip", "netns", "add", switch)
        run_tool("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        run_tool("ip", "-n", switch, "link", "set", "bridge", "up")
        for host in self.hosts:
            port = f"port{host.index}"
            run_tool("ip", "netns", "add", host.name)
            pair = ["name", _DEVICE, "netns", host.name, "type", "veth", "peer", "name", port, "netns", switch]
            run_tool("ip", "link", "add", *pair)
            # Both ends: what a host receives is limited too, else several senders reach it at several times the rate.
            run_tool("tc", "-n", host.name, *self.link.words(_DEVICE))
            run_tool("tc", "-n", switch, *self.link.words(port))
            run_tool("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
            address = f"{host.address}/{_SUBNET.prefixlen}"
            run_tool("ip", "-n", host.name, "address", "add", address, "dev", _DEVICE)
            for device in ("lo", _DEVICE):
                run_tool("ip", "-n", host.name, "link", "set", device, "up")


def _cores_of_hosts(cores: list[int], n_hosts: int, bind: bool = True) -> list[tuple[int, ...]]:
    """Share cores out, so that hosts do not compute with one another's and ranks see how many they have.

    Where there are more hosts than cores, each has one, which it shares with others.
    """
    if not bind:
        return [tuple(cores)] * n_hosts
    shares = core_shares(cores, n_hosts) or [[cores[index % len(cores)]] for index in range(n_hosts)]
    return [tuple(share) for share in shares]


def _remove(name: str) -> None:
    """Remove the namespaces of a lab, with the processes in them."""
    mine = re.compile(rf"{re.escape(name)}-(host\d+|switch)")
    with suppress(FileNotFoundError):
        namespaces = [path.name for path in _NAMESPACES.iterdir() if mine.fullmatch(path.name)]
        _end_processes(namespaces)
        for namespace in namespaces:
            run_tool("ip", "netns", "delete", namespace)
    for folder in Path(tempfile.gettempdir()).glob(f"{_folder_prefix(name)}*"):
        shutil.rmtree(folder, ignore_errors=True)


def _folder_prefix(name: str) -> str:
    return f"multiring-{name}."


def _pids(namespace: str) -> list[int]:
    return [int(word) for word in run_tool("ip", "netns", "pids", namespace).split()]


def _end_processes(namespaces: list[str]) -> None:
    """End what runs in namespaces; nothing else can be meant, as only a lab's processes are in them."""
    kill_at = time.monotonic() + _TERMINATE_S
    told: set[int] = set()
    while running := {pid for namespace in namespaces for pid in _pids(namespace)} - {os.getpid()}:
        killing = time.monotonic() > kill_at
        for pid in running if killing else running - told:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if killing else signal.SIGTERM)
        told |= running
        time.sleep(0.02)
