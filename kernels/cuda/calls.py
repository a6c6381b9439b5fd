"""Kernels as calls on arrays: arguments checked, tables made, launches prepared.

Each function returns a :class:`~multiring.kernels.cuda.launch.Prepared` launch, to be called as often as wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multiring.errors import ArgumentError
from multiring.kernels.cuda import catalog
from multiring.kernels.cuda.arguments import View, check_apart, check_same, view_of
from multiring.kernels.cuda.arithmetic import cast_arithmetic
from multiring.kernels.cuda.compile import Kernel
from multiring.kernels.cuda.convert import first_vector
from multiring.kernels.cuda.launch import Launcher, Prepared, launcher
from multiring.kernels.cuda.rows import tiles_of, unit_shift_of
from multiring.kernels.cuda.update import update_units
from multiring.kernels.dtypes import DTYPES, DType
from multiring.kernels.operations import Reduction, operation_of
from multiring.kernels.primitives import word_of_float
from multiring.kernels.rules import RULES, Rule

__all__ = ["Tensor", "cast", "copy", "pack", "reduce", "unpack", "update"]


def _blocks(where: Launcher, kernel: Kernel, n_tiles: int) -> int:
    """Return a grid that fills the GPU once: blocks go on with further tiles."""
    return max(min(n_tiles, where.processors * kernel.blocks_per_processor), 1)


def reduce(
    sources: Sequence[Any],
    destinations: Sequence[Any],
    operation: str | Reduction = "sum",
    *,
    accumulate: DType | None = None,
    scale: float | None = None,
    n_ranks: int | None = None,
    where: Launcher | None = None,
) -> Prepared:
    """Fold n sources, from the left, into m destinations, rounded once.

    Parameters
    ----------
    sources, destinations : sequence of array
        Of one count. All sources have one type, and all destinations; the two differ only between floating-point
        types. A destination may be exactly a source.
    operation : str or Reduction
    accumulate : DType, optional
        See :func:`multiring.kernels.kinds.accumulate_of`.
    scale : float, optional
        What the result is multiplied by.
    n_ranks : int, optional
        What ``avg`` divides by; the number of sources if it is not given.
    where : Launcher, optional
        Instead of this process's own.
    """
    where = where or launcher()
    reduction = operation_of(operation)
    if reduction.name == "premul_sum":
        raise ArgumentError(
            f"operation: got premul_sum({reduction.scale}), wanted op='sum'; pass scale= for the sum, "
            "or scale each contribution by cast"
        )
    if not sources or not destinations:
        raise ArgumentError(
            f"reduce: got {len(sources)} sources and {len(destinations)} destinations, wanted at least one of each"
        )
    inputs = [(f"sources[{k}]", view_of(x, f"sources[{k}]")) for k, x in enumerate(sources)]
    outputs = [
        (f"destinations[{k}]", view_of(x, f"destinations[{k}]", written=True)) for k, x in enumerate(destinations)
    ]
    for group in (inputs, outputs):
        check_same([view for _, view in group], [name for name, _ in group])
    count = inputs[0][1].count
    if outputs[0][1].count != count:
        raise ArgumentError(
            f"destinations[0]: got {outputs[0][1].count} elements, wanted {count}, as many as sources[0]"
        )
    check_apart(inputs, outputs, in_place=True)
    kernel = catalog.reduce_kernel(
        inputs[0][1].dtype, reduction, accumulate, True, outputs[0][1].dtype, scale is not None
    )
    parameter = scale if scale is not None else float(n_ranks if n_ranks is not None else len(sources))
    source_table, kept = where.table([view.address for _, view in inputs])
    destination_table, also = where.table([view.address for _, view in outputs])
    arguments = [source_table, len(inputs), destination_table, len(outputs), count, word_of_float(parameter)]
    blocks = _blocks(where, kernel, -(-count // kernel.tile))
    return where.prepare(kernel, arguments, blocks, kept, also, sources, destinations)


def cast(source: Any, destination: Any, scale: float | None = None, *, where: Launcher | None = None) -> Prepared:
    """Convert one array to another's type, rounded to nearest even once; between equal types, copy it.

    Parameters
    ----------
    source, destination : array
        Of one count. The destination may be exactly the source where both have elements of one size.
    scale : float, optional
        What every element is multiplied by, in float32 (float64 if either is) before it is rounded.
    where : Launcher, optional
        Instead of this process's own.
    """
    where = where or launcher()
    x, y = view_of(source, "source"), view_of(destination, "destination", written=True)
    if x.count != y.count:
        raise ArgumentError(f"destination: got {y.count} elements, wanted {x.count}, as many as source")
    check_apart([("source", x)], [("destination", y)], in_place=True)
    kernel = catalog.cast_kernel(x.dtype, y.dtype, scale is not None)
    arguments = [x.address, y.address, x.count, word_of_float(1.0 if scale is None else scale)]
    return where.prepare(kernel, arguments, _blocks(where, kernel, -(-x.count // kernel.tile)), source, destination)


def copy(source: Any, destination: Any, *, where: Launcher | None = None) -> Prepared:
    """Copy one array to another of the same type."""
    x, y = view_of(source, "source"), view_of(destination, "destination", written=True)
    check_same([x, y], ["source", "destination"])
    return cast(source, destination, where=where)


def _move(arrays: Sequence[Any], buffer: Any, scale: float | None, where: Launcher | None, into: bool) -> Prepared:
    where = where or launcher()
    packed = view_of(buffer, "buffer", written=into)
    views = [view_of(x, f"arrays[{k}]", written=not into) for k, x in enumerate(arrays)]
    names = [f"arrays[{k}]" for k in range(len(views))]
    if not views:
        raise ArgumentError("arrays: got none, wanted at least one")
    for view, name in zip(views, names, strict=True):
        if view.dtype != views[0].dtype:
            check_same([view], [name], dtype=views[0].dtype)
    total = sum(view.count for view in views)
    if packed.count != total:
        raise ArgumentError(f"buffer: got {packed.count} elements, wanted {total}, those of all arrays together")
    rows, buffers = list(zip(names, views, strict=True)), [("buffer", packed)]
    check_apart(*((rows, buffers) if into else (buffers, rows)))
    dtypes = (views[0].dtype, packed.dtype) if into else (packed.dtype, views[0].dtype)
    kernel = catalog.pack_kernel(*dtypes, scale is not None)
    table, n_tiles = _pack_table(views, packed, dtypes, scale is not None, kernel, into)
    address, kept = where.table(table)
    arguments = [address, len(views), n_tiles, word_of_float(1.0 if scale is None else scale)]
    return where.prepare(kernel, arguments, _blocks(where, kernel, n_tiles), kept, arrays, buffer)


def _pack_table(
    views: Sequence[View], packed: View, dtypes: tuple[DType, DType], scale: bool, kernel: Kernel, into: bool
) -> tuple[Any, int]:
    arithmetic = cast_arithmetic(*dtypes, scale)
    unit = catalog.cast_shape(arithmetic).unit
    table = np.zeros((len(views), 4), np.int64)
    at, tiles = packed.address, 0
    for row, view in zip(table, views, strict=True):
        source, destination = (view.address, at) if into else (at, view.address)
        before = first_vector(source, arithmetic.source_bytes, destination, arithmetic.destination_bytes)
        row[:] = source, destination, view.count, tiles
        tiles += tiles_of(view.count * arithmetic.parts, unit_shift_of(before, unit), kernel.tile)
        at += view.count * packed.dtype.itemsize
    return table, tiles


def pack(arrays: Sequence[Any], buffer: Any, scale: float | None = None, *, where: Launcher | None = None) -> Prepared:
    """Put many arrays of one type into a buffer, one after the other without gaps, in the buffer's type.

    Parameters
    ----------
    arrays : sequence of array
        Of any counts and alignments.
    buffer : array
        Of as many elements as all of them.
    scale : float, optional
        See :func:`cast`.
    where : Launcher, optional
        Instead of this process's own.
    """
    return _move(arrays, buffer, scale, where, into=True)


def unpack(
    buffer: Any, arrays: Sequence[Any], scale: float | None = None, *, where: Launcher | None = None
) -> Prepared:
    """Take many arrays out of a buffer; the inverse of :func:`pack`."""
    return _move(arrays, buffer, scale, where, into=False)


@dataclass(frozen=True)
class Tensor:
    """One tensor, or a piece of one, for :func:`update`.

    Attributes
    ----------
    gradient : array
        float16, bfloat16 or float32.
    arrays : sequence of array
        float32, in the rule's order.
    parameters : mapping of str to float
        Every parameter of the rule.
    weight : array, optional
        Where the weight goes in the wire type.
    """

    gradient: Any
    arrays: Sequence[Any]
    parameters: dict[str, float]
    weight: Any = None


def _parameters(rule: Rule, tensor: Tensor, what: str) -> list[float]:
    if set(tensor.parameters) != set(rule.parameters):
        raise ArgumentError(
            f"{what}.parameters: got {', '.join(sorted(tensor.parameters))}, "
            f"wanted {', '.join(rule.parameters)} for rule {rule.name}"
        )
    return [tensor.parameters[name] for name in rule.parameters]


def update(rule: str | Rule, tensors: Sequence[Tensor], *, where: Launcher | None = None) -> Prepared:
    """Update tensors by a rule, all in one launch and one pass.

    Parameters
    ----------
    rule : str or Rule
        A name in :data:`multiring.kernels.rules.RULES`, or a rule.
    tensors : sequence of Tensor
        Whose gradients have one type, and whose weights have one type.
    where : Launcher, optional
        Instead of this process's own.
    """
    where = where or launcher()
    if isinstance(rule, str):
        if rule not in RULES:
            raise ArgumentError(f"rule: got {rule!r}, wanted one of {', '.join(RULES)}, or a Rule")
        rule = RULES[rule]
    if not tensors:
        raise ArgumentError("tensors: got none, wanted at least one")
    read: list[tuple[str, View]] = []
    written: list[tuple[str, View]] = []
    rows: list[tuple[View, View | None, list[View], list[float]]] = []
    gradient = weight = None
    for k, tensor in enumerate(tensors):
        what = f"tensors[{k}]"
        slope = view_of(tensor.gradient, f"{what}.gradient")
        gradient = gradient or slope.dtype
        check_same([slope], [f"{what}.gradient"], dtype=gradient)
        if len(tensor.arrays) != len(rule.arrays):
            raise ArgumentError(
                f"{what}.arrays: got {len(tensor.arrays)}, wanted {len(rule.arrays)}: {', '.join(rule.arrays)}"
            )
        views = []
        for j, (name, array) in enumerate(zip(rule.arrays, tensor.arrays, strict=True)):
            view = view_of(array, f"{what}.{name}", written=j >= rule.first_written)
            check_same([view], [f"{what}.{name}"], dtype=DTYPES["float32"])
            if view.count != slope.count:
                raise ArgumentError(
                    f"{what}.{name}: got {view.count} elements, wanted {slope.count}, as many as its gradient"
                )
            (written if j >= rule.first_written else read).append((f"{what}.{name}", view))
            views.append(view)
        read.append((f"{what}.gradient", slope))
        out = None
        if (tensor.weight is not None) != (tensors[0].weight is not None):
            raise ArgumentError(f"{what}.weight: got one tensor with and one without, wanted all or none")
        if tensor.weight is not None:
            out = view_of(tensor.weight, f"{what}.weight", written=True)
            weight = weight or out.dtype
            check_same([out], [f"{what}.weight"], dtype=weight)
            if out.count != slope.count:
                raise ArgumentError(
                    f"{what}.weight: got {out.count} elements, wanted {slope.count}, as many as its gradient"
                )
            written.append((f"{what}.weight", out))
        rows.append((slope, out, views, _parameters(rule, tensor, what)))
    assert gradient is not None
    check_apart(read, written)
    kernel = catalog.update_kernel(rule, gradient, weight)
    unit, _ = update_units(gradient, weight)
    parameters = np.array([row[3] for row in rows], np.float32).reshape(len(rows), -1)
    parameters_at, kept = where.table(
        np.pad(parameters.view(np.uint8).ravel(), (0, -parameters.nbytes % 8)).view(np.int64)
    )
    table = np.zeros((len(rows), 5 + len(rule.arrays)), np.int64)
    tiles = 0
    for k, (slope, out, views, _) in enumerate(rows):
        addresses = [slope.address, *([out.address] if out else []), *(view.address for view in views)]
        sizes = [slope.dtype.itemsize, *([out.dtype.itemsize] if out else []), *([4] * len(views))]
        shift = unit_shift_of(_first_vector(addresses, sizes), unit)
        first = parameters_at + 4 * parameters.shape[1] * k
        table[k] = slope.address, out.address if out else 0, slope.count, tiles, first, *(v.address for v in views)
        tiles += tiles_of(slope.count, shift, kernel.tile)
    address, also = where.table(table)
    arguments = [address, len(rows), tiles]
    return where.prepare(kernel, arguments, _blocks(where, kernel, tiles), kept, also, tensors)


def _first_vector(addresses: Sequence[int], sizes: Sequence[int]) -> int:
    """Return how many elements lie before the first that all arrays reach at a multiple of 16; -1: there is none."""
    narrowest = min(sizes)
    before = (-addresses[sizes.index(narrowest)] & 15) // narrowest
    return before if all((a + before * s) % 16 == 0 for a, s in zip(addresses, sizes, strict=True)) else -1
