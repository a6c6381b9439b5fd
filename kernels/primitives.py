"""Memory and synchronisation primitives: one Python function each, with a machine-code twin.

The Python function is the meaning: it runs in plain Python (with a check of bounds and alignment, see
:mod:`multiring.kernels.memory`) and is what tests compare with. :func:`primitive` registers the LLVM code that
``numba.njit`` puts in its place. Everything above this module, the waiting protocol and the interpreter, is written
once, on these names.

Addresses and words are int64. Words are naturally aligned, so that every access is one access for the processor.
"""

from __future__ import annotations

import ctypes
import os
import platform
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import ConcreteTemplate, builtin_registry
from numba.extending import lower_builtin

from multiring.kernels import memory

__all__ = [
    "add_word",
    "call_span",
    "clock_ns",
    "compare_and_swap",
    "copy_bytes",
    "exchange_word",
    "fence",
    "futex_wait",
    "futex_wake",
    "load_acquire",
    "load_relaxed",
    "load_word",
    "pause",
    "poll_descriptors",
    "primitive",
    "restore_float_control",
    "set_float_control",
    "store_relaxed",
    "store_release",
    "store_word",
    "yield_processor",
]

I8, I32, I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
X86 = platform.machine() in ("x86_64", "AMD64")
SYSTEM_CALLS = {"poll": 7, "sched_yield": 24, "futex": 202} if X86 else {"ppoll": 73, "sched_yield": 124, "futex": 98}

Lowering = Callable[[Any, Any, Any, Any], Any]


def primitive(signature: Any, lowering: Lowering) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a Python function a machine-code twin for ``numba.njit``.

    Parameters
    ----------
    signature : numba signature
        Fixed argument and return types.
    lowering : callable
        ``lowering(context, builder, signature, arguments) -> LLVM value``.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        template = type(f"{function.__name__}_template", (ConcreteTemplate,), {"key": function, "cases": [signature]})
        builtin_registry.register_global(function, types.Function(template))
        lower_builtin(function, *signature.args)(lowering)
        return function

    return register


def _pointer(builder: Any, address: Any, pointee: Any) -> Any:
    return builder.inttoptr(address, pointee.as_pointer())


def _external(builder: Any, name: str, function_type: Any) -> Any:
    return cgutils.get_or_insert_function(builder.module, function_type, name)


def _system_call(builder: Any, number: int, *arguments: Any) -> Any:
    function = _external(builder, "syscall", ir.FunctionType(I64, [I64], var_arg=True))
    return builder.call(function, [I64(number), *arguments])


# --- plain and atomic words ---------------------------------------------------------------------------------------


