"""Copies past the caches: for results that are larger than a cache and that this processor will not read next."""

from __future__ import annotations

import ctypes
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import register_jitable

from multiring.kernels import memory
from multiring.kernels.primitives import I64, copy_bytes, primitive

__all__ = ["LINE_BYTES", "stream_bytes"]

LINE_BYTES = 64


def _lower_stream(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    destination, source, n_bytes = arguments
    line = ir.VectorType(I64, LINE_BYTES // 8).as_pointer()
    module = builder.module
    before = builder.block
    body, end = builder.append_basic_block("lines"), builder.append_basic_block("lines.end")
    builder.cbranch(builder.icmp_signed(">", n_bytes, I64(0)), body, end)
    builder.position_at_end(body)
    offset = builder.phi(I64)
    offset.add_incoming(I64(0), before)
    value = builder.load(builder.inttoptr(builder.add(source, offset), line), align=1)
    stored = builder.store(value, builder.inttoptr(builder.add(destination, offset), line), align=LINE_BYTES)
    stored.set_metadata("nontemporal", module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
    following = builder.add(offset, I64(LINE_BYTES))
    offset.add_incoming(following, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, n_bytes), body, end)
    builder.position_at_end(end)
    return context.get_dummy_value()


@primitive(types.void(types.int64, types.int64, types.int64), _lower_stream)
def stream_lines(destination: int, source: int, n_bytes: int) -> None:
    """Copy whole lines to an aligned address with non-temporal stores."""
    if n_bytes:
        memory.check(destination, n_bytes, LINE_BYTES)
        ctypes.memmove(destination, memory.check(source, n_bytes, 1), int(n_bytes))


@register_jitable
def stream_bytes(destination: int, source: int, n_bytes: int) -> None:
    """Copy bytes that do not overlap past the caches; the caller fences before it tells anyone."""
    head = min(-destination % LINE_BYTES, n_bytes)
    lines = (n_bytes - head) // LINE_BYTES * LINE_BYTES
    tail = n_bytes - head - lines
    if head > 0:
        copy_bytes(destination, source, head)
    stream_lines(destination + head, source + head, lines)
    if tail > 0:
        copy_bytes(destination + head + lines, source + head + lines, tail)
