"""What ``gpucheck`` compares: each kernel on device memory, beside the host's kernel on the same bytes."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multiring.kernels.build import span_address
from multiring.kernels.cuda import calls
from multiring.kernels.cuda.arguments import View
from multiring.kernels.cuda.launch import Launcher, Prepared
from multiring.kernels.dtypes import DTYPES, DType, numpy_dtype
from multiring.kernels.operations import OPERATIONS
from multiring.kernels.rules import RULES, Rule

__all__ = ["Case", "DeviceMemory", "Difference", "cases", "patterns"]

FLOATS = ("float16", "bfloat16", "float32", "float64")
GUARD_BYTES = 256
CANARY = 0xA5

_SPAN = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)


class Difference(Exception):
    """A kernel's result is not the host's."""


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison.

    Attributes
    ----------
    name : str
    run : callable
        ``run(where, count, offset, generator)``; raises :class:`Difference`.
    """

    name: str
    run: Callable[[Launcher, int, int, np.random.Generator], None]


def patterns(dtype: DType, count: int, generator: np.random.Generator) -> NDArray[Any]:
    """Return elements of every kind: any bits, edge values, and numbers near one."""
    kind = numpy_dtype(dtype)
    if dtype.kind == "bool":
        return generator.integers(0, 2, count).astype(bool)
    found = np.frombuffer(generator.bytes(count * dtype.itemsize), kind).copy()
    if dtype.kind == "float":
        edge = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 6e-8, 1e-40, 65504.0, 65520.0, 3.4e38], np.float64)
        with np.errstate(all="ignore"):
            edges, plain = edge.astype(kind), generator.normal(size=count).astype(kind)
        choice = generator.integers(0, 3, count)
        found = np.where(
            choice == 0, found, np.where(choice == 1, edges[generator.integers(0, len(edge), count)], plain)
        )
    return found


class DeviceMemory:
    """Device memory for one array at a chosen alignment, between canaries."""

    def __init__(self, where: Launcher, count: int, dtype: DType, offset: int) -> None:
        self.where, self.n_bytes = where, count * dtype.itemsize
        self.start = GUARD_BYTES + offset * dtype.itemsize % 256
        self.room = self.start + self.n_bytes + GUARD_BYTES
        self.address = where.allocate(self.room)
        self.view = View(self.address + self.start, count, dtype)
        self.fill = np.full(self.room, CANARY, np.uint8)
        where.upload(self.address, self.fill)

    def put(self, values: NDArray[Any]) -> DeviceMemory:
        """Write the array."""
        where = slice(self.start, self.start + self.n_bytes)
        self.fill[where] = np.ascontiguousarray(values).view(np.uint8).ravel()
        self.where.upload(self.address, self.fill)
        return self

    def get(self) -> NDArray[Any]:
        """Return the array, if nothing around it was written."""
        found = np.empty(self.room, np.uint8)
        self.where.download(found, self.address)
        end = self.start + self.n_bytes
        if (found[: self.start] != CANARY).any() or (found[end:] != CANARY).any():
            raise Difference("bytes around the array were written")
        return found[self.start : end].view(numpy_dtype(self.view.dtype))

    def __del__(self) -> None:
        self.where.free(self.address)


def _host(kind: str, sources: list[NDArray[Any]], out: NDArray[Any], factor: float = 1.0, **spec: Any) -> NDArray[Any]:
    """Run the host's span kernel."""
    tables = [np.array([a.ctypes.data for a in arrays], np.int64) for arrays in (sources, [out])]
    parameters = np.zeros(8, np.int64)
    parameters[0] = np.float64(factor).view(np.int64)
    parameters[1] = len(sources)
    address = span_address(kind, **spec)
    _SPAN(address)(tables[0].ctypes.data, len(sources), tables[1].ctypes.data, 1, out.size, parameters.ctypes.data)
    return out


def compare(got: NDArray[Any], wanted: NDArray[Any]) -> None:
    """Compare two arrays bit for bit.

    Raises
    ------
    Difference
        With how many differ, and the first.
    """
    size = got.dtype.itemsize
    differ = np.flatnonzero((got.view(np.uint8) != wanted.view(np.uint8)).reshape(-1, size).any(axis=1))
    if differ.size:
        i = int(differ[0])
        bits = [a[i : i + 1].tobytes()[::-1].hex() for a in (got, wanted)]
        raise Difference(f"{differ.size} of {got.size} differ, first at {i}: got 0x{bits[0]}, wanted 0x{bits[1]}")


def _run(prepared: Prepared, where: Launcher) -> None:
    prepared()
    where.synchronize()


def _reduce_case(name: str, op: str) -> Case:
    dtype = DTYPES[name]

    def run(where: Launcher, count: int, offset: int, generator: np.random.Generator) -> None:
        for n_sources in (1, 2, 5):
            xs = [patterns(dtype, count, generator) for _ in range(n_sources)]
            sources = [DeviceMemory(where, count, dtype, offset + k * (offset > 3)).put(x) for k, x in enumerate(xs)]
            outs = [DeviceMemory(where, count, dtype, offset) for _ in range(2)]
            _run(calls.reduce([s.view for s in sources], [o.view for o in outs], op, where=where), where)
            wanted = _host("reduce", xs, np.empty(count, numpy_dtype(dtype)), dtype=dtype, operation=OPERATIONS[op])
            for out in outs:
                compare(out.get(), wanted)

    return Case(f"reduce {op} {name}", run)


