"""From a kernel to machine code for one architecture, with no GPU and no driver, and once per machine.

Numba makes LLVM code of the Python function, NVVM makes PTX of it, nvJitLink a cubin. NVVM contracts ``a + b * c`` to
a fused multiply-add unless told not to, and Numba has no switch for that: it is turned off here. A cubin runs on
every driver of its toolkit's major version, which PTX of a newer compiler does not.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.metadata
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from multiring.errors import ArgumentError
from multiring.kernels.build import cache_folder
from multiring.kernels.cuda import homes
from multiring.kernels.cuda.ptx import NATIVE_BFLOAT16

__all__ = ["CAPABILITIES", "Built", "Kernel", "build", "cubin_folder"]

CAPABILITIES = ((7, 5), (8, 0), (9, 0), (10, 0))
"""What the tests and the report compile for: Turing, Ampere, Hopper, Blackwell."""

ENTRY = "multiring_kernel"
"""The name of every kernel's entry in its cubin."""

_PACKAGES = (
    "numba",
    "numba-cuda",
    "cuda-core",
    "nvidia-nvvm",
    "nvidia-nvjitlink",
    "nvidia-cuda-nvcc-cu12",
    "nvidia-nvjitlink-cu12",
)

_lock = threading.RLock()


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel, not yet compiled.

    Attributes
    ----------
    name : str
        Unique in one version, and fit for a file name.
    make : callable
        Returns the plain Python function, anew at each call.
    n_arguments : int
        All int64.
    threads : int
        Of a block.
    tile : int
        Elements that a block does at once: what grids are sized by.
    blocks_per_processor : int
        What registers are limited for.
    kept : bool
        Whether the cubin may be kept on disk: not for a user's function, whose callees nobody can hash.
    """

    name: str
    make: Callable[[], Callable[..., None]]
    n_arguments: int
    threads: int
    tile: int
    blocks_per_processor: int = 2
    kept: bool = True


@dataclass(frozen=True, slots=True)
class Built:
    """Machine code, and what the assembler said about it.

    Attributes
    ----------
    cubin : bytes
    ptx : str
    registers : int
        Of a thread.
    stack_bytes, spill_bytes : int
        Of a thread; spills are stores and loads together.
    """

    cubin: bytes
    ptx: str
    registers: int
    stack_bytes: int
    spill_bytes: int


def _version(package: str) -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return ""


@functools.cache
def cubin_folder() -> Path:
    """Return the folder of the cubins of these sources and this compiler."""
    state = hashlib.sha256()
    here = Path(__file__).parent
    for path in (*sorted(here.parent.glob("*.py")), *sorted(here.glob("*.py"))):
        state.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    for package in _PACKAGES:
        state.update(f"{package} {_version(package)}\0".encode())
    folder = cache_folder() / f"cuda-{state.hexdigest()[:24]}"
    folder.mkdir(exist_ok=True)
    return folder


def architecture(capability: tuple[int, int]) -> str:
    """Return the compiler's name of a compute capability: ``sm_90``."""
    return f"sm_{capability[0]}{capability[1]}"


@contextlib.contextmanager
def _pretend(capability: tuple[int, int]) -> Iterator[None]:
    """Answer for the driver: Numba asks the current device what a device function is compiled for."""
    from numba.cuda import dispatcher

    class Device:
        compute_capability = capability

    real = dispatcher.get_current_device
    dispatcher.get_current_device = Device
    try:
        yield
    finally:
        dispatcher.get_current_device = real


def _library(kernel: Kernel, capability: tuple[int, int]) -> Any:
    """Return Numba's code library of a kernel: LLVM code, good for every architecture with the same functions."""
    from numba.cuda import compiler, types

    homes.install(capability >= NATIVE_BFLOAT16)
    with _pretend(capability):
        library, _ = compiler._compile_pyfunc_with_fixup(
            kernel.make(),
            types.void(*[types.int64] * kernel.n_arguments),
            device=False,
            abi="numba",
            cc=capability,
            launch_bounds=(kernel.threads, kernel.blocks_per_processor),
        )
    library._nvvm_options["fma"] = False
    return library


