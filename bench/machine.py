"""What a benchmark says about the machine it ran on: memory, cores, versions."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from multiring.bench.sizes import format_bytes
from multiring.bench.world import LocalPlace
from multiring.collectives.drivers.room import available_bytes
from multiring.errors import ArgumentError

__all__ = [
    "bind_to_core",
    "boot",
    "check_memory",
    "commit",
    "cpu_name",
    "host_name",
    "versions",
]


def check_memory(needed_bytes: int, local_size: int, size_text: str, root: Path = Path("/")) -> None:
    """Refuse a sweep whose largest size does not fit, before it starts.

    Parameters
    ----------
    needed_bytes : int
        For one rank.
    local_size : int
        Ranks on this machine.
    size_text : str
        The size that was asked for, as written.
    root : Path
        See :func:`available_bytes`.

    Raises
    ------
    ArgumentError
        With both numbers.
    """
    available = available_bytes(root)
    if needed_bytes * local_size > available:
        raise ArgumentError(
            f"-e: got {size_text}, which needs {format_bytes(needed_bytes)} for each of {local_size} ranks on this "
            "machine, "
            f"{format_bytes(needed_bytes * local_size)} in all, and {format_bytes(available)} are available; "
            "wanted a smaller -e or fewer ranks"
        )


def bind_to_core(place: LocalPlace) -> str:
    """Bind this process to one core, if every rank of this machine can have its own.

    Returns
    -------
    str
        What was done: ``"core 3"``, or why not.
    """
    if not hasattr(os, "sched_setaffinity"):
        return "not bound: this system cannot"
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) == 1 and place.local_size > 1 and (os.cpu_count() or 1) >= place.local_size:
        return f"core {cores[0]}, by the launcher"
    if place.local_size > len(cores):
        return f"not bound: {place.local_size} ranks on {len(cores)} core{'s' if len(cores) > 1 else ''}"
    os.sched_setaffinity(0, {cores[place.local_rank]})
    return f"core {cores[place.local_rank]}"


def boot() -> str:
    """Return what tells this machine from others, whatever it is called."""
    return _read(Path("/proc/sys/kernel/random/boot_id")).strip() or host_name()


def host_name() -> str:
    """Return this machine's name."""
    return socket.gethostname()


def cpu_name() -> str:
    """Return the processor's name, as the system tells it."""
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def versions(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the versions of what took part."""
    found = {"python": platform.python_version(), "system": f"{platform.system()} {platform.release()}"}
    import multiring

    found["multiring"] = multiring.__version__
    for name in ("numpy", "numba", "llvmlite", "mpi4py"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {**found, **(extra or {})}


def commit() -> str | None:
    """Return the commit that this package is at, with ``+`` if the tree has changes; None outside a git checkout."""
    import multiring

    here = Path(multiring.__file__).resolve().parent
    if not (here.parent.parent / ".git").exists():
        return None
    try:
        head = _git(here, "rev-parse", "HEAD")
        changed = _git(here, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    # Not through the ranks' standard streams, and never asking anything.
    return subprocess.run(
        ["git", "-C", str(folder), *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=10,
        stdin=subprocess.DEVNULL,
    ).stdout.strip()


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
