"""Chunk packing as one kernel: many arrays of any size and alignment, each to its place, with a cast and a scale."""

from __future__ import annotations

from collections.abc import Callable

from multiring.kernels.cuda.arithmetic import Arithmetic, parameter_function
from multiring.kernels.cuda.convert import make_convert, make_first_vector
from multiring.kernels.cuda.fold import Shape
from multiring.kernels.cuda.ptx import block_index, n_blocks, thread_index
from multiring.kernels.cuda.rows import find_row
from multiring.kernels.primitives import load_word

__all__ = ["PACK_ROW_WORDS", "ROW_COUNT", "ROW_DESTINATION", "ROW_FIRST_TILE", "ROW_SOURCE", "make_pack"]

ROW_SOURCE = 0
ROW_DESTINATION = 1
ROW_COUNT = 2
ROW_FIRST_TILE = 3
PACK_ROW_WORDS = 4
"""Words of a row: address to read, address to write, elements, and its first tile's number."""


def make_pack(arithmetic: Arithmetic, shape: Shape) -> Callable[..., None]:
    """Return the kernel that converts or copies every row of a table, into a buffer or out of it.

    Its arguments are int64: the table's address, its rows, the tiles of all rows together, and the bits of the float64
    that scales.
    """
    parts = arithmetic.parts
    unit, tile_elements = shape.unit, shape.tile
    source_bytes, destination_bytes = arithmetic.source_bytes, arithmetic.destination_bytes
    head = make_first_vector(source_bytes, destination_bytes)
    convert = make_convert(arithmetic, shape)
    parameter_of = parameter_function(arithmetic)

    def pack(table: int, n_rows: int, n_tiles: int, parameter: int) -> None:
        factor = parameter_of(parameter)
        thread = thread_index()
        tile = block_index()
        while tile < n_tiles:
            row = find_row(table, n_rows, 8 * PACK_ROW_WORDS, 8 * ROW_FIRST_TILE, tile)
            source = load_word(row + 8 * ROW_SOURCE)
            destination = load_word(row + 8 * ROW_DESTINATION)
            before = head(source, destination)
            begin = (tile - load_word(row + 8 * ROW_FIRST_TILE)) * tile_elements
            if before > 0:
                begin -= unit - before
            end = min(begin + tile_elements, load_word(row + 8 * ROW_COUNT) * parts)
            begin = max(begin, 0)
            convert(
                0,
                1,
                thread,
                source + begin * source_bytes,
                destination + begin * destination_bytes,
                end - begin,
                factor,
            )
            tile += n_blocks()

    return pack
