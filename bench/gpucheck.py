"""``python -m multiring.bench.gpucheck``: what only a GPU can show, in at most five minutes on one GPU.

Every kernel against the host's, bit for bit, at odd sizes and alignments and beyond 2**31 bytes; the bandwidth of each
kernel as a share of a device-to-device copy in the same run; CUDA IPC between two processes; and collectives between
processes on this GPU, stepped and fused. Prints a table, and
writes everything as JSON with ``--json``. Without a GPU it says so and exits 0.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from multiring.errors import ArgumentError
from multiring.kernels.cuda.launch import Launcher, launcher

__all__ = ["check_kernels", "check_ranks", "main", "measure", "why_no_gpu"]

SIZES = (0, 1, 7, 33, 4099, 100_003)
OFFSETS = (0, 1, 5)
BANDWIDTH_BYTES = 256 << 20
REPEATS = 15
RANK_SIZES = (4 << 10, 1 << 20, 64 << 20)
"""Bytes of the all_reduce calls between processes that are timed."""
HUGE_BYTES = (1 << 31) + 4096 + 3


def why_no_gpu() -> str | None:
    """Return why there is no GPU to check, or None."""
    try:
        launcher()
    except ArgumentError as error:
        return str(error)
    return None


def check_kernels(
    where: Launcher, sizes: Sequence[int], offsets: Sequence[int], only: str = "", deadline: float | None = None
) -> dict[str, str]:
    """Compare kernels with the host's.

    Returns
    -------
    dict of str to str
        By name: ``"ok"``, what differs, or ``"not reached"`` after the deadline (of ``time.monotonic``).
    """
    from multiring.bench.gpu_cases import Difference, cases

    results: dict[str, str] = {}
    for case in cases():
        if only not in case.name:
            continue
        if deadline is not None and time.monotonic() > deadline:
            results[case.name] = "not reached"
            continue
        results[case.name] = "ok"
        for count in sizes:
            for offset in offsets:
                generator = np.random.default_rng([count, offset])
                try:
                    case.run(where, count, offset, generator)
                except Difference as difference:
                    results[case.name] = f"{count} elements at offset {offset}: {difference}"
    return results


# --- on the GPU only ------------------------------------------------------------------------------------------------


def _compile_one(number: int, capability: tuple[int, int]) -> None:
    from multiring.kernels.cuda.catalog import every_kernel
    from multiring.kernels.cuda.compile import build

    build(every_kernel()[number], [capability])


def compile_all(capability: tuple[int, int], timeout_s: float) -> None:
    """Fill the cache with every kernel of one architecture, on all cores."""
    from multiring.kernels.cuda.catalog import every_kernel

    numbers = [k for k, kernel in enumerate(every_kernel()) if not kernel.name.startswith(("fused", "stepped"))]
    end = time.monotonic() + timeout_s
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(_compile_one, k, capability) for k in numbers]
        for future in futures:
            try:
                future.result(max(end - time.monotonic(), 0.001))
            except TimeoutError:
                pool.shutdown(wait=False, cancel_futures=True)
                return


def _times_us(runtime: Any, launches: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Return the median time of each launch, measured in turn."""
    events = runtime.eventCreate(), runtime.eventCreate()
    found: dict[str, list[float]] = {name: [] for name in launches}
    for go in launches.values():
        go()
    for _ in range(REPEATS):
        for name, go in launches.items():
            runtime.eventRecord(events[0], 0)
            go()
            runtime.eventRecord(events[1], 0)
            runtime.eventSynchronize(events[1])
            found[name].append(1000 * runtime.eventElapsedTime(*events))
    for event in events:
        runtime.eventDestroy(event)
    return {name: float(np.median(times)) for name, times in found.items()}


