"""Which functions CUDA code may call, and what stands in their place there.

Numba's CUDA target sees what the host registers with ``numba.extending``: without care a primitive would be compiled
to the host's code, a system call for instance, and fail at link time or not at all. :func:`install` therefore enters
every function of this project under its own name: a PTX twin, the plain function compiled for the device, or a
refusal.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

__all__ = ["SIMULATED", "Twin", "device", "device_function", "install", "native_bfloat16", "polymorphic", "twin"]

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")
"""Whether this process runs CUDA kernels in Numba's simulator, which Numba decides when it is imported."""

Twin = Callable[[Any, Any, Any, Any], Any]
"""``twin(context, builder, signature, arguments) -> LLVM value``, as the host's lowerings."""

_twins: dict[Callable[..., Any], tuple[Any, Twin]] = {}
_generic: dict[Callable[..., Any], tuple[Callable[..., Any], Twin]] = {}
_devices: list[Callable[..., Any]] = []
_dispatchers: list[Any] = []
"""Numba's types hold them weakly."""


def twin(signature: Any, lowering: Twin, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Give a Python function its CUDA code; with ``function`` at once, otherwise as a decorator.

    Parameters
    ----------
    signature : numba signature
        Fixed argument and return types.
    lowering : callable
        See :data:`Twin`.
    function : callable, optional
        A primitive that is defined elsewhere.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _twins[function] = signature, lowering
        return function

    return register(function) if function is not None else register


def polymorphic(typing: Callable[..., Any], lowering: Twin) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a Python function CUDA code whose types depend on its arguments.

    Parameters
    ----------
    typing : callable
        ``typing(context, arguments) -> signature``, on Numba's types.
    lowering : callable
        See :data:`Twin`.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _generic[function] = typing, lowering
        return function

    return register


def device(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let CUDA code call a plain module-level function."""
    _devices.append(function)
    return function


def device_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what a kernel's closure holds to call a function that is made at run time."""
    if SIMULATED:
        return getattr(function, "py_func", function)
    from numba import cuda

    return cuda.jit(device=True, forceinline=True)(getattr(function, "py_func", function))


_installed: dict[str, Any] = {}


def install(native_bfloat16: bool) -> None:
    """Enter all functions into Numba's CUDA target; for compiling only, never in the simulator.

    Parameters
    ----------
    native_bfloat16 : bool
        Whether the next kernels are for an architecture that rounds to bfloat16 by itself. Numba keeps one compiled
        form of a device function whatever the architecture, so all are entered anew when this changes.
    """
    if not _installed:
        _enter_primitives()
    from numba.cuda import types

    from multiring.kernels.scalars import SCALARS

    functions = dict.fromkeys((*SCALARS, *_devices))
    state = {"native_bfloat16": native_bfloat16, "functions": len(functions)}
    if _installed == state:
        return
    _installed.update(state)
    for function in functions:
        if function not in _twins:
            _dispatchers.append(device_function(function))
            _replace(function, types.Dispatcher(_dispatchers[-1]))


def native_bfloat16() -> bool:
    """Return what the functions were last installed for."""
    return bool(_installed["native_bfloat16"])


def _replace(function: Callable[..., Any], kind: Any) -> None:
    from numba.cuda.descriptor import cuda_target

    typing = cuda_target.typing_context
    if typing._lookup_global(function) is not None:
        typing._remove_global(function)
    typing.insert_global(function, kind)


def _enter_primitives() -> None:
    from numba.core.typing.templates import builtin_registry
    from numba.cuda import types
    from numba.cuda.core.imputils import Registry
    from numba.cuda.descriptor import cuda_target
    from numba.cuda.typing.templates import AbstractTemplate, ConcreteTemplate

    # All that registers something, on the host or here.
    for name in ("cuda.lanes", "cuda.ptx", "cuda.step", "interpreter", "mail", "rules"):
        importlib.import_module(f"multiring.kernels.{name}")
    # What the host has registered comes in now, so that it cannot come in later and be preferred.
    cuda_target.typing_context.refresh()
    cuda_target.target_context.refresh()
    registry = Registry("multiring")

    def enter(function: Callable[..., Any], base: type[Any], lowering: Twin, *arguments: Any, **members: Any) -> None:
        # The key is new: under the function itself the target would find the host's code as well.
        key = (function, "cuda")
        template = type(f"{function.__name__}_cuda", (base,), {"key": key, **members})
        _replace(function, types.Function(template))
        registry.lower(key, *arguments)(lowering)

    for function, _ in builtin_registry.globals:
        if (getattr(function, "__module__", None) or "").startswith("multiring."):
            _replace(function, types.Function(_refusal(function, AbstractTemplate)))
    for function, (signature, lowering) in _twins.items():
        enter(function, ConcreteTemplate, lowering, *signature.args, cases=[signature])
    for function, (kind, lowering) in _generic.items():

        def generic(self: Any, arguments: Any, keywords: Any, kind: Callable[..., Any] = kind) -> Any:
            return kind(self.context, arguments)

        enter(function, AbstractTemplate, lowering, types.VarArg(types.Any), generic=generic, prefer_literal=True)
    cuda_target.target_context.install_registry(registry)


def _refusal(function: Callable[..., Any], base: type[Any]) -> type[Any]:
    from numba.core.errors import TypingError

    def generic(self: Any, arguments: Any, keywords: Any) -> Any:
        raise TypingError(f"{function.__module__}.{function.__name__} has no CUDA twin: it is for the host only")

    return type(f"{function.__name__}_refused", (base,), {"key": (function, "refused"), "generic": generic})
