"""Host memory or GPUs: what all ranks agree on, and which GPU is whose."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path

from multiring.collectives.drivers.device import Device, open_device, why_no_device
from multiring.errors import ArgumentError
from multiring.kernels.cuda.homes import SIMULATED

__all__ = ["agree_on_device", "device_for_all", "device_of"]

Exchange = Callable[[bytes], list[bytes]]


def agree_on_device(wish: str, exchange: Exchange) -> str:
    """Return ``"host"`` or ``"cuda"``, the same on every rank.

    Parameters
    ----------
    wish : str
        ``"auto"``: GPUs if every rank has one and CuPy; never the simulator.
    exchange : callable
        Collective: gives every rank the bytes of all.

    Raises
    ------
    ArgumentError
        On every rank, if one wants the host and another GPUs.
    """
    possible = wish == "auto" and _may_have_gpu() and why_no_device() is None
    answers = [json.loads(b) for b in exchange(json.dumps([wish, possible]).encode())]
    by_wish: dict[str, list[int]] = {}
    for rank, (said, _) in enumerate(answers):
        by_wish.setdefault(said, []).append(rank)
    if "host" in by_wish and "cuda" in by_wish:
        raise ArgumentError(
            f"device: got 'host' on ranks {by_wish['host']} and 'cuda' on ranks {by_wish['cuda']}, wanted one for all"
        )
    if "cuda" in by_wish or "host" in by_wish:
        return "cuda" if "cuda" in by_wish else "host"
    return "cuda" if all(can for _, can in answers) else "host"


def _may_have_gpu() -> bool:
    """Whether it is worth while to load CuPy: its import takes a quarter of a second."""
    return not SIMULATED and Path("/dev/nvidiactl").exists() and importlib.util.find_spec("cupy") is not None


def device_of(local_rank: int) -> Device:
    """Return this rank's GPU.

    ``MULTIRING_CUDA_DEVICE``, a number as CuPy counts; else the GPU that the caller has made current; else, of those
    visible, the one of this rank's number on its node.
    """
    if SIMULATED:
        return open_device()
    forced = os.environ.get("MULTIRING_CUDA_DEVICE")
    if forced is not None:
        if not forced.isdecimal():
            raise ArgumentError(f"MULTIRING_CUDA_DEVICE: got {forced!r}, wanted the number of a GPU, from 0")
        return open_device(int(forced))
    try:
        from cupy.cuda import runtime

        count, current = runtime.getDeviceCount(), runtime.getDevice()
    except Exception:  # open_device says what is wrong
        return open_device()
    return open_device(current if current or count == 0 else local_rank % count)


def device_for_all(local_rank: int, exchange: Exchange) -> Device:
    """Return this rank's GPU; if any rank has none, all raise."""
    device, error = None, ""
    try:
        device = device_of(local_rank)
    except ArgumentError as problem:
        error = str(problem)
    wrong = [f"rank {r}: {a.decode()}" for r, a in enumerate(exchange(error.encode())) if a]
    if wrong or device is None:
        raise ArgumentError("; ".join(wrong))
    return device
