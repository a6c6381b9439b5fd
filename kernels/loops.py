"""The host's element loop: load from every source, combine, finish, store to every destination.

One primitive around any scalar functions. Its machine code is one loop that tells LLVM that no element depends on
another: without that, LLVM guards the vector code by a comparison of addresses, which an in-place call always fails.
The promise holds because a destination is either apart from every source or the same elements.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.typing.templates import AbstractTemplate, builtin_registry, signature
from numba.extending import lower_builtin

from multiring.kernels import memory
from multiring.kernels.primitives import I8, I64, primitive

__all__ = ["SCRATCH_BYTES", "Distinct", "call_scalar", "fold_elements", "scratch"]

SCRATCH_BYTES = 16384
"""Room of :func:`scratch`: a good part of the smallest first-level cache, and of no thread's stack."""

_scratch = ctypes.create_string_buffer(SCRATCH_BYTES + 64)


def _lower_scratch(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    with builder.goto_entry_block():  # not cgutils.alloca_once: its zero fill costs 17 s of compiling
        slot = builder.alloca(ir.ArrayType(I8, SCRATCH_BYTES))
        slot.align = 64
    return builder.ptrtoint(slot, I64)


@primitive(types.int64(), _lower_scratch)
def scratch() -> int:
    """Return the address of :data:`SCRATCH_BYTES` bytes on this call's stack."""
    address = -(-ctypes.addressof(_scratch) // 64) * 64
    memory.register(address, SCRATCH_BYTES)
    return address


def fold_elements(
    combine: Callable[..., Any],
    finish: Callable[..., Any],
    parameter: Any,
    count: int,
    destinations: tuple[tuple[Callable[..., Any], Any, int], ...],
    sources: tuple[tuple[Callable[..., Any], Any, int], ...],
) -> None:
    """Fold the sources, element by element, from the left.

    Parameters
    ----------
    combine : scalar function
        ``combine(accumulated, next)``; its result is cast to the type of the first argument.
    finish : scalar function
        ``finish(accumulated, parameter)``, after the last source.
    parameter : scalar
        Of the accumulate type.
    count : int
        Elements.
    destinations : tuple of (store, element type, address)
        ``store(finished)`` gives the element.
    sources : tuple of (load, element type, address)
        ``load(element)`` gives the accumulate type. At least one.
    """
    with np.errstate(all="ignore"):
        for index in range(int(count)):
            accumulated: Any = None
            for load, element, address in sources:
                value = load(_element(element, address, index)[()])
                accumulated = value if accumulated is None else type(value)(combine(accumulated, value))
            result = type(accumulated)(finish(accumulated, parameter))
            for store, element, address in destinations:
                _element(element, address, index)[()] = store(result)


def _element(element: Any, address: int, index: int) -> Any:
    size = np.dtype(element).itemsize
    start = memory.check(address + size * index, size, 1)
    return np.frombuffer((ctypes.c_char * size).from_address(start), dtype=element).reshape(())


class _FoldTemplate(AbstractTemplate):  # type: ignore[misc]
    key = fold_elements

    def generic(self, arguments: Any, keywords: Any) -> Any:
        return signature(types.none, *arguments)


builtin_registry.register_global(fold_elements, types.Function(_FoldTemplate))


class Distinct(ir.MDValue):  # type: ignore[misc]
    """A metadata node that is equal to no other; its own first operand if ``loop``."""

    def __init__(self, module: Any, operands: tuple[Any, ...] = (), loop: bool = False) -> None:
        super().__init__(module, operands, str(len(module.metadata)))
        self.loop = loop

    def descr(self, buffer: list[str]) -> None:
        """Write the node's text."""
        references = [self.get_reference()] * self.loop + [operand.get_reference() for operand in self.operands]
        buffer += (f"distinct !{{ {', '.join(references)} }}", "\n")

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


def call_scalar(context: Any, builder: Any, function: Any, arguments: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Call a jitable function on (type, value) pairs; return such a pair."""
    resolved = function.get_call_type(context.typing_context, tuple(kind for kind, _ in arguments), {})
    casts = [context.cast(builder, v, k, to) for (k, v), to in zip(arguments, resolved.args, strict=True)]
    result = types.unliteral(resolved.return_type)
    value = context.get_function(function, resolved)(builder, casts)
    return result, context.cast(builder, value, resolved.return_type, result)


def _items(context: Any, builder: Any, kind: Any, value: Any) -> list[tuple[Any, Any, Any]]:
    """Take a tuple of (function, element type, address) apart."""
    found = []
    for index, item in enumerate(kind.types):
        address = builder.extract_value(builder.extract_value(value, index), 2)
        address = context.cast(builder, address, item.types[2], types.int64)
        found.append((item.types[0], item.types[1].instance_type, address))
    return found


@lower_builtin(fold_elements, types.VarArg(types.Any))
def _lower_fold(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    combine, finish, parameter_type, count_type = signature.args[:4]
    parameter = arguments[2]
    count = context.cast(builder, arguments[3], count_type, types.int64)
    destinations = _items(context, builder, signature.args[4], arguments[4])
    sources = _items(context, builder, signature.args[5], arguments[5])
    module = builder.module
    group = Distinct(module)
    parallel = module.add_metadata([ir.MetaDataString(module, "llvm.loop.parallel_accesses"), group])

    def pointer(element: Any, address: Any, index: Any) -> Any:
        base = builder.inttoptr(address, context.get_data_type(element).as_pointer())
        return builder.gep(base, [index])

    before = builder.block
    body, end = builder.append_basic_block("elements"), builder.append_basic_block("elements.end")
    builder.cbranch(builder.icmp_signed(">", count, I64(0)), body, end)
    builder.position_at_end(body)
    index = builder.phi(I64)
    index.add_incoming(I64(0), before)

    accumulate: Any = None
    accumulated: Any = None
    for load, element, address in sources:
        loaded = builder.load(pointer(element, address, index), align=1)
        loaded.set_metadata("llvm.access.group", group)
        value = context.data_model_manager[element].from_data(builder, loaded)
        kind, value = call_scalar(context, builder, load, [(element, value)])
        if accumulated is not None:
            result, value = call_scalar(context, builder, combine, [(accumulate, accumulated), (kind, value)])
            value = context.cast(builder, value, result, accumulate)
        else:
            accumulate = kind
        accumulated = value
    result, value = call_scalar(context, builder, finish, [(accumulate, accumulated), (parameter_type, parameter)])
    finished = context.cast(builder, value, result, accumulate)
    for store, element, address in destinations:
        result, value = call_scalar(context, builder, store, [(accumulate, finished)])
        value = context.cast(builder, value, result, element)
        value = context.data_model_manager[element].as_data(builder, value)
        stored = builder.store(value, pointer(element, address, index), align=1)
        stored.set_metadata("llvm.access.group", group)

    following = builder.add(index, I64(1), flags=("nsw",))
    index.add_incoming(following, builder.block)
    branch = builder.cbranch(builder.icmp_signed("<", following, count), body, end)
    branch.set_metadata("llvm.loop", Distinct(module, (parallel,), loop=True))
    builder.position_at_end(end)
    return context.get_dummy_value()
