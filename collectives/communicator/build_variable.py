"""From a call's arguments to an action: the collectives of explicit counts."""

from __future__ import annotations

import math
from typing import Any

from multiring.collectives.arrays import View
from multiring.collectives.communicator.build import Built, action_of, new_array, refuse_unless_place
from multiring.collectives.communicator.check import (
    counts_of,
    input_view,
    matrix_of,
    output_view,
    refuse_overlap,
    require_dtype,
    require_size,
)
from multiring.collectives.communicator.contract import Executor
from multiring.errors import ArgumentError, ArgumentTypeError

__all__ = ["all_gather_v", "all_to_all_v", "reduce_scatter_v", "row_shape"]


def row_shape(x: View, elements: int) -> tuple[int, ...]:
    """Return the shape of ``elements`` elements in rows like those of ``x``; flat where they are no whole rows."""
    row = math.prod(x.shape[1:])
    if len(x.shape) > 1 and row and elements % row == 0:
        return (elements // row, *x.shape[1:])
    return (elements,)


def reduce_scatter_v(executor: Executor, x: Any, counts: Any, out: Any = None, **options: Any) -> Built:
    """Build a reduce_scatter with a share of ``counts[rank]`` elements for each rank."""
    name, rank = "reduce_scatter_v", executor.rank
    shares = counts_of(name, "counts", counts, executor.size)
    source = input_view(name, "x", x)
    require_size(name, "x", source, sum(shares), f"the sum of counts {shares}")
    if out is None:
        target = new_array(executor, row_shape(source, shares[rank]), source)
    else:
        target = output_view(name, "out", out)
        require_dtype(name, source, target)
        require_size(name, "out", target, shares[rank], f"counts[{rank}]")
        refuse_unless_place(name, source, target, sum(shares[:rank]), "x", "out")
    return action_of(
        executor,
        "reduce_scatter",
        source,
        target,
        source.size,
        options,
        reduces=True,
        counts=shares,
        result=target.object,
        method=name,
    )


def all_gather_v(executor: Executor, x: Any, counts: Any, out: Any = None, **options: Any) -> Built:
    """Build an all_gather with ``counts[rank]`` elements from each rank."""
    name, rank = "all_gather_v", executor.rank
    if counts is None:
        raise ArgumentTypeError(
            f"{name}: counts: got None, wanted one number for each rank: a prepared call is local, it cannot ask"
        )
    shares = counts_of(name, "counts", counts, executor.size)
    source = input_view(name, "x", x)
    total = sum(shares)
    require_size(name, "x", source, shares[rank], f"counts[{rank}]")
    if out is None:
        target = new_array(executor, row_shape(source, total), source)
    else:
        target = output_view(name, "out", out)
        require_dtype(name, source, target)
        require_size(name, "out", target, total, f"the sum of counts {shares}")
        refuse_unless_place(name, target, source, sum(shares[:rank]), "out", "x")
    return action_of(
        executor,
        "all_gather",
        source,
        target,
        total,
        options,
        reduces=False,
        counts=shares,
        result=target.object,
        method=name,
    )


def all_to_all_v(
    executor: Executor, x: Any, send_counts: Any, recv_counts: Any = None, out: Any = None, **options: Any
) -> Built:
    """Build an all_to_all with ``send_counts[source][destination]`` elements for each pair."""
    name, rank, size = "all_to_all_v", executor.rank, executor.size
    table = matrix_of(name, "send_counts", send_counts, size)
    if table is None:
        raise ArgumentTypeError(
            f"{name}: send_counts: got one row, wanted the whole table [source][destination]: a prepared call is "
            "local, it cannot ask"
        )
    source = input_view(name, "x", x)
    sent, received = sum(table[rank * size : (rank + 1) * size]), sum(table[rank::size])
    require_size(name, "x", source, sent, f"the sum of send_counts {table[rank * size : (rank + 1) * size]}")
    if recv_counts is not None:
        wanted = counts_of(name, "recv_counts", recv_counts, size)
        if wanted != table[rank::size]:
            raise ArgumentError(
                f"{name}: recv_counts: got {wanted}, wanted {table[rank::size]}, what the other ranks send"
            )
    if out is None:
        target = new_array(executor, row_shape(source, received), source)
    else:
        target = output_view(name, "out", out)
        require_dtype(name, source, target)
        require_size(name, "out", target, received, f"the sum of what the ranks send here, {table[rank::size]}")
        refuse_overlap(name, source, target, "out=None (all_to_all_v has no in place form)")
    return action_of(
        executor,
        "all_to_all",
        source,
        target,
        sum(table),
        options,
        reduces=False,
        counts=table,
        result=target.object,
        method=name,
    )
