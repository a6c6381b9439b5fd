"""The fused weight update as one kernel: gradient shard, master and moments in; all of them and the wire weight out.

One launch works on many tensors, or pieces of tensors, each with its own parameters: rules such as LARS need that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from multiring.kernels import kinds
from multiring.kernels.cuda.homes import device_function
from multiring.kernels.cuda.lanes import (
    VECTOR_BYTES,
    load_arrays,
    load_lanes,
    map_lanes,
    map_tuples,
    store_arrays,
    store_lanes,
)
from multiring.kernels.cuda.ptx import block_index, n_blocks, thread_index
from multiring.kernels.cuda.rows import find_row
from multiring.kernels.dtypes import DTYPES, DType
from multiring.kernels.primitives import load_word
from multiring.kernels.rules import Rule

__all__ = [
    "UPDATE_ARRAYS",
    "UPDATE_COUNT",
    "UPDATE_FIRST_TILE",
    "UPDATE_GRADIENT",
    "UPDATE_PARAMETERS",
    "UPDATE_WEIGHT",
    "make_update",
    "update_row_words",
    "update_units",
]

UPDATE_GRADIENT = 0
UPDATE_WEIGHT = 1
UPDATE_COUNT = 2
UPDATE_FIRST_TILE = 3
UPDATE_PARAMETERS = 4
UPDATE_ARRAYS = 5
"""Words of a row: addresses of the gradient and of the wire weight, elements, its first tile's number, the address of
float32 parameters in the rule's order, then one address for each of the rule's arrays."""

FLOAT_BYTES = 4


def update_row_words(rule: Rule) -> int:
    """Return the words of a row."""
    return UPDATE_ARRAYS + len(rule.arrays)


def update_units(gradient: DType, weight: DType | None) -> tuple[int, int]:
    """Return the elements of a unit, and how many units a thread does at once."""
    unit = VECTOR_BYTES // min(gradient.itemsize, weight.itemsize if weight else FLOAT_BYTES)
    return unit, 1 if unit == 8 else 2


def make_update(rule: Rule, gradient: DType, weight: DType | None, threads: int) -> Callable[..., None]:
    """Return the kernel that updates every row of a table.

    Its arguments are int64: the table's address, its rows, and the tiles of all rows together.

    Parameters
    ----------
    rule : Rule
    gradient : DType
        float16, bfloat16 or float32.
    weight : DType or None
        Of the weight that goes on the wire; None: there is none.
    threads : int
        Of a block.
    """
    unit, n_units = update_units(gradient, weight)
    tile_elements = threads * unit * n_units
    row_bytes, n_arrays, n_fixed = 8 * update_row_words(rule), len(rule.arrays), UPDATE_ARRAYS
    gradient_bytes, weight_bytes = gradient.itemsize, weight.itemsize if weight else FLOAT_BYTES
    narrow_bytes = VECTOR_BYTES // unit
    narrow_shift = narrow_bytes.bit_length() - 1
    narrow_word = UPDATE_GRADIENT if gradient_bytes == narrow_bytes else UPDATE_WEIGHT
    has_weight = weight is not None
    vector = _make_part(rule, gradient, weight, unit, n_units, threads * unit)
    units = _make_part(rule, gradient, weight, unit, 1, 0)
    element = _make_part(rule, gradient, weight, 1, 1, 0)

    def head(row: int) -> int:
        before = (-load_word(row + 8 * narrow_word) & 15) >> narrow_shift
        off = load_word(row + 8 * UPDATE_GRADIENT) + before * gradient_bytes
        if has_weight:
            off |= load_word(row + 8 * UPDATE_WEIGHT) + before * weight_bytes
        k = 0
        while k < n_arrays:
            off |= load_word(row + 8 * (n_fixed + k)) + before * FLOAT_BYTES
            k += 1
        return before if off & 15 == 0 else -1

    first_vector = device_function(head)

    def update(table: int, n_rows: int, n_tiles: int) -> None:
        thread = thread_index()
        tile = block_index()
        while tile < n_tiles:
            row = find_row(table, n_rows, row_bytes, 8 * UPDATE_FIRST_TILE, tile)
            before = first_vector(row)
            begin = (tile - load_word(row + 8 * UPDATE_FIRST_TILE)) * tile_elements
            if before > 0:
                begin -= unit - before
            end = min(begin + tile_elements, load_word(row + 8 * UPDATE_COUNT))
            at = begin
            if before > 0 and begin < 0:
                at = before
                index = thread
                while index < min(before, end):
                    element(row, index)
                    index += threads
            begin = max(at, 0)
            inner = 0
            if before >= 0 and end > begin:
                inner = (end - begin) & ~(unit - 1)
            if inner == tile_elements:
                vector(row, begin + thread * unit)
            else:
                index = begin + thread * unit
                while index < begin + inner:
                    units(row, index)
                    index += threads * unit
                index = begin + inner + thread
                while index < end:
                    element(row, index)
                    index += threads
            tile += n_blocks()

    return update


def _make_part(
    rule: Rule, gradient: DType, weight: DType | None, per_unit: int, n_units: int, stride: int
) -> Callable[..., None]:
    load: Any = kinds.load_of(gradient, DTYPES["float32"])
    store: Any = kinds.store_of(DTYPES["float32"], weight or DTYPES["float32"])
    source, target = kinds.stored_type(gradient), kinds.stored_type(weight or DTYPES["float32"])
    source_bytes, target_bytes = np.dtype(source).itemsize, np.dtype(target).itemsize
    function = device_function(rule.function) if rule.custom else rule.function
    n_read, n_parameters = rule.n_read, len(rule.parameters)
    written = UPDATE_ARRAYS + rule.first_written
    chosen = rule.weight if rule.weight is not None else 0
    has_weight = weight is not None

    def part(row: int, at: int) -> None:
        parameters = load_lanes(np.float32, 1, n_parameters, load_word(row + 8 * UPDATE_PARAMETERS), FLOAT_BYTES)
        slope = load_lanes(
            source, per_unit, n_units, load_word(row + 8 * UPDATE_GRADIENT) + at * source_bytes, stride * source_bytes
        )
        arrays = load_arrays(
            np.float32, per_unit, n_units, n_read, row + 8 * UPDATE_ARRAYS, at * FLOAT_BYTES, stride * FLOAT_BYTES
        )
        results = map_tuples(function, np.float32, (map_lanes(load, np.float32, (slope,), ()), *arrays), parameters)
        store_arrays(np.float32, per_unit, n_units, row + 8 * written, at * FLOAT_BYTES, stride * FLOAT_BYTES, results)
        if has_weight:
            out = map_lanes(store, target, (results[chosen],), ())
            where = load_word(row + 8 * UPDATE_WEIGHT) + at * target_bytes
            store_lanes(target, per_unit, n_units, where, stride * target_bytes, out)

    return device_function(part)
