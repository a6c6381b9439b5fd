"""A host is what its sysfs says, and no more than the process may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from multiring.errors import TopologyError
from multiring.topology import Cache, host_topology, load, read_host
from multiring.topology.host import parse_cpu_list


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


@pytest.fixture
def two_sockets(tmp_path: Path) -> Path:
    """Two sockets of two cores of two threads; thread siblings are n and n + 4."""
    system = tmp_path / "devices" / "system"
    write(system / "cpu" / "online", "0-7")
    for cpu in range(8):
        core, folder = cpu % 4, system / "cpu" / f"cpu{cpu}"
        write(folder / "topology" / "thread_siblings_list", f"{core},{core + 4}")
        write(folder / "topology" / "physical_package_id", str(core // 2))
        for index, (level, kind, size, shared) in enumerate(
            [
                (1, "Data", "48K", f"{core},{core + 4}"),
                (2, "Unified", "1024K", f"{core},{core + 4}"),
                (3, "Unified", "32M", "0-1,4-5" if core < 2 else "2-3,6-7"),
            ]
        ):
            cache = folder / "cache" / f"index{index}"
            write(cache / "level", str(level))
            write(cache / "type", kind)
            write(cache / "size", size)
            write(cache / "shared_cpu_list", shared)
    write(system / "node" / "node0" / "cpulist", "0-1,4-5")
    write(system / "node" / "node1" / "cpulist", "2-3,6-7")
    write(system / "node" / "node10" / "cpulist", "")
    return tmp_path


def test_sockets_numa_and_caches_are_read(two_sockets: Path) -> None:
    host = read_host(two_sockets, affinity=range(8))
    assert host.usable == tuple(range(8))
    assert host.cores == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert host.sockets == ((0, 1, 4, 5), (2, 3, 6, 7))
    assert host.numa == ((0, 1, 4, 5), (2, 3, 6, 7))
    assert len(host.caches) == 4 + 4 + 2
    assert host.caches[0] == Cache(1, "Data", 48 << 10, (0, 4))
    assert host.caches[-1] == Cache(3, "Unified", 32 << 20, (2, 3, 6, 7))


def test_only_allowed_cpus_make_cores(two_sockets: Path) -> None:
    host = read_host(two_sockets, affinity=[1, 2, 6, 99])
    assert host.usable == (1, 2, 6)
    assert host.cores == ((1,), (2, 6))
    assert host.sockets == ((0, 1, 4, 5), (2, 3, 6, 7))


def test_a_bare_container_is_one_socket_of_plain_cores(tmp_path: Path) -> None:
    host = read_host(tmp_path, affinity=[3, 1])
    assert host.usable == (1, 3)
    assert host.cores == ((1,), (3,))
    assert host.sockets == host.numa == ((1, 3),)
    assert host.caches == ()


def test_this_host_is_understood() -> None:
    host = read_host()
    assert set(host.usable) <= os.sched_getaffinity(0)
    assert sorted(cpu for core in host.cores for cpu in core) == list(host.usable)


def test_what_cannot_be_understood_is_an_error(two_sockets: Path) -> None:
    with pytest.raises(TopologyError, match=r"none of the allowed CPUs \[64\] is online"):
        read_host(two_sockets, affinity=[64])
    write(two_sockets / "devices/system/cpu/cpu3/cache/index2/size", "big")
    with pytest.raises(TopologyError, match="got cache level '3' of size 'big', wanted such as 2 and 1024K"):
        read_host(two_sockets, affinity=range(8))
    write(two_sockets / "devices/system/cpu/online", "0-")
    with pytest.raises(TopologyError, match="CPU list: got '0-', wanted numbers and ranges such as 0-3,8"):
        read_host(two_sockets, affinity=range(8))


def test_cpu_lists() -> None:
    assert parse_cpu_list("0-3,8,10-11\n") == (0, 1, 2, 3, 8, 10, 11)
    assert parse_cpu_list("\n") == ()
    for text in ("3-1", "a", "1-2-3", "-1"):
        with pytest.raises(TopologyError, match="CPU list: got"):
            parse_cpu_list(text)


def test_devices_of_a_host_claim_no_core_that_it_may_not_have() -> None:
    """More ranks than any host has cores: a rank is named, for no core is known to be its own."""
    n_ranks = 2 * (os.cpu_count() or 1) + 1
    assert host_topology(n_ranks).devices == tuple(f"rank {rank}" for rank in range(n_ranks))
    names = load(f"host-{n_ranks}").devices
    assert names == tuple(f"rank {rank}" for rank in range(n_ranks))
    assert not [name for name in load("host-3", 2).devices if "core" in name]


def test_ranks_on_a_host_read_each_other_through_shared_memory() -> None:
    topology = host_topology(3, latency_us=0.5, bandwidth_gbs=10.0)
    assert (topology.n_ranks, topology.n_nodes, topology.ranks_of(0)) == (3, 1, (0, 1, 2))
    (wire,) = topology.path(0, 2)
    assert (wire.latency_us, wire.bandwidth_gbs) == (0.5, 10.0)
    assert topology.path(1, 2) == (wire,)
    assert topology.path(2, 1) != (wire,)
    assert topology.path(1, 1) == ()
    with pytest.raises(TopologyError, match="host: got 0 ranks, wanted at least 1"):
        host_topology(0)
