"""Tuples of elements, one for each lane: loaded and stored 16 bytes at a time, and mapped over by scalar functions.

A unit is one or more whole vectors of 16 bytes, or a single element where the address allows no vector. A thread
works on several units a fixed distance apart at once, so that several loads are under way; all their lanes are one
flat tuple. LLVM turns the tuples into registers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from multiring.kernels import memory
from multiring.kernels.cuda.homes import polymorphic

__all__ = ["VECTOR_BYTES", "load_arrays", "load_lanes", "map_lanes", "map_tuples", "store_arrays", "store_lanes"]

VECTOR_BYTES = 16

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_QUAD = ir.VectorType(_I32, 4)
_GLOBAL = 1
"""The address space of global memory."""


# --- Numba's types --------------------------------------------------------------------------------------------------


def _element(kind: Any) -> Any:
    """Return the element type of a numpy type's type."""
    return kind.instance_type


def _parts(element: Any) -> tuple[Any, int]:
    """Return (LLVM type, how many) of what makes an element: a complex number is two floats."""
    if isinstance(element, types.Complex):
        element = element.underlying_float
        return (ir.FloatType() if element.bitwidth == 32 else ir.DoubleType()), 2
    if isinstance(element, types.Float):
        return (ir.FloatType() if element.bitwidth == 32 else ir.DoubleType()), 1
    return ir.IntType(element.bitwidth), 1


def _size(element: Any) -> int:
    part, n = _parts(element)
    return n * (part.width if isinstance(part, ir.IntType) else 32 if isinstance(part, ir.FloatType) else 64) // 8


def _join(context: Any, builder: Any, element: Any, parts: list[Any]) -> Any:
    if not isinstance(element, types.Complex):
        return parts[0]
    value = context.make_complex(builder, element)
    value.real, value.imag = parts
    return value._getvalue()


def _split(context: Any, builder: Any, element: Any, value: Any) -> list[Any]:
    if not isinstance(element, types.Complex):
        return [value]
    number = context.make_complex(builder, element, value)
    return [number.real, number.imag]


def _tuple_items(builder: Any, value: Any, n: int) -> list[Any]:
    return [builder.extract_value(value, k) for k in range(n)]


# --- loads and stores -----------------------------------------------------------------------------------------------


def _load_vector(builder: Any, address: Any) -> Any:
    """Load 16 bytes as a vector of four 32-bit words."""
    result = ir.LiteralStructType([_I32] * 4)
    code = ir.InlineAsm(
        ir.FunctionType(result, [_I64]),
        "ld.global.v4.u32 {$0, $1, $2, $3}, [$4];",
        "=r,=r,=r,=r,l,~{memory}",
        side_effect=True,
    )
    words = builder.call(code, [address])
    vector = ir.Constant(_QUAD, ir.Undefined)
    for k in range(4):
        vector = builder.insert_element(vector, builder.extract_value(words, k), _I32(k))
    return vector


def _store_vector(builder: Any, address: Any, vector: Any) -> None:
    code = ir.InlineAsm(
        ir.FunctionType(ir.VoidType(), [_I64] + [_I32] * 4),
        "st.global.v4.u32 [$0], {$1, $2, $3, $4};",
        "l,r,r,r,r,~{memory}",
        side_effect=True,
    )
    builder.call(code, [address, *(builder.extract_element(vector, _I32(k)) for k in range(4))])


