"""How much memory this process may still take: the machine's and its control groups' limits."""

from __future__ import annotations

import os
from pathlib import Path

from multiring.errors import ArgumentError

__all__ = ["available_bytes", "heap_limit_bytes"]

_UNLIMITED = 1 << 60


def available_bytes(root: Path = Path("/")) -> int:
    """Return how many bytes this machine, or this process's control group, can still give.

    Parameters
    ----------
    root : Path
        Where ``proc`` and ``sys`` are, for tests.
    """
    available = _UNLIMITED
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    for limit, used in _control_groups(root):
        available = min(available, max(0, limit - used))
    return available


def heap_limit_bytes() -> int | None:
    """Return the most symmetric memory of this process that ``MULTIRING_HEAP_BYTES`` allows; None if it is not set.

    Raises
    ------
    ArgumentError
        If it is no number of bytes.
    """
    limit = os.environ.get("MULTIRING_HEAP_BYTES")
    if limit is not None and not limit.isdecimal():
        raise ArgumentError(f"MULTIRING_HEAP_BYTES: got {limit!r}, wanted a number of bytes")
    return int(limit) if limit is not None else None


def _control_groups(root: Path) -> list[tuple[int, int]]:
    """Return (limit, used) of the memory control groups, versions 2 and 1, that this process is in."""
    found = []
    top = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            base, names = top, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base, names = top / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        # A container sees its own group at the top; outside, the group and all above it count.
        group = base / path.strip("/")
        while True:
            limit, used = (_read(group / name).strip() for name in names)
            if limit.isdecimal() and used.isdecimal() and int(limit) < _UNLIMITED:
                found.append((int(limit), int(used)))
            if group == base:
                break
            group = group.parent
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
