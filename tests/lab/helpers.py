"""Running ``multiring lab``, and what tells whether anything of one is left."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from multiring.bench.lab.registry import FOLDER

LAB = [sys.executable, "-m", "multiring", "lab"]


def lab(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run ``multiring lab`` to its end."""
    return subprocess.run([*LAB, *words], capture_output=True, text=True, timeout=120, check=False, **more)


def name_of(said: str) -> str:
    """Return the name of the lab from the line that it prints."""
    return said.split(":")[1].strip()


def left_of(name: str) -> list[str]:
    """Return what is there of a lab."""
    folders = (Path("/run/netns"), FOLDER, Path(tempfile.gettempdir()))
    paths = [path for folder in folders if folder.is_dir() for path in folder.iterdir()]
    return [str(p) for p in paths if p.name.startswith((f"{name}-", f"multiring-{name}.")) or p.name == name]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, "did not happen within 60 s"
        time.sleep(0.01)
