"""The fused weight update on the host: gradient shard, master and moments in; all of them and the wire weight out.

One pass over memory for each rule. A call works through a table of rows, each a piece of the flat layout with its own
parameters; the layout of a row is that of :mod:`multiring.kernels.cuda.update`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.typing.templates import AbstractTemplate, builtin_registry, signature
from numba.extending import lower_builtin

from multiring.errors import ArgumentTypeError
from multiring.kernels import memory
from multiring.kernels.build import compiled
from multiring.kernels.dtypes import DTYPES, DType
from multiring.kernels.kinds import load_of, store_of, stored_type
from multiring.kernels.loops import Distinct, call_scalar
from multiring.kernels.primitives import I64, load_word, restore_float_control, set_float_control
from multiring.kernels.rules import RULES, Rule

__all__ = [
    "ROW_ARRAYS",
    "ROW_COUNT",
    "ROW_GRADIENT",
    "ROW_PARAMETERS",
    "ROW_WEIGHT",
    "SquareSums",
    "row_words",
    "square_sums",
    "update_kernel",
]

ROW_GRADIENT = 0
ROW_WEIGHT = 1
ROW_COUNT = 2
ROW_PARAMETERS = 4
ROW_ARRAYS = 5
"""Words of a row: addresses of the gradient and of the wire weight, elements, a word that the host leaves alone, the
address of float32 parameters in the rule's order, then one address for each of the rule's arrays."""

FLOAT32 = DTYPES["float32"]
SQUARE_ROW_BYTES = 24
LANES = 16
"""Sums that run side by side: enough to keep the adders busy, and always the same ones, so that bits repeat."""


def row_words(rule: Rule) -> int:
    """Return the words of a row."""
    return ROW_ARRAYS + len(rule.arrays)


# --- one row of the update ------------------------------------------------------------------------------------------


def update_elements(
    function: Callable[..., Any],
    load: Callable[..., Any],
    element: Any,
    store: Callable[..., Any],
    stored: Any,
    n_arrays: int,
    n_read: int,
    first_written: int,
    weight: int,
    n_parameters: int,
    row: int,
) -> None:
    """Apply a rule to every element of a row.

    Parameters
    ----------
    function, load, store : scalar function
        The rule; from the gradient's element to float32; from float32 to the wire weight's element.
    element, stored : numpy scalar type
        Of the gradient and of the wire weight in memory.
    n_arrays, n_read, first_written, n_parameters : int
        See :class:`multiring.kernels.rules.Rule`; constants.
    weight : int
        Which result is stored as the wire weight too; -1: none.
    row : int
        Its address.
    """
    words = [load_word(row + 8 * i) for i in range(ROW_ARRAYS + n_arrays)]
    count = int(words[ROW_COUNT])
    parameters = [_scalar(np.float32, words[ROW_PARAMETERS], i)[()] for i in range(n_parameters)]
    with np.errstate(all="ignore"):
        for index in range(count):
            gradient = load(_scalar(element, words[ROW_GRADIENT], index)[()])
            arrays = [_scalar(np.float32, words[ROW_ARRAYS + k], index) for k in range(n_arrays)]
            results = function(gradient, *[a[()] for a in arrays[:n_read]], *parameters)
            for k, result in enumerate(results):
                arrays[first_written + k][()] = np.float32(result)
            if weight >= 0:
                _scalar(stored, words[ROW_WEIGHT], index)[()] = store(np.float32(results[weight]))


def _scalar(element: Any, address: int, index: int) -> Any:
    size = np.dtype(element).itemsize
    start = memory.check(address + size * index, size, 1)
    return np.frombuffer((ctypes.c_char * size).from_address(start), dtype=element).reshape(())


class _UpdateTemplate(AbstractTemplate):  # type: ignore[misc]
    key = update_elements
    prefer_literal = True

    def generic(self, arguments: Any, keywords: Any) -> Any:
        return signature(types.none, *arguments)


builtin_registry.register_global(update_elements, types.Function(_UpdateTemplate))


@lower_builtin(update_elements, types.VarArg(types.Any))
def _lower_update(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    function, load, element, store, stored = signature.args[:5]
    n_arrays, n_read, first_written, weight, n_parameters = (kind.literal_value for kind in signature.args[5:10])
    row = context.cast(builder, arguments[10], signature.args[10], types.int64)
    element, stored = element.instance_type, stored.instance_type
    module = builder.module
    group = Distinct(module)
    parallel = module.add_metadata([ir.MetaDataString(module, "llvm.loop.parallel_accesses"), group])
    float_pointer = ir.FloatType().as_pointer()

    def word(index: int) -> Any:
        return builder.load(builder.inttoptr(builder.add(row, I64(8 * index)), I64.as_pointer()))

    def base(kind: Any, index: int) -> Any:
        return builder.inttoptr(word(index), context.get_data_type(kind).as_pointer())

    def put(kind: Any, value: Any, pointer: Any) -> None:
        value = context.data_model_manager[kind].as_data(builder, value)
        builder.store(value, builder.gep(pointer, [index]), align=1).set_metadata("llvm.access.group", group)

    def get(kind: Any, pointer: Any) -> Any:
        loaded = builder.load(builder.gep(pointer, [index]), align=1)
        loaded.set_metadata("llvm.access.group", group)
        return context.data_model_manager[kind].from_data(builder, loaded)

    count = word(ROW_COUNT)
    gradients = base(element, ROW_GRADIENT)
    weights = base(stored, ROW_WEIGHT)
    arrays = [base(types.float32, ROW_ARRAYS + k) for k in range(n_arrays)]
    block = builder.inttoptr(word(ROW_PARAMETERS), float_pointer)
    parameters = [builder.load(builder.gep(block, [I64(i)]), align=4) for i in range(n_parameters)]
    before = builder.block
    body, end = builder.append_basic_block("elements"), builder.append_basic_block("elements.end")
    builder.cbranch(builder.icmp_signed(">", count, I64(0)), body, end)
    builder.position_at_end(body)
    index = builder.phi(I64)
    index.add_incoming(I64(0), before)

    single = types.float32
    given = [call_scalar(context, builder, load, [(element, get(element, gradients))])]
    given += [(single, get(single, array)) for array in arrays[:n_read]]
    given += [(single, value) for value in parameters]
    kind, results = call_scalar(context, builder, function, given)
    finished = []
    for k, each in enumerate(kind.types):
        value = builder.extract_value(results, k)
        finished.append(context.cast(builder, value, each, single))
    for k, value in enumerate(finished):
        put(single, value, arrays[first_written + k])
    if weight >= 0:
        kind, value = call_scalar(context, builder, store, [(single, finished[weight])])
        put(stored, context.cast(builder, value, kind, stored), weights)

    following = builder.add(index, I64(1), flags=("nsw",))
    index.add_incoming(following, builder.block)
    branch = builder.cbranch(builder.icmp_signed("<", following, count), body, end)
    branch.set_metadata("llvm.loop", Distinct(module, (parallel,), loop=True))
    builder.position_at_end(end)
    return context.get_dummy_value()


def make_update(rule: Rule, gradient: DType, weight: DType | None) -> Callable[[int, int], None]:
    """Return the function ``update(table, n_rows)`` as plain Python; see :func:`update_kernel`."""
    function, load, element = rule.function, load_of(gradient, FLOAT32), stored_type(gradient)
    store, stored = store_of(FLOAT32, weight or FLOAT32), stored_type(weight or FLOAT32)
    n_arrays, n_read, first_written, n_parameters = (
        len(rule.arrays), rule.n_read, rule.first_written, len(rule.parameters)
    )  # fmt: skip
    written = -1 if weight is None or rule.weight is None else rule.weight
    row_bytes = 8 * row_words(rule)

    def update(table: int, n_rows: int) -> None:
        control = set_float_control()
        for i in range(n_rows):
            update_elements(
                function, load, element, store, stored, n_arrays, n_read, first_written, written, n_parameters,
                table + i * row_bytes,
            )  # fmt: skip
        restore_float_control(control)

    return update


@cache
def update_kernel(rule: Rule, gradient: DType, weight: DType | None = None) -> Callable[[int, int], None]:
    """Return the compiled update of a rule: called with the address of a table and its number of rows.

    Parameters
    ----------
    rule : Rule
        One of :data:`multiring.kernels.rules.RULES`, or a user's: that is compiled once per process.
    gradient : DType
        float16, bfloat16 or float32.
    weight : DType or None
        Of the weight that goes on the wire; None: there is none.

    Raises
    ------
    ArgumentTypeError
        If Numba cannot compile a user's function.
    """
    from numba.core.errors import NumbaError

    known = RULES.get(rule.name) is rule
    name = f"update,rule={rule.name},gradient={gradient.name},weight={weight.name if weight else None}"
    try:
        return compiled(make_update(rule, gradient, weight), "void(int64,int64)", name if known else None)
    except (NumbaError, NotImplementedError) as error:
        reason = next((line.strip() for line in str(error).splitlines()[1:] if line.strip()), str(error))
        raise ArgumentTypeError(
            f"rule: Numba cannot compile {rule.name}: got {reason!r}, wanted a function of "
            f"(gradient, {', '.join(rule.arrays)}, {', '.join(rule.parameters[1:])}) on float32 scalars that returns a "
            f"tuple of {len(rule.arrays)}, the new weight first; try numba.njit on it"
        ) from error


# --- sums of squares ------------------------------------------------------------------------------------------------


def sum_of_squares(load: Callable[..., Any], element: Any, address: int, count: int) -> float:
    """Return the float64 sum of squares of a contiguous array: not finite exactly where an element is not."""
    lanes = np.zeros(LANES)
    with np.errstate(all="ignore"):
        for index in range(int(count)):
            value = np.float64(load(_scalar(element, address, index)[()]))
            lanes[index % LANES if index < count - count % LANES else 0] += value * value
        return float(sum(lanes[1:], lanes[0]))


class _SumTemplate(AbstractTemplate):  # type: ignore[misc]
    key = sum_of_squares

    def generic(self, arguments: Any, keywords: Any) -> Any:
        return signature(types.float64, *arguments)


builtin_registry.register_global(sum_of_squares, types.Function(_SumTemplate))


@lower_builtin(sum_of_squares, types.VarArg(types.Any))
def _lower_sum(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    load, element = signature.args[0], signature.args[1].instance_type
    address = context.cast(builder, arguments[2], signature.args[2], types.int64)
    count = context.cast(builder, arguments[3], signature.args[3], types.int64)
    pointer = builder.inttoptr(address, context.get_data_type(element).as_pointer())
    double = ir.DoubleType()
    whole = builder.and_(count, I64(-LANES))

    def square(index: Any) -> Any:
        loaded = builder.load(builder.gep(pointer, [index]), align=1)
        value = context.data_model_manager[element].from_data(builder, loaded)
        kind, value = call_scalar(context, builder, load, [(element, value)])
        wide = context.cast(builder, value, kind, types.float64)
        return builder.fmul(wide, wide)

    def loop(name: str, first: Any, last: Any, step: int, starts: list[Any]) -> list[Any]:
        before = builder.block
        body, end = builder.append_basic_block(name), builder.append_basic_block(name + ".end")
        builder.cbranch(builder.icmp_signed("<", first, last), body, end)
        builder.position_at_end(body)
        index = builder.phi(I64)
        index.add_incoming(first, before)
        sums = [builder.phi(double) for _ in starts]
        for phi, start in zip(sums, starts, strict=True):
            phi.add_incoming(start, before)
        added = [builder.fadd(s, square(builder.add(index, I64(k)))) for k, s in enumerate(sums)]
        following = builder.add(index, I64(step), flags=("nsw",))
        last_block = builder.block
        index.add_incoming(following, last_block)
        for phi, value in zip(sums, added, strict=True):
            phi.add_incoming(value, last_block)
        builder.cbranch(builder.icmp_signed("<", following, last), body, end)
        builder.position_at_end(end)
        results = [builder.phi(double) for _ in starts]
        for phi, start, value in zip(results, starts, added, strict=True):
            phi.add_incoming(start, before)
            phi.add_incoming(value, last_block)
        return results

    lanes = loop("lanes", I64(0), whole, LANES, [ir.Constant(double, 0.0)] * LANES)
    lanes[:1] = loop("rest", whole, count, 1, lanes[:1])
    total = lanes[0]
    for lane in lanes[1:]:
        total = builder.fadd(total, lane)
    return total


def _make_square_sums(dtype: DType) -> Callable[[int, int, int], None]:
    load, element = load_of(dtype, FLOAT32), stored_type(dtype)

    def square_sums_of_rows(table: int, n_rows: int, sums: int) -> None:
        control = set_float_control()
        for i in range(n_rows):
            row = table + i * SQUARE_ROW_BYTES
            total = sum_of_squares(load, element, load_word(row), load_word(row + 8))
            add_float64(sums + 8 * load_word(row + 16), total)
        restore_float_control(control)

    return square_sums_of_rows


def add_float64(address: int, value: float) -> None:
    """Add to a float64 in memory."""
    ctypes.c_double.from_address(memory.check(address, 8, 8)).value += value


class _AddTemplate(AbstractTemplate):  # type: ignore[misc]
    key = add_float64

    def generic(self, arguments: Any, keywords: Any) -> Any:
        return signature(types.none, types.int64, types.float64)


builtin_registry.register_global(add_float64, types.Function(_AddTemplate))


@lower_builtin(add_float64, types.int64, types.float64)
def _lower_add(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    pointer = builder.inttoptr(arguments[0], ir.DoubleType().as_pointer())
    builder.store(builder.fadd(builder.load(pointer), arguments[1]), pointer)
    return context.get_dummy_value()


@cache
def square_sums(dtype: DType) -> Callable[[int, int, int], None]:
    """Return the compiled ``square_sums(table, n_rows, sums)``.

    A row is (address, elements, place in ``sums``); ``sums`` is the address of float64 values that are added to.
    """
    return compiled(_make_square_sums(dtype), "void(int64,int64,int64)", f"square_sums,dtype={dtype.name}")


class SquareSums:
    """Sums of squares of many spans, in one native call.

    Parameters
    ----------
    rows : list of (address, elements, place)
    dtype : DType
        float16, bfloat16 or float32.
    """

    def __init__(self, rows: list[tuple[int, int, int]], dtype: DType) -> None:
        self._table = np.array(rows, np.int64).reshape(-1, 3)
        self._function = square_sums(dtype)

    def add_to(self, sums: np.ndarray[Any, np.dtype[np.float64]]) -> None:
        """Add each span's sum to its place."""
        self._function(self._table.ctypes.data, len(self._table), sums.ctypes.data)
