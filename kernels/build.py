"""From a Python function to machine code, once per machine: compiling, and the disk cache.

Numba's own cache notices an edit of the function that it caches and misses an edit of one that it calls. So the cache
folder is named by a hash of every source of this package, of the versions, and of the processor; within it every
kernel has its own folder and lock, and of many ranks that need a kernel at once one compiles and the others load.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import os
import platform
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from multiring.errors import ArgumentTypeError
from multiring.kernels.kinds import canonical, span_function, span_name

__all__ = ["cache_folder", "compiled", "native", "span_address", "warm"]

_lock = threading.RLock()
_spans: dict[Any, Any] = {}
_BUILT = "built"


def _digest() -> str:
    """Return a hash of all that machine code depends on."""
    import llvmlite
    import numba
    import numpy
    from numba.core.registry import cpu_target

    state = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        state.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    for text in (
        numba.__version__,
        llvmlite.__version__,
        numpy.__version__,
        platform.python_version(),
        *map(str, cpu_target.target_context.codegen().magic_tuple()),  # triple, processor, features
    ):
        state.update(text.encode() + b"\0")
    return state.hexdigest()[:24]


@functools.cache
def cache_folder() -> Path:
    """Return the folder that holds the compiled kernels of this version on this processor.

    ``MULTIRING_CACHE_DIR``, or ``multiring`` in the user's cache folder (``XDG_CACHE_HOME``, ``~/.cache``). Where that
    cannot be written, a private temporary folder of this process.
    """
    own, user = os.environ.get("MULTIRING_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME")
    base = Path(own) if own else Path(user or "~/.cache") / "multiring"
    try:
        folder = base.expanduser() / _digest()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        import atexit
        import shutil

        private, owner = tempfile.mkdtemp(prefix="multiring-"), os.getpid()

        def remove() -> None:
            if os.getpid() == owner:  # not when a forked child ends
                shutil.rmtree(private, ignore_errors=True)

        atexit.register(remove)
        folder = Path(private)
    return folder


def _cached(name: str, compile_with: Callable[[bool], Any]) -> Any:
    """Compile a kernel, or load it: with Numba's cache in a folder of the kernel's own, one process at a time."""
    from numba import config

    folder = cache_folder() / name
    with _lock, contextlib.ExitStack() as stack:
        try:
            folder.mkdir(exist_ok=True)
            if not (folder / _BUILT).exists():
                descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
                stack.callback(os.close, descriptor)
                # Some network file systems have no locks: then several ranks compile, which is slow and not wrong.
                with contextlib.suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
            for setting, value in (("CACHE_DIR", str(folder)), ("CACHE_LOCATOR_CLASSES", "")):
                stack.callback(setattr, config, setting, getattr(config, setting, ""))
                setattr(config, setting, value)
            compiled = compile_with(True)
            (folder / _BUILT).touch()
            return compiled
        except OSError:  # The disk is full, or the folder went away: the cache is a convenience.
            return compile_with(False)


def _signature() -> Any:
    from numba import types

    return types.void(*[types.int64] * 6)


def span_address(kind: str, **spec: Any) -> int:
    """Return the address of the machine code of a span kernel, compiled or loaded at its first use.

    Parameters
    ----------
    kind, **spec
        See :func:`multiring.kernels.kinds.span_function`. A custom reduction is compiled once per process and not
        kept on disk: nothing says whether the functions that it calls have changed.
    """
    return int(_span(kind, **spec).address)


def _span(kind: str, **spec: Any) -> Any:
    from numba import cfunc

    spec = canonical(kind, spec)
    key = (kind, tuple(sorted(spec.items())))
    found = _spans.get(key)
    if found is not None:
        return found
    with _lock:
        if key not in _spans:
            if kind == "reduce" and spec["operation"].function is not None:
                _spans[key] = _custom(kind, spec)
            else:
                function = span_function(kind, **spec)
                _spans[key] = _cached(
                    span_name(kind, **spec),
                    lambda cache: cfunc(_signature(), cache=cache, error_model="numpy")(function),
                )
        return _spans[key]


def _custom(kind: str, spec: dict[str, Any]) -> Any:
    from numba import cfunc, njit
    from numba.core.errors import NumbaError

    operation = spec["operation"]
    function = operation.function
    if not hasattr(function, "py_func"):
        function = njit(function, error_model="numpy")
    spec = {**spec, "operation": dataclasses.replace(operation, function=function)}
    try:
        return cfunc(_signature(), error_model="numpy")(span_function(kind, **spec))
    except (NumbaError, NotImplementedError) as error:
        reason = next((line.strip() for line in str(error).splitlines()[1:] if line.strip()), str(error))
        name, wide = getattr(function, "__name__", "?"), spec["accumulate"].name
        raise ArgumentTypeError(
            f"op: Numba cannot compile {name}(a, b) of multiring.reduction for two {wide} scalars: got {reason!r}, "
            f"wanted a function of two scalars that returns one; try numba.njit({name}) on two {wide} values"
        ) from error


def native(function: Callable[..., Any], signature: Any) -> Callable[..., Any]:
    """Compile a function without the interpreter lock and return the quickest way to call it.

    Parameters
    ----------
    function : callable
        A plain module-level function.
    signature : numba signature
        Of its arguments; calls convert to those types.

    Returns
    -------
    callable
        The overload's own entry point where this version of Numba has it, about 0.1 us quicker than the dispatcher.
    """
    return compiled(function, signature, f"{function.__module__}.{function.__qualname__}")


def compiled(function: Callable[..., Any], signature: Any, name: str | None) -> Callable[..., Any]:
    """As :func:`native`, for a function that a factory made.

    Parameters
    ----------
    function : callable
    signature : numba signature
    name : str or None
        What distinguishes it from all others, fit for a file name; None: compiled for this process, not kept on disk.
    """
    from numba import njit

    def compile_with(cache: bool) -> Any:
        return njit(signature, nogil=True, error_model="numpy", cache=cache)(function)

    dispatcher = compile_with(False) if name is None else _cached(name, compile_with)
    overloads = list(dispatcher.overloads.values())
    entry_point = getattr(overloads[0], "entry_point", None) if len(overloads) == 1 else None
    return entry_point if callable(entry_point) else dispatcher


def warm(kinds: Iterable[tuple[str, dict[str, Any]]]) -> None:
    """Compile or load many span kernels.

    Parameters
    ----------
    kinds : iterable of (kind, specification)
        As for :func:`span_address`.
    """
    for kind, spec in kinds:
        span_address(kind, **spec)