def _lower_load(order: str | None) -> Lowering:
    def lowering(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(builder, arguments[0], I64)
        return builder.load_atomic(pointer, order, 8) if order else builder.load(pointer)

    return lowering


def _lower_store(order: str | None) -> Lowering:
    def lowering(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(builder, arguments[0], I64)
        if order:
            builder.store_atomic(arguments[1], pointer, order, 8)
        else:
            builder.store(arguments[1], pointer)
        return context.get_dummy_value()

    return lowering


def _lower_modify(operation: str) -> Lowering:
    def lowering(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.atomic_rmw(operation, _pointer(builder, arguments[0], I64), arguments[1], "seq_cst")

    return lowering


def _lower_compare_and_swap(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    pointer = _pointer(builder, arguments[0], I64)
    pair = builder.cmpxchg(pointer, arguments[1], arguments[2], "seq_cst", "seq_cst")
    return builder.extract_value(pair, 0)


_LOAD = types.int64(types.int64)
_STORE = types.void(types.int64, types.int64)
_MODIFY = types.int64(types.int64, types.int64)


@primitive(_LOAD, _lower_load(None))
def load_word(address: int) -> int:
    """Read a word that only this thread writes, or whose writer has been synchronised with."""
    return memory.words(address).value


@primitive(_STORE, _lower_store(None))
def store_word(address: int, value: int) -> None:
    """Write a word that nobody reads without synchronising first."""
    memory.words(address).value = int(value)


@primitive(_LOAD, _lower_load("monotonic"))
def load_relaxed(address: int) -> int:
    """Read a shared word, with no order to other accesses."""
    return memory.words(address).value


@primitive(_STORE, _lower_store("monotonic"))
def store_relaxed(address: int, value: int) -> None:
    """Write a shared word, with no order to other accesses."""
    memory.words(address).value = int(value)


@primitive(_LOAD, _lower_load("acquire"))
def load_acquire(address: int) -> int:
    """Read a shared word; what its writer wrote before releasing it is visible afterwards."""
    return memory.words(address).value


@primitive(_STORE, _lower_store("release"))
def store_release(address: int, value: int) -> None:
    """Write a shared word after everything written before it."""
    memory.words(address).value = int(value)


@primitive(_MODIFY, _lower_modify("xchg"))
def exchange_word(address: int, value: int) -> int:
    """Write a shared word and return the old value; a full fence."""
    word = memory.words(address)
    old, word.value = word.value, int(value)
    return old


@primitive(_MODIFY, _lower_modify("add"))
def add_word(address: int, value: int) -> int:
    """Add to a shared word and return the old value; a full fence."""
    word = memory.words(address)
    old = word.value
    word.value = old + int(value)
    return old


@primitive(types.int64(types.int64, types.int64, types.int64), _lower_compare_and_swap)
def compare_and_swap(address: int, expected: int, value: int) -> int:
    """Write ``value`` if the word holds ``expected``; return what it held; a full fence."""
    word = memory.words(address)
    old = word.value
    if old == expected:
        word.value = int(value)
    return old


def _lower_fence(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    builder.fence("seq_cst")
    return context.get_dummy_value()


@primitive(types.void(), _lower_fence)
def fence() -> None:
    """Order everything before against everything after, non-temporal stores too."""


# --- bytes --------------------------------------------------------------------------------------------------------


def _lower_copy(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    bytes_pointer = I8.as_pointer()
    function = _external(builder, "memmove", ir.FunctionType(bytes_pointer, [bytes_pointer, bytes_pointer, I64]))
    destination, source, n_bytes = arguments
    builder.call(function, [_pointer(builder, destination, I8), _pointer(builder, source, I8), n_bytes])
    return context.get_dummy_value()


@primitive(types.void(types.int64, types.int64, types.int64), _lower_copy)
def copy_bytes(destination: int, source: int, n_bytes: int) -> None:
    """Copy bytes; the two may overlap."""
    if n_bytes:
        ctypes.memmove(memory.check(destination, n_bytes, 1), memory.check(source, n_bytes, 1), int(n_bytes))


def _lower_call_span(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    function_type = ir.FunctionType(ir.VoidType(), [I64] * 6)
    builder.call(builder.inttoptr(arguments[0], function_type.as_pointer()), arguments[1:])
    return context.get_dummy_value()


@primitive(types.void(*[types.int64] * 7), _lower_call_span)
def call_span(
    span: int, sources: int, n_sources: int, destinations: int, n_destinations: int, count: int, parameters: int
) -> None:
    """Call a span kernel by its address (see :mod:`multiring.kernels.spans`).

    Parameters
    ----------
    span : int
        Address of the machine code; in plain Python a number from :func:`multiring.kernels.memory.register_span`.
    sources, destinations : int
        Addresses of ``n_sources`` and ``n_destinations`` addresses.
    count : int
        Elements.
    parameters : int
        Address of the kernel's parameter block.
    """
    memory.span(span)(sources, n_sources, destinations, n_destinations, count, parameters)


# --- the operating system -----------------------------------------------------------------------------------------


def _lower_pause(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    if X86:
        builder.call(_external(builder, "llvm.x86.sse2.pause", ir.FunctionType(ir.VoidType(), [])), [])
    else:
        builder.fence("acquire")
    return context.get_dummy_value()


@primitive(types.void(), _lower_pause)
def pause() -> None:
    """Tell the processor that this is a spin loop."""


def _lower_yield(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    _system_call(builder, SYSTEM_CALLS["sched_yield"], I64(0), I64(0), I64(0), I64(0))
    return context.get_dummy_value()


@primitive(types.void(), _lower_yield)
def yield_processor() -> None:
    """Let another thread run on this core."""
    os.sched_yield()


def _lower_clock(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    pair = ir.ArrayType(I64, 2)
    function = _external(builder, "clock_gettime", ir.FunctionType(I32, [I32, pair.as_pointer()]))
    slot = cgutils.alloca_once(builder, pair)
    builder.call(function, [I32(1), slot])
    value = builder.load(slot)
    seconds = builder.mul(builder.extract_value(value, 0), I64(1_000_000_000))
    return builder.add(seconds, builder.extract_value(value, 1))


@primitive(types.int64(), _lower_clock)
def clock_ns() -> int:
    """Return CLOCK_MONOTONIC in nanoseconds."""
    return time.monotonic_ns()


def _lower_futex_wait(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    address, expected, timeout = arguments
    return _system_call(builder, SYSTEM_CALLS["futex"], address, I64(0), expected, timeout, I64(0), I64(0))


@primitive(types.int64(types.int64, types.int64, types.int64), _lower_futex_wait)
def futex_wait(address: int, expected: int, timeout: int) -> int:
    """Sleep while the low 32 bits at ``address`` are ``expected``, for at most the timespec at ``timeout``."""
    time.sleep(0)
    return 0


def _lower_futex_wake(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return _system_call(builder, SYSTEM_CALLS["futex"], arguments[0], I64(1), I64(0x7FFFFFFF), I64(0), I64(0), I64(0))


@primitive(types.int64(types.int64), _lower_futex_wake)
def futex_wake(address: int) -> int:
    """Wake every sleeper on ``address``."""
    return 0


def _lower_poll(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    descriptors, count = arguments
    if X86:
        return _system_call(builder, SYSTEM_CALLS["poll"], descriptors, count, I64(0), I64(0))
    zero = cgutils.alloca_once_value(builder, ir.Constant(ir.ArrayType(I64, 2), [0, 0]))
    now = builder.ptrtoint(zero, I64)
    return _system_call(builder, SYSTEM_CALLS["ppoll"], descriptors, count, now, I64(0), I64(0))


@primitive(types.int64(types.int64, types.int64), _lower_poll)
def poll_descriptors(descriptors: int, count: int) -> int:
    """Fill ``revents`` of ``count`` pollfd records without waiting; return how many are ready."""
    memory.check(descriptors, 8 * count, 8)
    return 0


# --- the floating-point unit --------------------------------------------------------------------------------------

DEFAULT_FLOAT_CONTROL = 0x1F80
"""x86's MXCSR after reset: round to nearest even, all exceptions masked, no flush to zero."""


def _lower_set_float_control(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    if not X86:
        return I64(0)
    slot = cgutils.alloca_once(builder, I32)
    pointer = builder.bitcast(slot, I8.as_pointer())
    register_type = ir.FunctionType(ir.VoidType(), [I8.as_pointer()])
    builder.call(_external(builder, "llvm.x86.sse.stmxcsr", register_type), [pointer])
    old = builder.load(slot)
    # The low six bits are sticky flags: they do not matter, and writing the register costs more than reading it.
    differs = builder.icmp_unsigned("!=", builder.and_(old, I32(0xFFC0)), I32(DEFAULT_FLOAT_CONTROL))
    with builder.if_then(differs, likely=False):
        builder.store(I32(DEFAULT_FLOAT_CONTROL), slot)
        builder.call(_external(builder, "llvm.x86.sse.ldmxcsr", register_type), [pointer])
    return builder.zext(old, I64)


@primitive(types.int64(), _lower_set_float_control)
def set_float_control() -> int:
    """Make this thread round to nearest and keep subnormals; return what :func:`restore_float_control` needs."""
    return DEFAULT_FLOAT_CONTROL


def _lower_restore_float_control(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    if not X86:
        return context.get_dummy_value()
    old = builder.trunc(arguments[0], I32)
    differs = builder.icmp_unsigned("!=", builder.and_(old, I32(0xFFC0)), I32(DEFAULT_FLOAT_CONTROL))
    slot = cgutils.alloca_once(builder, I32)
    pointer = builder.bitcast(slot, I8.as_pointer())
    with builder.if_then(differs, likely=False):
        builder.store(old, slot)
        register_type = ir.FunctionType(ir.VoidType(), [I8.as_pointer()])
        builder.call(_external(builder, "llvm.x86.sse.ldmxcsr", register_type), [pointer])
    return context.get_dummy_value()


@primitive(types.void(types.int64), _lower_restore_float_control)
def restore_float_control(old: int) -> None:
    """Give the thread back the floating-point settings that it came with."""


def word_of_float(value: float) -> int:
    """Return the bits of a float64 as a word, as parameter blocks hold them."""
    return int(np.float64(value).view(np.int64))
