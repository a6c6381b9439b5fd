"""Calls span kernels on real memory, with poison and canaries, and states what they must give."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from multiring.kernels.build import span_address
from multiring.kernels.dtypes import DTYPES, DType, numpy_dtype
from multiring.kernels.operations import OPERATIONS

CANARY = 0xA5
GUARD_BYTES = 64

CALL = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64")
PAIRS = [
    *((name, op) for name in INTEGERS for op in ("sum", "prod", "max", "min", "band", "bor", "bxor")),
    *((name, op) for name in FLOATS for op in ("sum", "prod", "max", "min", "avg")),
    ("complex64", "sum"),
    ("complex128", "sum"),
    ("bool", "max"),
    ("bool", "min"),
]
"""Every element type with every reduction that it has."""

CANONICAL_NAN = {"float16": 0x7E00, "bfloat16": 0x7FC0, "float32": 0x7FC00000, "float64": 0x7FF8000000000000}
BITS = {2: np.uint16, 4: np.uint32, 8: np.uint64}


class Guarded:
    """An array at a chosen misalignment, between canaries, full of poison."""

    def __init__(self, count: int, dtype: Any, offset: int = 0) -> None:
        self.n_bytes = count * np.dtype(dtype).itemsize
        self.memory = np.full(self.n_bytes + 3 * GUARD_BYTES + 64, CANARY, np.uint8)
        self.start = GUARD_BYTES + -self.memory.ctypes.data % 64 + offset
        self.address = self.memory.ctypes.data + self.start
        self.dtype = np.dtype(dtype)
        self.set(np.full(self.n_bytes, 0xFF, np.uint8).view(self.dtype))

    def set(self, values: Any) -> Guarded:
        self.memory[self.start : self.start + self.n_bytes] = np.ascontiguousarray(values).view(np.uint8).ravel()
        return self

    def get(self) -> Any:
        assert (self.memory[: self.start] == CANARY).all(), "bytes before the array were written"
        assert (self.memory[self.start + self.n_bytes :] == CANARY).all(), "bytes after the array were written"
        return self.memory[self.start : self.start + self.n_bytes].copy().view(self.dtype)


def call(
    address: int,
    sources: Sequence[int],
    destinations: Sequence[int],
    count: int,
    scale: float = 1.0,
    n_ranks: int | None = None,
) -> None:
    """Call machine code as the interpreter does."""
    source_table = np.array(sources, np.int64)
    destination_table = np.array(destinations, np.int64)
    parameters = np.zeros(8, np.int64)
    parameters[0] = np.float64(scale).view(np.int64)
    parameters[1] = len(sources) if n_ranks is None else n_ranks
    CALL(address)(
        source_table.ctypes.data,
        len(sources),
        destination_table.ctypes.data,
        len(destinations),
        count,
        parameters.ctypes.data,
    )


def reduce_address(name: str, op: str, **spec: Any) -> int:
    return span_address("reduce", dtype=DTYPES[name], operation=OPERATIONS[op], **spec)


def canonical(values: Any) -> Any:
    """Return a copy with NaN made the one bit pattern of its type."""
    if values.dtype.kind == "c":
        return canonical(values.view(values.real.dtype)).view(values.dtype)
    if values.dtype.name not in CANONICAL_NAN:
        return values
    bits = values.view(BITS[values.dtype.itemsize]).copy()
    bits[np.isnan(values)] = CANONICAL_NAN[values.dtype.name]
    return bits.view(values.dtype)


def same_bits(got: Any, wanted: Any, message: str = "") -> None:
    """Compare two arrays byte for byte."""
    assert got.dtype == wanted.dtype
    differ = np.flatnonzero((got.view(np.uint8) != wanted.view(np.uint8)).reshape(-1, got.dtype.itemsize).any(axis=1))
    if differ.size:
        i = differ[0]
        raise AssertionError(f"{message}: {differ.size} differ, first at {i}: got {got[i]!r}, wanted {wanted[i]!r}")


def _extreme(a: Any, b: Any, op: str) -> Any:
    chosen = np.maximum(a, b) if op == "max" else np.minimum(a, b)
    if a.dtype.kind == "f":
        bits = BITS[a.dtype.itemsize]
        zeros = (a == 0) & (b == 0)
        merge = np.bitwise_and if op == "max" else np.bitwise_or
        chosen[zeros] = merge(a.view(bits), b.view(bits)).view(a.dtype)[zeros]
    return chosen


def expected(arrays: Sequence[Any], op: str, wide: str | None = None) -> Any:
    """Return what numpy says: the fold from the left in the accumulate type, rounded once."""
    dtype = arrays[0].dtype
    if dtype.kind == "b":
        return np.logical_or.reduce(arrays) if op == "max" else np.logical_and.reduce(arrays)
    accumulate = np.dtype(wide or ("float32" if dtype.name in ("float16", "bfloat16") else dtype.name))
    functions = {
        "sum": np.add, "avg": np.add, "prod": np.multiply, "band": np.bitwise_and, "bor": np.bitwise_or,
        "bxor": np.bitwise_xor,
    }  # fmt: skip
    with np.errstate(all="ignore"):
        total = arrays[0].astype(accumulate)
        for array in arrays[1:]:
            following = array.astype(accumulate)
            total = _extreme(total, following, op) if op in ("max", "min") else functions[op](total, following)
        if op == "avg":
            total = total / accumulate.type(len(arrays))
        assert total.dtype == accumulate
        return canonical(total.astype(dtype))


def edges(dtype: DType) -> Any:
    """Return the values that break things."""
    array_type = numpy_dtype(dtype)
    if dtype.kind == "bool":
        return np.array([False, True])
    if dtype.kind in ("int", "uint"):
        info = np.iinfo(array_type)
        return np.array([info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 7, 100, 120], array_type)
    if dtype.kind == "complex":
        half = edges(DTYPES["float32" if dtype.itemsize == 8 else "float64"])
        return np.concatenate([half, half[::-1]]).view(array_type)
    bits = BITS[dtype.itemsize]
    infinity = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF0000000000000}[dtype.name]
    one = int(np.ones(1, array_type).view(bits)[0])
    sign = 1 << (8 * dtype.itemsize - 1)
    magnitudes = [0, 1, 2, 3, infinity - 1, infinity, infinity + 1, sign - 1, one, one + 1, one - 1]
    magnitudes.append(int(np.array([0.1], array_type).view(bits)[0]))
    return np.array([m | s for m in magnitudes for s in (0, sign)], bits).view(array_type)


def values(dtype: DType, count: int, generator: np.random.Generator) -> Any:
    """Return random elements: every bit pattern, edge values, and numbers near one."""
    array_type = numpy_dtype(dtype)
    if dtype.kind == "bool":
        return generator.integers(0, 2, count).astype(bool)
    result = np.frombuffer(generator.bytes(count * dtype.itemsize), array_type).copy()
    kind = generator.integers(0, 3, count)
    special = edges(dtype)
    result[kind == 1] = special[generator.integers(0, len(special), int((kind == 1).sum()))]
    if dtype.kind in ("float", "complex"):
        result[kind == 2] = generator.normal(size=int((kind == 2).sum())).astype(array_type)
    return result