def _assemble(library: Any, capability: tuple[int, int]) -> Built:
    from cuda.core import Linker, LinkerOptions, ObjectCode

    (ptx,) = library.get_asm_strs(cc=capability)
    mangled = re.search(r"\.entry\s+([^\s(]+)\(", ptx)
    if mangled is None:
        raise RuntimeError("the PTX has no entry")
    ptx = ptx.replace(mangled.group(1), ENTRY)
    options = LinkerOptions(arch=architecture(capability), ptxas_options=["-v"])
    linker = Linker(ObjectCode.from_ptx(ptx.encode()), options=options)
    cubin = bytes(linker.link("cubin").code)
    log = linker.get_info_log()
    registers = re.search(r"Used (\d+) registers", log)
    stack = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    if registers is None or stack is None:
        raise RuntimeError(f"the assembler's report cannot be read: {log!r}")
    return Built(cubin, ptx, int(registers.group(1)), int(stack.group(1)), int(stack.group(2)) + int(stack.group(3)))


_built: dict[tuple[str, tuple[int, int]], Built] = {}


def _load(folder: Path, capability: tuple[int, int]) -> Built | None:
    stem = folder / architecture(capability)
    try:
        facts = json.loads(stem.with_suffix(".json").read_text())
        return Built(stem.with_suffix(".cubin").read_bytes(), stem.with_suffix(".ptx").read_text(), **facts)
    except (OSError, ValueError, TypeError):
        return None


def _save(folder: Path, capability: tuple[int, int], built: Built) -> None:
    stem = folder / architecture(capability)
    facts = {key: value for key, value in asdict(built).items() if key not in ("cubin", "ptx")}
    # The facts come last: what has them is whole.
    for suffix, content in (
        (".cubin", built.cubin),
        (".ptx", built.ptx.encode()),
        (".json", json.dumps(facts).encode()),
    ):
        temporary = stem.with_suffix(f"{suffix}.{os.getpid()}")
        temporary.write_bytes(content)
        temporary.replace(stem.with_suffix(suffix))


def build(kernel: Kernel, capabilities: Iterable[tuple[int, int]]) -> dict[tuple[int, int], Built]:
    """Compile a kernel, or load it from the cache.

    Parameters
    ----------
    kernel : Kernel
    capabilities : iterable of (int, int)
        Compute capabilities. Several at once share the first half of the work.

    Raises
    ------
    ArgumentError
        In the simulator, which has no compiler, or for an architecture that the installed compiler does not know.
    """
    if homes.SIMULATED:
        raise ArgumentError("build: got Numba's simulator (NUMBA_ENABLE_CUDASIM), wanted a process without it")
    wanted = tuple(dict.fromkeys(capabilities))
    with _lock, contextlib.ExitStack() as stack:
        folder = None
        if kernel.kept:
            with contextlib.suppress(OSError):
                folder = cubin_folder() / kernel.name
                folder.mkdir(exist_ok=True)
        libraries = _Libraries(kernel, wanted)
        locked = False
        results: dict[tuple[int, int], Built] = {}
        for capability in wanted:
            key = kernel.name, capability
            if kernel.kept and key in _built:
                results[capability] = _built[key]
                continue
            found = _load(folder, capability) if folder else None
            if found is None and folder is not None and not locked:
                # Of many processes that need a kernel at once one compiles and the others load.
                with contextlib.suppress(OSError):
                    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
                    stack.callback(os.close, descriptor)
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                locked = True
                found = _load(folder, capability)
            if found is None:
                found = _assemble_or_refuse(kernel, libraries.of(capability), capability)
                if folder is not None:
                    with contextlib.suppress(OSError):
                        _save(folder, capability, found)
            results[capability] = found
            if kernel.kept:
                _built[key] = found
        return results


class _Libraries:
    """The LLVM code of a kernel: one for all architectures, unless it rounds to bfloat16 and one cannot."""

    def __init__(self, kernel: Kernel, capabilities: Sequence[tuple[int, int]]) -> None:
        self._kernel = kernel
        self._best = max(capabilities, default=(0, 0))
        self._found: dict[bool, Any] = {}

    def of(self, capability: tuple[int, int]) -> Any:
        """Return the code library for an architecture."""
        native = capability >= NATIVE_BFLOAT16
        if not native and self._best >= NATIVE_BFLOAT16:
            library = self.of(self._best)
            if "cvt.rn.bf16" not in library.get_llvm_str():
                return library
        if native not in self._found:
            self._found[native] = _library(self._kernel, capability)
        return self._found[native]


def _assemble_or_refuse(kernel: Kernel, library: Any, capability: tuple[int, int]) -> Built:
    from numba.cuda.cudadrv.error import CCSupportError

    try:
        return _assemble(library, capability)
    except CCSupportError as error:
        raise ArgumentError(
            f"{kernel.name}: got compute capability {capability[0]}.{capability[1]}, wanted one that the installed "
            f"compiler knows ({error}); numba-cuda[cu12] compiles for 7.0 and newer, numba-cuda[cu13] for 7.5 and newer"
        ) from error