def measure(where: Any, n_bytes: int = BANDWIDTH_BYTES) -> list[dict[str, Any]]:
    """Return the bandwidth of the main kernels, and of a device copy in the same run."""
    from cupy.cuda import runtime

    from multiring.kernels.cuda import calls
    from multiring.kernels.cuda.arguments import View
    from multiring.kernels.dtypes import DTYPES

    d = DTYPES
    areas = [where.allocate(n_bytes) for _ in range(6)]
    zeros = np.zeros(n_bytes, np.uint8)
    for area in areas:
        where.upload(area, zeros)

    def view(k: int, dtype: str, count: int | None = None, first: int = 0) -> View:
        kind = d[dtype]
        return View(areas[k] + first * kind.itemsize, n_bytes // kind.itemsize if count is None else count, kind)

    n32, pieces = n_bytes // 4, 1000
    share = n32 // pieces
    small = [view(0, "float32", share - 3, k * share) for k in range(pieces)]
    total = sum(v.count for v in small)
    adam = {"scale": 1.0, "shrink": 1.0, "beta1": 0.9, "rest1": 0.1, "beta2": 0.999, "rest2": 0.001, "step": 0.1,
            "correction": 1.0, "epsilon": 1e-8}  # fmt: skip
    tensor = calls.Tensor(
        view(0, "bfloat16", n32), [view(k, "float32") for k in (1, 2, 3)], adam, view(4, "bfloat16", n32)
    )
    work: dict[str, tuple[Callable[[], None], float]] = {
        "device copy (cudaMemcpyAsync)": (
            lambda: runtime.memcpyAsync(areas[1], areas[0], n_bytes, runtime.memcpyDeviceToDevice, 0),
            2.0 * n_bytes,
        ),
        "copy float32": (calls.copy(view(0, "float32"), view(1, "float32"), where=where), 2.0 * n_bytes),
        "cast float32 to bfloat16": (
            calls.cast(view(0, "float32"), view(1, "bfloat16", n32), where=where), 1.5 * n_bytes,
        ),
        "cast bfloat16 to float32": (
            calls.cast(view(0, "bfloat16", n32), view(1, "float32"), where=where), 1.5 * n_bytes,
        ),
        "pack 1000 x float32 as bfloat16": (calls.pack(small, view(1, "bfloat16", total), where=where), 6.0 * total),
        "pack 1000 x float32": (calls.pack(small, view(1, "float32", total), where=where), 8.0 * total),
        "update adamw, bfloat16 gradient and weight": (calls.update("adamw", [tensor], where=where), 28.0 * n32),
    }  # fmt: skip
    for dtype in ("float32", "bfloat16", "float16", "int8"):
        for n in (2, 4):
            prepared = calls.reduce([view(k, dtype) for k in range(n)], [view(5, dtype)], "sum", where=where)
            work[f"reduce {n} x {dtype}"] = prepared, (n + 1.0) * n_bytes
    times = _times_us(runtime, {name: go for name, (go, _) in work.items()})
    for area in areas:
        where.free(area)
    rows: list[dict[str, Any]] = [
        {"kernel": name, "time_us": times[name], "gbs": moved / times[name] / 1e3} for name, (_, moved) in work.items()
    ]
    for row in rows:
        row["share"] = row["gbs"] / rows[0]["gbs"]
    return rows


def check_huge(where: Any) -> str:
    """Copy and reduce more than 2**31 bytes, and look at all of them."""
    from multiring.kernels.cuda import calls
    from multiring.kernels.cuda.arguments import View
    from multiring.kernels.dtypes import DTYPES

    kind = DTYPES["uint8"]
    areas = [where.allocate(HUGE_BYTES + 64) for _ in range(2)]
    try:
        block = np.arange(251, dtype=np.uint8)  # 251 is prime: no power of two is a period
        ramp = np.resize(block, 64 << 20)
        for first in range(0, HUGE_BYTES, ramp.size):
            piece = np.roll(ramp, -(first % 251))[: HUGE_BYTES - first] if first else ramp
            where.upload(areas[0] + 3 + first, np.resize(np.roll(block, -(first % 251)), len(piece)))
        views = [View(area + 3, HUGE_BYTES, kind) for area in areas]
        calls.copy(views[0], views[1], where=where)()
        calls.reduce(views, [views[1]], "sum", where=where)()
        found = np.empty(64 << 20, np.uint8)
        for first in range(0, HUGE_BYTES, found.size):
            part = found[: HUGE_BYTES - first]
            where.download(part, areas[1] + 3 + first)
            wanted = np.resize(np.roll(block, -(first % 251)), len(part))
            if not np.array_equal(part, wanted + wanted):
                return f"differs after byte {first}"
        return "ok"
    finally:
        for area in areas:
            where.free(area)


CHILD = """
import sys
import numpy as np
from multiring.kernels.cuda import calls
from multiring.kernels.cuda.arguments import View
from multiring.kernels.cuda.launch import launcher
from multiring.kernels.dtypes import DTYPES
from cupy.cuda import runtime

where = launcher()
address = runtime.ipcOpenMemHandle(bytes.fromhex(sys.argv[1]))
n = int(sys.argv[2])
x, out = (View(address + 4 * n * k, n, DTYPES["float32"]) for k in range(2))
calls.reduce([x, x, x], [out], "sum", where=where)()
where.synchronize()
runtime.ipcCloseMemHandle(address)
"""


def check_ipc(where: Any) -> str:
    """Let a second process open this one's memory, reduce in it, and look at the result here."""
    from cupy.cuda import runtime

    n = 1 << 20
    address = where.allocate(2 << 22)
    try:
        where.upload(address, np.arange(n, dtype=np.float32))
        handle = bytes(runtime.ipcGetMemHandle(address)).hex()
        done = subprocess.run(
            [sys.executable, "-c", CHILD, handle, str(n)], capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode:
            return f"the other process failed: {done.stderr.strip().splitlines()[-1:]}"
        found = np.empty(n, np.float32)
        where.download(found, address + 4 * n)
        return "ok" if np.array_equal(found, 3 * np.arange(n, dtype=np.float32)) else "the result differs"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        where.free(address)


def check_ranks(mode: str, n_ranks: int, sizes: Sequence[int], timeout_s: float) -> dict[str, Any]:
    """Run collectives between processes, all on this GPU, by ``multiring launch``.

    Parameters
    ----------
    mode : str
        ``"stepped"`` or ``"fused"``.
    n_ranks : int
    sizes : sequence of int
        Bytes of the all_reduce calls that are timed.
    timeout_s : float

    Returns
    -------
    dict
        ``collectives``: by name, ``"ok"`` or what differs; ``times_us`` by bytes; or ``error``.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        program = [sys.executable, "-m", "multiring.bench.gpu_ranks", str(answer), *map(str, sizes)]
        command = [sys.executable, "-m", "multiring", "launch", "-n", str(n_ranks), "--", *program]
        try:
            done = subprocess.run(
                command,
                env={**os.environ, "MULTIRING_CUDA_MODE": mode},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"error": f"not done within {timeout_s:.0f} s"}
        if not answer.exists():
            said = [line for line in done.stderr.splitlines() if line and not line.startswith("multiring launch:")]
            return {"error": (said or ["no message"])[-1]}
        found: dict[str, Any] = json.loads(answer.read_text())
        if done.returncode and all(text == "ok" for text in found["collectives"].values()):
            found["error"] = f"another rank than 0 failed with exit status {done.returncode}"
        return found


def environment(where: Any) -> dict[str, Any]:
    """Return card, driver and versions."""
    from cupy.cuda import runtime

    found: dict[str, Any] = {
        "gpu": runtime.getDeviceProperties(where.device)["name"].decode(),
        "capability": list(where.capability),
        "processors": where.processors,
        "driver_cuda": runtime.driverGetVersion(),
        "python": platform.python_version(),
    }
    for package in ("numba", "numba-cuda", "cupy-cuda13x", "cupy-cuda12x", "nvidia-nvvm"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Check and print; return 1 if anything differs."""
    parser = argparse.ArgumentParser(prog="python -m multiring.bench.gpucheck", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results")
    parser.add_argument("--only", default="", metavar="TEXT", help="comparisons whose name holds this")
    parser.add_argument(
        "--ranks", type=int, default=2, metavar="N", help="processes of collectives (default 2, 0: none)"
    )
    parser.add_argument("--seconds", type=float, default=270.0, help="time for compiling and comparing (default 270)")
    options = parser.parse_args(arguments)
    why = why_no_gpu()
    if why is not None:
        sys.stdout.write(f"gpucheck: nothing to check: {why}\n")
        return 0
    where: Any = launcher()
    start = time.monotonic()
    deadline = start + options.seconds
    report: dict[str, Any] = {}
    modes = ("stepped", "fused") if options.ranks else ()
    if hasattr(where, "capability"):
        report["environment"] = environment(where)
        sys.stdout.write(" ".join(f"{key}={value}" for key, value in report["environment"].items()) + "\n")
        compile_all(where.capability, options.seconds / 2)
        report["bandwidth"] = measure(where)
        for row in report["bandwidth"]:
            sys.stdout.write(
                f"{row['kernel']:<44} {row['time_us']:10.1f} us {row['gbs']:9.1f} GB/s {100 * row['share']:6.1f} %\n"
            )
        report["ipc"] = check_ipc(where)
        report["huge"] = check_huge(where)
        report["ranks"] = {mode: check_ranks(mode, options.ranks, RANK_SIZES, options.seconds / 4) for mode in modes}
        report["kernels"] = check_kernels(where, SIZES, OFFSETS, options.only, deadline)
    else:  # the simulator: the same comparisons, small
        report["ranks"] = {mode: check_ranks(mode, options.ranks, (), options.seconds / 4) for mode in modes}
        report["kernels"] = check_kernels(where, (0, 1, 37), (0, 1), options.only, deadline)
    report["seconds"] = time.monotonic() - start
    wrong = {name: text for name, text in report["kernels"].items() if text not in ("ok", "not reached")}
    wrong |= {name: report[name] for name in ("ipc", "huge") if report.get(name, "ok") != "ok"}
    for mode, found in report["ranks"].items():
        for n_bytes, time_us in found.get("times_us", {}).items():
            sys.stdout.write(f"all_reduce of {n_bytes} bytes on {options.ranks} ranks, {mode}: {time_us:.1f} us\n")
        wrong |= {f"{mode} {n}": t for n, t in found.get("collectives", {}).items() if t != "ok"}
        if "error" in found:
            wrong[f"{mode} ranks"] = found["error"]
    for name, text in wrong.items():
        sys.stdout.write(f"WRONG {name}: {text}\n")
    left = sum(text == "not reached" for text in report["kernels"].values())
    sys.stdout.write(
        f"{len(report['kernels'])} comparisons, {len(wrong)} wrong, {left} not reached, {report['seconds']:.0f} s\n"
    )
    if options.json:
        options.json.write_text(json.dumps(report, indent=1))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
