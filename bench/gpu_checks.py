"""What ``multiring doctor`` looks at where there are several GPUs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

from multiring.bench.finding import Finding, State

__all__ = ["peer_access", "peer_findings"]


def peer_access() -> list[Finding]:
    """Whether every GPU of this machine reaches the memory of every other, as far as the driver says."""
    if not Path("/dev/nvidiactl").exists() or importlib.util.find_spec("cupy") is None:
        return []
    # A context on each GPU is left to a process of its own.
    code = (
        "from cupy.cuda import runtime as r\nn = r.getDeviceCount()\n"
        "pairs = [(a, b) for a in range(n) for b in range(n) if a < b]\n"
        "print(n, [p for p in pairs if not (r.deviceCanAccessPeer(*p) and r.deviceCanAccessPeer(*p[::-1]))])"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    except subprocess.TimeoutExpired:
        return [Finding(State.WARNING, "peer access", "CuPy did not answer within 60 s", "dmesg may say why")]
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return [Finding(State.WARNING, "peer access", f"CuPy: {last}", "reinstall CuPy for this driver's CUDA version")]
    return peer_findings(done.stdout)


def peer_findings(answer: str) -> list[Finding]:
    """Return what is to be said of ``COUNT [(a, b), ...]``: GPUs, and the pairs without peer access."""
    count, _, pairs = answer.strip().partition(" ")
    if count in ("0", "1"):
        return [Finding(State.OK, "peer access", f"{count} GPU: nothing to reach; ranks that share it run stepped")]
    if pairs == "[]":
        text = f"each of {count} GPUs reaches every other; each job tries it for real when it starts"
        return [Finding(State.OK, "peer access", text)]
    text = f"GPUs {pairs[1:-1]} do not reach each other: what they exchange goes through pinned host memory"
    fix = "look at the IOMMU and PCIe ACS (nvidia-smi topo -p2p r), or use GPUs under one switch"
    return [Finding(State.WARNING, "peer access", text, fix)]
