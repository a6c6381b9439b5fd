"""One source to one destination as one kernel: casts, with and without a scale, and copies."""

from __future__ import annotations

from collections.abc import Callable

from multiring.kernels.cuda.arithmetic import Arithmetic, parameter_function
from multiring.kernels.cuda.convert import make_convert
from multiring.kernels.cuda.fold import Shape
from multiring.kernels.cuda.ptx import block_index, n_blocks, thread_index

__all__ = ["make_cast"]


def make_cast(arithmetic: Arithmetic, shape: Shape) -> Callable[..., None]:
    """Return the kernel that converts or copies a span.

    Its arguments are int64: two addresses, the count of elements, and the bits of the float64 that scales.
    """
    parts = arithmetic.parts
    convert = make_convert(arithmetic, shape)
    parameter_of = parameter_function(arithmetic)

    def cast(source: int, destination: int, count: int, parameter: int) -> None:
        convert(block_index(), n_blocks(), thread_index(), source, destination, count * parts, parameter_of(parameter))

    return cast