def _emit_load(context: Any, builder: Any, element: Any, per_unit: int, address: Any) -> list[Any]:
    """Load one unit; return its elements."""
    part, n_parts = _parts(element)
    size = _size(element)
    loaded: list[Any] = []
    if per_unit * size % VECTOR_BYTES == 0:
        lanes = ir.VectorType(part, VECTOR_BYTES * n_parts // size)
        for k in range(per_unit * size // VECTOR_BYTES):
            vector = builder.bitcast(_load_vector(builder, builder.add(address, _I64(VECTOR_BYTES * k))), lanes)
            loaded += [builder.extract_element(vector, _I32(j)) for j in range(lanes.count)]
    else:
        pointer = builder.inttoptr(address, part.as_pointer(_GLOBAL))
        loaded = [builder.load(builder.gep(pointer, [_I64(j)])) for j in range(n_parts * per_unit)]
    return [_join(context, builder, element, loaded[k : k + n_parts]) for k in range(0, len(loaded), n_parts)]


def _emit_store(context: Any, builder: Any, element: Any, per_unit: int, address: Any, values: list[Any]) -> None:
    part, n_parts = _parts(element)
    size = _size(element)
    pieces = [piece for value in values for piece in _split(context, builder, element, value)]
    if per_unit * size % VECTOR_BYTES == 0:
        lanes = ir.VectorType(part, VECTOR_BYTES * n_parts // size)
        for k in range(per_unit * size // VECTOR_BYTES):
            vector = ir.Constant(lanes, ir.Undefined)
            for j in range(lanes.count):
                vector = builder.insert_element(vector, pieces[k * lanes.count + j], _I32(j))
            _store_vector(builder, builder.add(address, _I64(VECTOR_BYTES * k)), builder.bitcast(vector, _QUAD))
    else:
        pointer = builder.inttoptr(address, part.as_pointer(_GLOBAL))
        for j, piece in enumerate(pieces):
            builder.store(piece, builder.gep(pointer, [_I64(j)]))


def _offset(context: Any, builder: Any, kind: Any, address: Any, stride_kind: Any, stride: Any, k: int) -> Any:
    base = context.cast(builder, address, kind, types.int64)
    step = context.cast(builder, stride, stride_kind, types.int64)
    return builder.add(base, builder.mul(step, _I64(k)))


def _type_load(context: Any, arguments: Any) -> Any:
    element, per_unit, n_units = arguments[:3]
    return types.UniTuple(_element(element), per_unit.literal_value * n_units.literal_value)(*arguments)


def _lower_load(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    element, per_unit, n_units, address, stride = signature.args
    lanes: list[Any] = []
    for k in range(n_units.literal_value):
        at = _offset(context, builder, address, arguments[3], stride, arguments[4], k)
        lanes += _emit_load(context, builder, _element(element), per_unit.literal_value, at)
    return context.make_tuple(builder, signature.return_type, lanes)


@polymorphic(_type_load, _lower_load)
def load_lanes(element: Any, per_unit: int, n_units: int, address: int, stride: int) -> tuple[Any, ...]:
    """Load units of elements.

    Parameters
    ----------
    element : numpy scalar type
        As it lies in memory.
    per_unit, n_units : int
        Elements of a unit, and units; literals. A unit is whole vectors at an address that is a multiple of 16, or
        else one element at a multiple of its own size.
    address, stride : int
        Of the first unit; bytes from one unit to the next.
    """
    size = np.dtype(element).itemsize
    lanes: list[Any] = []
    for k in range(n_units):
        at = _checked(size, per_unit, address + k * stride)
        lanes.extend(np.frombuffer(ctypes.string_at(at, size * per_unit), element))
    return tuple(lanes)


def _checked(size: int, per_unit: int, address: int) -> int:
    n_bytes = size * per_unit
    if n_bytes % VECTOR_BYTES:
        return memory.check(address, n_bytes, min(size, 8))
    for k in range(0, n_bytes, VECTOR_BYTES):
        memory.check(address + k, VECTOR_BYTES, VECTOR_BYTES)
    return int(address)


def _type_store(context: Any, arguments: Any) -> Any:
    return types.none(*arguments)


def _lower_store(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    kind, per_unit, n_units, address, stride, lanes = signature.args
    element, n = _element(kind), per_unit.literal_value
    values = _tuple_items(builder, arguments[5], lanes.count)
    for k in range(n_units.literal_value):
        at = _offset(context, builder, address, arguments[3], stride, arguments[4], k)
        _emit_store(context, builder, element, n, at, values[k * n : k * n + n])
    return context.get_dummy_value()


@polymorphic(_type_store, _lower_store)
def store_lanes(element: Any, per_unit: int, n_units: int, address: int, stride: int, lanes: tuple[Any, ...]) -> None:
    """Store units of elements; see :func:`load_lanes`."""
    size = np.dtype(element).itemsize
    for k in range(n_units):
        at = _checked(size, per_unit, address + k * stride)
        ctypes.memmove(at, np.array(lanes[k * per_unit : (k + 1) * per_unit], element).tobytes(), size * per_unit)


# --- several arrays at once -----------------------------------------------------------------------------------------


def _word(context: Any, builder: Any, kind: Any, table: Any, k: int) -> Any:
    """Load address ``k`` of a table."""
    at = builder.add(context.cast(builder, table, kind, types.int64), _I64(8 * k))
    return builder.load(builder.inttoptr(at, _I64.as_pointer(_GLOBAL)))


def _type_load_arrays(context: Any, arguments: Any) -> Any:
    element, per_unit, n_units, n_arrays = arguments[:4]
    lanes = types.UniTuple(_element(element), per_unit.literal_value * n_units.literal_value)
    return types.UniTuple(lanes, n_arrays.literal_value)(*arguments)


def _lower_load_arrays(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    kind, per_unit, n_units, n_arrays, table, offset, stride = signature.args
    skip = context.cast(builder, arguments[5], offset, types.int64)
    found = []
    for j in range(n_arrays.literal_value):
        base = builder.add(_word(context, builder, table, arguments[4], j), skip)
        lanes: list[Any] = []
        for k in range(n_units.literal_value):
            at = _offset(context, builder, types.int64, base, stride, arguments[6], k)
            lanes += _emit_load(context, builder, _element(kind), per_unit.literal_value, at)
        found.append(context.make_tuple(builder, signature.return_type.dtype, lanes))
    return context.make_tuple(builder, signature.return_type, found)


@polymorphic(_type_load_arrays, _lower_load_arrays)
def load_arrays(
    element: Any, per_unit: int, n_units: int, n_arrays: int, table: int, offset: int, stride: int
) -> tuple[tuple[Any, ...], ...]:
    """Load the same units of several arrays.

    Parameters
    ----------
    element, per_unit, n_units, stride
        See :func:`load_lanes`.
    n_arrays : int
        A literal.
    table : int
        Address of as many addresses.
    offset : int
        Bytes from an array's start to the first unit.
    """
    return tuple(
        load_lanes(element, per_unit, n_units, memory.words(table + 8 * j).value + offset, stride)
        for j in range(n_arrays)
    )


def _lower_store_arrays(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    kind, per_unit, n_units, table, offset, stride, arrays = signature.args
    skip = context.cast(builder, arguments[4], offset, types.int64)
    n = per_unit.literal_value
    for j in range(arrays.count):
        base = builder.add(_word(context, builder, table, arguments[3], j), skip)
        values = _tuple_items(builder, builder.extract_value(arguments[6], j), arrays.types[j].count)
        for k in range(n_units.literal_value):
            at = _offset(context, builder, types.int64, base, stride, arguments[5], k)
            _emit_store(context, builder, _element(kind), n, at, values[k * n : k * n + n])
    return context.get_dummy_value()


@polymorphic(_type_store, _lower_store_arrays)
def store_arrays(
    element: Any, per_unit: int, n_units: int, table: int, offset: int, stride: int, arrays: tuple[tuple[Any, ...], ...]
) -> None:
    """Store the same units of several arrays; see :func:`load_arrays`."""
    for j, lanes in enumerate(arrays):
        store_lanes(element, per_unit, n_units, memory.words(table + 8 * j).value + offset, stride, lanes)


# --- arithmetic -----------------------------------------------------------------------------------------------------


def _call(context: Any, builder: Any, function: Any, arguments: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Call a device function on (type, value) pairs; return such a pair."""
    resolved = function.get_call_type(context.typing_context, tuple(kind for kind, _ in arguments), {})
    casts = [context.cast(builder, v, k, to) for (k, v), to in zip(arguments, resolved.args, strict=True)]
    implementation = context.get_function(function, resolved)
    context.add_linking_libs(getattr(implementation, "libs", ()))
    return resolved.return_type, implementation(builder, casts)


def _type_map(context: Any, arguments: Any) -> Any:
    function, result, lanes, constants = arguments
    n = lanes.types[0].count
    scalar = tuple(types.unliteral(kind.dtype) for kind in lanes.types) + tuple(map(types.unliteral, constants.types))
    if function.get_call_type(context, scalar, {}) is None:
        return None
    return types.UniTuple(_element(result), n)(*arguments)


def _lanes_of(context: Any, builder: Any, signature: Any, arguments: Any) -> list[list[tuple[Any, Any]]]:
    """Return the (type, value) pairs of the arguments of every lane's call."""
    lanes, constants = signature.args[2], signature.args[3]
    columns = []
    for j, kind in enumerate(lanes.types):
        values = _tuple_items(builder, builder.extract_value(arguments[2], j), kind.count)
        columns.append([(types.unliteral(kind.dtype), value) for value in values])
    shared = [
        (
            types.unliteral(kind),
            context.cast(builder, builder.extract_value(arguments[3], j), kind, types.unliteral(kind)),
        )
        for j, kind in enumerate(constants.types)
    ]
    return [[*row, *shared] for row in zip(*columns, strict=True)]


def _lower_map(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    function, wanted = signature.args[0], signature.return_type.dtype
    values = []
    for row in _lanes_of(context, builder, signature, arguments):
        kind, value = _call(context, builder, function, row)
        values.append(context.cast(builder, value, kind, wanted))
    return context.make_tuple(builder, signature.return_type, values)


@polymorphic(_type_map, _lower_map)
def map_lanes(
    function: Callable[..., Any], result: Any, lanes: tuple[tuple[Any, ...], ...], constants: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Call a scalar function for every lane.

    Parameters
    ----------
    function : scalar function
        ``function(lane of the first tuple, lane of the second, ..., *constants)``.
    result : numpy scalar type
        What its result is converted to.
    lanes : tuple of tuple
        Of equal lengths.
    constants : tuple
        The same for every lane.
    """
    with np.errstate(all="ignore"):
        return tuple(result(function(*row, *constants)) for row in zip(*lanes, strict=True))


def _type_map_tuples(context: Any, arguments: Any) -> Any:
    function, result, lanes, constants = arguments
    n = lanes.types[0].count
    scalar = tuple(types.unliteral(kind.dtype) for kind in lanes.types) + tuple(map(types.unliteral, constants.types))
    resolved = function.get_call_type(context, scalar, {})
    if resolved is None:
        return None
    return types.UniTuple(types.UniTuple(_element(result), n), resolved.return_type.count)(*arguments)


def _lower_map_tuples(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    function, outer = signature.args[0], signature.return_type
    columns: list[list[Any]] = [[] for _ in range(outer.count)]
    for row in _lanes_of(context, builder, signature, arguments):
        kind, value = _call(context, builder, function, row)
        for j, column in enumerate(columns):
            column.append(context.cast(builder, builder.extract_value(value, j), kind.types[j], outer.dtype.dtype))
    inner = [context.make_tuple(builder, outer.dtype, column) for column in columns]
    return context.make_tuple(builder, outer, inner)


@polymorphic(_type_map_tuples, _lower_map_tuples)
def map_tuples(
    function: Callable[..., Any], result: Any, lanes: tuple[tuple[Any, ...], ...], constants: tuple[Any, ...]
) -> tuple[tuple[Any, ...], ...]:
    """Call a scalar function that returns a tuple for every lane; return a tuple of lanes for each of its items."""
    with np.errstate(all="ignore"):
        rows = [function(*row, *constants) for row in zip(*lanes, strict=True)]
    return tuple(tuple(result(value) for value in column) for column in zip(*rows, strict=True))
