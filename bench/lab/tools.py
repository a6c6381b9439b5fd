"""``ip`` and ``tc`` of iproute2: whether they can be used here, and one line where they fail."""

from __future__ import annotations

import os
import shutil
import subprocess

from multiring.errors import LaunchError

__all__ = ["run_tool", "why_no_lab"]

_PROGRAMS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "taskset": "util-linux"}


def why_no_lab() -> str | None:
    """Say what this process lacks to build hosts; None where nothing is missing."""
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        packages = ", ".join(sorted({_PROGRAMS[name] for name in missing}))
        return f"got no {' nor '.join(missing)} on PATH; install {packages}, or put /usr/sbin on PATH"
    if os.geteuid() != 0:
        return f"got user {os.geteuid()}, wanted root: network namespaces need it; use sudo"
    return None


def run_tool(*words: str) -> str:
    """Run ``ip`` or ``tc`` and return what it printed.

    Raises
    ------
    LaunchError
        It failed: with the command and its own words, in one line.
    """
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"lab: {' '.join(words)}: {error}; iproute2 is needed") from None
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split()) or f"exit status {done.returncode}"
        raise LaunchError(
            f"lab: got an error from {' '.join(words)}: {said}; wanted a kernel that lets this process make network "
            "namespaces, veth pairs, bridges and tbf (in a container: as privileged)"
        )
    return done.stdout
