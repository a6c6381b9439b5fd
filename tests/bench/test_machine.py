"""Memory and places, from files and variables that the tests write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from multiring.bench import machine
from multiring.bench.world import LocalPlace, local_place, under_mpi
from multiring.collectives.drivers.room import available_bytes
from multiring.errors import ArgumentError


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = "MemTotal:  8000000 kB\nMemFree: 1 kB\nMemAvailable:    1000000 kB\n"


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({}, 1000000 * 1024),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 1000000 * 1024),
        (
            {
                "proc/self/cgroup": "0::/job/step\n",
                "sys/fs/cgroup/job/memory.max": "5000000\n",
                "sys/fs/cgroup/job/memory.current": "3000000\n",
                "sys/fs/cgroup/job/step/memory.max": "9000000\n",
                "sys/fs/cgroup/job/step/memory.current": "1000000\n",
            },
            2000000,
        ),
        (
            {
                "proc/self/cgroup": "8:pids:/\n4:cpu,memory:/job\n0::/\n",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "700\n",
                "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "900\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "1\n",
            },
            0,
        ),
    ],
    ids=["no group", "no limit", "version 2, nested", "version 1"],
)
def test_b123_memory_is_what_is_free_here(tmp_path: Path, files: dict[str, str], available: int) -> None:
    assert available_bytes(tree(tmp_path, {"proc/meminfo": MEMINFO, **files})) == available


def test_b123_memory_is_shared_by_the_ranks_of_a_machine(tmp_path: Path) -> None:
    root = tree(tmp_path, {"proc/meminfo": MEMINFO})
    machine.check_memory(250_000 * 1024, 4, "64M", root)
    with pytest.raises(
        ArgumentError, match=r"-e: got 64M, which needs 244.1 MiB for each of 4 ranks on this machine, 976"
    ):
        machine.check_memory(250_001 * 1024, 4, "64M", root)


def test_binding_gives_each_rank_its_own_core_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 5, 7})
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: bound.append(set(cores)))
    assert machine.bind_to_core(LocalPlace(1, 3, 1, 3)) == "core 5"
    assert machine.bind_to_core(LocalPlace(1, 4, 1, 4)) == "not bound: 4 ranks on 3 cores"
    assert bound == [{5}]


@pytest.mark.parametrize(
    ("environment", "place", "mpi"),
    [
        ({}, LocalPlace(0, 1, 0, 1), False),
        (
            {"MULTIRING_RANK": "3", "MULTIRING_SIZE": "4", "MULTIRING_LOCAL_RANK": "1", "MULTIRING_LOCAL_SIZE": "2"},
            LocalPlace(3, 4, 1, 2),
            False,
        ),
        (
            {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "7", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
            LocalPlace(1, 2, 1, 2),
            True,
        ),
        (
            {
                "OMPI_COMM_WORLD_RANK": "0",
                "OMPI_COMM_WORLD_SIZE": "2",
                "OMPI_COMM_WORLD_LOCAL_RANK": "0",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
            },
            LocalPlace(0, 2, 0, 1),
            True,
        ),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, LocalPlace(1, 2, 1, 2), False),
        ({"PMI_RANK": "1"}, LocalPlace(0, 1, 0, 1), False),
    ],
    ids=["alone", "ours", "mpich", "openmpi", "torchrun", "stale"],
)
def test_places_are_read_from_every_launcher(environment: dict[str, str], place: LocalPlace, mpi: bool) -> None:
    assert local_place(environment) == place
    assert under_mpi(environment) is mpi