def _cast_case(source: str, destination: str, scale: float | None) -> Case:
    a, b = DTYPES[source], DTYPES[destination]

    def run(where: Launcher, count: int, offset: int, generator: np.random.Generator) -> None:
        x = patterns(a, count, generator)
        origin, out = DeviceMemory(where, count, a, offset).put(x), DeviceMemory(where, count, b, offset)
        _run(calls.cast(origin.view, out.view, scale, where=where), where)
        spec = {"source": a, "destination": b, "scale": scale is not None}
        compare(out.get(), _host("cast", [x], np.empty(count, numpy_dtype(b)), scale or 1.0, **spec))

    return Case(f"cast {source} to {destination}{' scaled' if scale else ''}", run)


def _pack_case(source: str, destination: str) -> Case:
    a, b = DTYPES[source], DTYPES[destination]

    def run(where: Launcher, count: int, offset: int, generator: np.random.Generator) -> None:
        counts = [count, 0, 1, count // 3, 17]
        xs = [patterns(a, n, generator) for n in counts]
        arrays = [DeviceMemory(where, n, a, offset + k).put(x) for k, (n, x) in enumerate(zip(counts, xs, strict=True))]
        buffer = DeviceMemory(where, sum(counts), b, offset)
        _run(calls.pack([m.view for m in arrays], buffer.view, where=where), where)
        joined = np.concatenate(xs)
        packed = _host("cast", [joined], np.empty(sum(counts), numpy_dtype(b)), source=a, destination=b)
        compare(buffer.get(), packed)
        outs = [DeviceMemory(where, n, a, offset + 2 * k) for k, n in enumerate(counts)]
        _run(calls.unpack(buffer.view, [m.view for m in outs], where=where), where)
        wanted = _host("cast", [packed], np.empty(sum(counts), numpy_dtype(a)), source=b, destination=a)
        compare(np.concatenate([m.get() for m in outs]), wanted)

    return Case(f"pack {source} as {destination}", run)


def _update_case(rule: Rule, gradient: str) -> Case:
    kind = DTYPES[gradient]
    weight = DTYPES["bfloat16"] if rule.weight is not None else None

    def run(where: Launcher, count: int, offset: int, generator: np.random.Generator) -> None:
        from numba import njit

        slope = generator.normal(size=count).astype(np.float32).astype(numpy_dtype(kind))
        arrays = [np.abs(generator.normal(size=count)).astype(np.float32) for _ in rule.arrays]
        parameters = {name: float(np.float32(generator.uniform(0.1, 1))) for name in rule.parameters}
        held = [DeviceMemory(where, count, DTYPES["float32"], offset).put(x) for x in arrays]
        out = DeviceMemory(where, count, weight, offset) if weight else None
        origin = DeviceMemory(where, count, kind, offset).put(slope)
        tensor = calls.Tensor(origin.view, [m.view for m in held], parameters, out.view if out else None)
        _run(calls.update(rule, [tensor], where=where), where)
        function = njit(rule.function, error_model="numpy")
        values = [np.float32(parameters[name]) for name in rule.parameters]
        wide = slope.astype(np.float32)
        rows = [function(wide[i], *(x[i] for x in arrays[: rule.n_read]), *values) for i in range(count)]
        columns = np.array(rows, np.float32).reshape(count, len(rule.arrays) - rule.first_written).T
        for j, column in enumerate(columns):
            compare(held[rule.first_written + j].get(), np.ascontiguousarray(column))
        if out and weight and rule.weight is not None:
            x = np.ascontiguousarray(columns[rule.weight])
            empty = np.empty(count, numpy_dtype(weight))
            compare(out.get(), _host("cast", [x], empty, source=DTYPES["float32"], destination=weight))

    return Case(f"update {rule.name} {gradient}", run)


def cases() -> Iterator[Case]:
    """Return every comparison."""
    for name, dtype in DTYPES.items():
        if dtype.kind in ("int", "uint"):
            ops: tuple[str, ...] = ("sum", "prod", "max", "min", "band", "bor", "bxor")
        else:
            ops = {"float": ("sum", "prod", "max", "min", "avg"), "complex": ("sum",), "bool": ("max", "min")}[
                dtype.kind
            ]
        for op in ops:
            yield _reduce_case(name, op)
    for source, destination in itertools.product(FLOATS, FLOATS):
        yield _cast_case(source, destination, 0.3)
        if source != destination:
            yield _cast_case(source, destination, None)
    for name in ("uint8", "float16", "float32", "float64", "complex128"):
        yield _cast_case(name, name, None)
        yield _pack_case(name, name)
    for source, destination in itertools.permutations(FLOATS[:3], 2):
        yield _pack_case(source, destination)
    for rule, gradient in itertools.product(RULES.values(), FLOATS[:3]):
        yield _update_case(rule, gradient)
