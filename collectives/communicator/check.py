"""The rules of array arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from multiring.collectives.arrays import View, may_overlap_itself, view_of
from multiring.collectives.communicator.contract import Executor
from multiring.collectives.communicator.options import index_of
from multiring.collectives.device_view import device_view_of, is_on_device
from multiring.errors import ArgumentError, ArgumentTypeError

WORK: Any = 10_000
"""How many candidate solutions numpy may try for the question whether two strided arrays share an element."""

__all__ = [
    "counts_of",
    "host_output_view",
    "input_view",
    "matrix_of",
    "output_view",
    "refuse_overlap",
    "require_device",
    "require_dtype",
    "require_size",
    "same_memory",
    "shape_of",
    "shard",
]


def shard(count: int, size: int, rank: int) -> tuple[int, int]:
    """Return (first element, elements) of a rank's shard of ``count`` elements.

    The first ``count % size`` ranks have one more, as in ``numpy.array_split``.
    """
    each, more = divmod(count, size)
    return rank * each + min(rank, more), each + (rank < more)


def input_view(collective: str, name: str, x: Any) -> View:
    """Return the view of an array that is read, in host or CUDA memory."""
    if x is None:
        raise ArgumentTypeError(f"{collective}: {name}: got None, wanted an array")
    if not isinstance(x, (np.ndarray, np.generic)) and is_on_device(x):
        return device_view_of(x, f"{collective}: {name}")
    return view_of(x, f"{collective}: {name}")


def require_device(executor: Executor, collective: str, name: str, view: View | None) -> None:
    """Refuse an array that is not where the communicator's arrays are.

    Raises
    ------
    ArgumentTypeError
    """
    device = executor.on_device
    if view is None or view.on_device == (device is not None):
        if view is not None and device is not None and view.size:
            device.check_here(f"{collective}: {name}", view.address)
        return
    kind = type(view.object).__name__
    if view.on_device:
        raise ArgumentTypeError(
            f"{collective}: {name}: got {kind} in CUDA memory on a communicator of device 'host', wanted an array in "
            "host memory; copy the array to the host, or make the communicator with multiring.init(device='cuda')"
        )
    raise ArgumentTypeError(
        f"{collective}: {name}: got {kind} in host memory on a communicator of device 'cuda', wanted an array in CUDA "
        "memory; copy it with cupy.asarray(...), make it with comm.empty, or use a communicator of "
        "multiring.init(device='host')"
    )


def host_output_view(collective: str, name: str, x: Any) -> View:
    """Return the view of an array in host memory that is written."""
    return output_view(collective, name, x, host=True)


def output_view(collective: str, name: str, x: Any, *, host: bool = False) -> View:
    """Return the view of an array that is written.

    Raises
    ------
    ArgumentError
        If it cannot be.
    """
    view = view_of(x, f"{collective}: {name}") if host else input_view(collective, name, x)
    if not view.writable:
        what = "a numpy scalar, which is read-only" if isinstance(x, np.generic) else "a read-only array"
        raise ArgumentError(
            f"{collective}: {name}: got {what}, wanted a writable array to put the result in; pass a copy or out="
        )
    if may_overlap_itself(view):
        raise ArgumentError(
            f"{collective}: {name}: got strides {view.array.strides} for shape {view.shape}, "
            "whose elements share memory (broadcast_to or a sliding window), wanted one place for every element; "
            "pass a copy"
        )
    return view


def require_dtype(collective: str, x: View, out: View, names: tuple[str, str] = ("x", "out")) -> None:
    """Refuse two arrays of different element types."""
    if x.dtype is not out.dtype and x.dtype != out.dtype:
        raise ArgumentTypeError(
            f"{collective}: {names[1]}: got dtype {out.dtype.name} for {names[0]} of {x.dtype.name}, wanted the "
            "same; convert one of them"
        )


def require_size(collective: str, name: str, view: View, wanted: int, why: str) -> None:
    """Refuse an array of the wrong number of elements."""
    if view.size != wanted:
        raise ArgumentError(
            f"{collective}: {name}: got {view.size} elements (shape {view.shape}), wanted {wanted} elements: {why}; "
            f"pass an array of {wanted} elements of {view.dtype.name}"
        )


def same_memory(x: View, out: View) -> bool:
    """Return whether two views are one array: in place."""
    if x.object is out.object:
        return True
    alike = (x.contiguous and out.contiguous) or x.array.strides == out.array.strides
    return x.address == out.address and x.shape == out.shape and alike


def overlap(x: View, out: View) -> bool:
    """Return whether two arrays share memory: exact for contiguous ones, and where numpy can tell in little time."""
    if not x.size or not out.size or not np.may_share_memory(x.array, out.array):
        return False
    if x.contiguous and out.contiguous:
        return True
    try:
        return bool(np.shares_memory(x.array, out.array, max_work=WORK))
    except np.exceptions.TooHardError:
        return True


def refuse_overlap(collective: str, x: View, out: View, allowed: str, names: tuple[str, str] = ("x", "out")) -> None:
    """Refuse two arrays that share memory in a way that is not in place.

    Raises
    ------
    ArgumentError
        With the bytes that overlap and what would be ``allowed``.
    """
    if overlap(x, out):
        shift = out.address - x.address
        raise ArgumentError(
            f"{collective}: {names[1]} overlaps {names[0]}: got {out.nbytes} bytes that start {abs(shift)} bytes "
            f"{'after' if shift >= 0 else 'before'} {names[0]}'s {x.nbytes}, wanted separate arrays or {allowed}; "
            "pass a copy"
        )


def counts_of(collective: str, name: str, counts: Any, size: int) -> tuple[int, ...]:
    """Return one number of elements for each rank.

    Raises
    ------
    ArgumentError
        If there are not ``size`` of them, or one is below 0.
    """
    if isinstance(counts, (str, bytes)) or not hasattr(counts, "__iter__"):
        raise ArgumentTypeError(
            f"{collective}: {name}: got {counts!r}, wanted one number of elements for each of {size} ranks"
        )
    values = tuple(index_of(collective, f"{name}[{i}]", c) for i, c in enumerate(counts))
    if len(values) != size:
        raise ArgumentError(f"{collective}: {name}: got {len(values)} numbers, wanted one for each of {size} ranks")
    for rank, value in enumerate(values):
        if value < 0:
            raise ArgumentError(f"{collective}: {name}[{rank}]: got {value}, wanted 0 or more elements")
    return values


def matrix_of(collective: str, name: str, counts: Any, size: int) -> tuple[int, ...] | None:
    """Return a full table of counts, ``[source][destination]`` in row-major order; None if ``counts`` is one row."""
    rows = list(counts) if hasattr(counts, "__iter__") and not isinstance(counts, (str, bytes)) else []
    if not rows or not all(hasattr(row, "__iter__") for row in rows):
        return None
    if len(rows) != size:
        raise ArgumentError(f"{collective}: {name}: got {len(rows)} rows, wanted one for each of {size} source ranks")
    return tuple(c for i, row in enumerate(rows) for c in counts_of(collective, f"{name}[{i}]", row, size))


def shape_of(collective: str, shape: Any) -> tuple[int, ...]:
    """Return a shape given as a whole number or several."""
    extents: Sequence[Any] = shape if hasattr(shape, "__iter__") and not isinstance(shape, (str, bytes)) else (shape,)
    values = tuple(index_of(collective, "shape", n) for n in extents)
    if any(n < 0 for n in values):
        raise ArgumentError(f"{collective}: shape: got {values}, wanted no extent below 0")
    if math.prod(values) > 1 << 60:
        raise ArgumentError(f"{collective}: shape: got {values}, wanted less than 2**60 elements")
    return values
