"""The n-ary reduction as one kernel: many sources, many destinations, one rounding."""

from __future__ import annotations

from collections.abc import Callable

from multiring.kernels.cuda.arithmetic import Arithmetic, parameter_function
from multiring.kernels.cuda.fold import Shape, make_fold
from multiring.kernels.cuda.ptx import block_index, n_blocks, thread_index

__all__ = ["make_reduce"]


def make_reduce(arithmetic: Arithmetic, shape: Shape) -> Callable[..., None]:
    """Return the kernel that folds n sources into m destinations.

    Its arguments are int64: addresses of a table of ``n_sources`` source addresses and one of ``n_destinations``
    destination addresses, the elements of each, and the bits of the float64 that ``finish`` takes.
    """
    fold = make_fold(arithmetic, shape)
    parameter_of = parameter_function(arithmetic)

    def reduce(
        sources: int, n_sources: int, destinations: int, n_destinations: int, count: int, parameter: int
    ) -> None:
        fold(
            block_index(),
            n_blocks(),
            thread_index(),
            sources,
            n_sources,
            destinations,
            n_destinations,
            count,
            parameter_of(parameter),
        )

    return reduce
