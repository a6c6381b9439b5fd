"""From a call's arguments to an action: the collectives of equal shares."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from multiring.collectives.arrays import View
from multiring.collectives.communicator.action import CollectiveAction, FunctionAction, SequenceAction
from multiring.collectives.communicator.check import (
    input_view,
    output_view,
    refuse_overlap,
    require_device,
    require_dtype,
    require_size,
    same_memory,
    shard,
)
from multiring.collectives.communicator.contract import Executor, Invocation
from multiring.collectives.communicator.device_action import InStreams, bind_streams, streams_of
from multiring.collectives.communicator.options import (
    index_of,
    request_of,
    root_of,
    timeout_of,
)
from multiring.collectives.device_view import device_view_of
from multiring.errors import ArgumentError, ArgumentTypeError
from multiring.kernels.dtypes import numpy_dtype

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "gather",
    "new_array",
    "reduce",
    "reduce_scatter",
    "scatter",
]

Built = CollectiveAction | SequenceAction


def action_of(
    executor: Executor,
    collective: str,
    x: View | None,
    out: View | None,
    count: int,
    options: dict[str, Any],
    *,
    reduces: bool,
    in_place: bool = False,
    root: int = 0,
    counts: tuple[int, ...] | None = None,
    result: Any = None,
    method: str | None = None,
) -> Built:
    """Bind checked arrays to an invocation.

    Parameters
    ----------
    x, out : View or None
        None: this rank has no such array, address 0.
    in_place : bool
        Whether ``x`` and ``out`` are one array, as opposed to one lying at its place inside the other.
    method : str, optional
        What errors call it, where that is another name than the collective's.
    """
    view = cast(View, x if x is not None else out)
    name = method or collective
    for what, array in (("x", x), ("out", out)):
        require_device(executor, name, what, array)
    request = request_of(executor, collective, view.dtype, options, reduces=reduces, root=root, method=method)
    limit_s = timeout_of(name, options.get("timeout"))
    streams = streams_of(executor, name, options.get("stream"), x, out)
    invocation: Invocation
    if executor.on_device is not None:
        invocation = InStreams(executor.on_device.prepare_on_device(request, count, counts), streams)
    else:
        invocation = executor.prepare(request, count, counts)
    action = CollectiveAction(collective, result, (x, out, result), invocation, limit_s)
    bind_streams(executor, action, streams)
    if in_place:
        action.x_address = action.out_address = action.pack_in_place(view)
    else:
        if x is not None:
            action.x_address = action.pack(x)
        if out is not None:
            action.out_address = action.unpack(out)
    if executor.on_device is not None and (options.get("check") or options.get("async_op")):
        return SequenceAction(collective, result, [action, FunctionAction("finish", executor.on_device.finish)])
    if options.get("check"):
        return SequenceAction(collective, result, [action, FunctionAction("check", executor.check)])
    return action


def new_array(executor: Executor, shape: tuple[int, ...], like: View) -> View:
    """Return the view of a new C-ordered array: symmetric if ``like`` is."""
    if like.on_device:
        require_device(executor, "out", "x", like)
        # Ordinary device memory has no owner that would be the caller's library: symmetric memory has.
        return device_view_of(executor.empty(shape, like.dtype))
    if like.nbytes and executor.is_symmetric(like.address, like.nbytes):
        array = executor.empty(shape, like.dtype)
    else:
        array = np.empty(shape, numpy_dtype(like.dtype))
    return View(array, array, like.dtype)


def share_shape(x: View, size: int, elements: int) -> tuple[int, ...]:
    """Return the shape of a rank's share of ``x``: along axis 0 where that divides, else flat."""
    if x.shape and x.shape[0] % size == 0:
        return (x.shape[0] // size, *x.shape[1:])
    return (elements,)


def whole_shape(x: View, size: int, elements: int) -> tuple[int, ...]:
    """Return the shape of ``size`` arrays like ``x``, one after the other along axis 0; flat if shares are uneven."""
    if x.size * size == elements:
        return (x.shape[0] * size, *x.shape[1:]) if x.shape else (size,)
    return (elements,)


def same_shape(collective: str, x: View, out: View) -> bool:
    """Check the output of a collective that keeps the shape; return whether it is in place."""
    require_dtype(collective, x, out)
    if x.shape != out.shape:
        raise ArgumentError(
            f"{collective}: out: got shape {out.shape}, wanted {x.shape}, the shape of x; use "
            f"out.reshape({x.shape}) or x.reshape(...)"
        )
    if same_memory(x, out):
        return True
    refuse_overlap(collective, x, out, "out=x (in place)")
    return False


def all_reduce(executor: Executor, x: Any, out: Any = None, **options: Any) -> Built:
    """Build an all_reduce."""
    name = "all_reduce"
    if out is None or out is x:
        view = output_view(name, "x", x)
        return action_of(executor, name, view, view, view.size, options, reduces=True, in_place=True, result=x)
    source, target = input_view(name, "x", x), output_view(name, "out", out)
    inside = same_shape(name, source, target)
    return action_of(executor, name, source, target, source.size, options, reduces=True, in_place=inside, result=out)


def reduce(executor: Executor, x: Any, out: Any = None, root: Any = 0, **options: Any) -> Built:
    """Build a reduce: the result is the output on the root and None elsewhere."""
    name = "reduce"
    rank = root_of(executor, name, root)
    if executor.rank != rank:
        # What lies in out elsewhere is neither needed nor touched: reduce(x, x) is legal on every rank.
        source = input_view(name, "x", x)
        return action_of(executor, name, source, None, source.size, options, reduces=True, root=rank)
    if out is None or out is x:
        view = output_view(name, "x", x)
        return action_of(
            executor, name, view, view, view.size, options, reduces=True, in_place=True, root=rank, result=x
        )
    source, target = input_view(name, "x", x), output_view(name, "out", out)
    inside = same_shape(name, source, target)
    return action_of(
        executor, name, source, target, source.size, options, reduces=True, in_place=inside, root=rank, result=out
    )


def broadcast(executor: Executor, x: Any, root: Any = 0, out: Any = None, **options: Any) -> Built:
    """Build a broadcast: from ``x`` on the root into ``x``, or ``out``, on every rank."""
    name = "broadcast"
    rank = root_of(executor, name, root)
    if out is None or out is x:
        # The root's array is only read.
        view = input_view(name, "x", x) if executor.rank == rank else output_view(name, "x", x)
        if executor.rank == rank:
            action = action_of(executor, name, view, None, view.size, options, reduces=False, root=rank, result=x)
            inner = action.parts[0] if isinstance(action, SequenceAction) else action
            cast(CollectiveAction, inner).out_address = cast(CollectiveAction, inner).x_address
            return action
        return action_of(
            executor, name, view, view, view.size, options, reduces=False, in_place=True, root=rank, result=x
        )
    target = output_view(name, "out", out)
    if executor.rank != rank:
        return action_of(
            executor, name, target, target, target.size, options, reduces=False, in_place=True, root=rank, result=out
        )
    source = input_view(name, "x", x)
    inside = same_shape(name, source, target)
    return action_of(
        executor, name, source, target, source.size, options, reduces=False, in_place=inside, root=rank, result=out
    )


def reduce_scatter(executor: Executor, x: Any, out: Any = None, **options: Any) -> Built:
    """Build a reduce_scatter: this rank's share of the reduced array."""
    name = "reduce_scatter"
    source = input_view(name, "x", x)
    start, mine = shard(source.size, executor.size, executor.rank)
    if out is None:
        target = new_array(executor, share_shape(source, executor.size, mine), source)
    else:
        target = output_view(name, "out", out)
        require_dtype(name, source, target)
        require_size(
            name, "out", target, mine, f"rank {executor.rank}'s share of x's {source.size} on {executor.size} ranks"
        )
        refuse_unless_place(name, source, target, start, "x", "out")
    return action_of(executor, name, source, target, source.size, options, reduces=True, result=target.object)


def refuse_unless_place(collective: str, whole: View, part: View, start: int, whole_name: str, part_name: str) -> None:
    """Refuse overlap of a rank's share with the whole, but for the share's own place in it (NCCL's in place)."""
    place = whole.address + start * whole.dtype.itemsize
    if whole.direct and part.direct and part.address == place:
        return
    first, last = start, start + part.size
    refuse_overlap(
        collective,
        whole,
        part,
        f"{part_name} at its own place in it, {whole_name}.reshape(-1)[{first}:{last}], both contiguous",
        (whole_name, part_name),
    )


def all_gather(executor: Executor, x: Any, out: Any = None, **options: Any) -> Built:
    """Build an all_gather."""
    name = "all_gather"
    source = input_view(name, "x", x)
    if out is None:
        count = source.size * executor.size
        target = new_array(executor, whole_shape(source, executor.size, count), source)
    else:
        target = output_view(name, "out", out)
        count = target.size
        require_part(name, source, target, executor.size, executor.rank)
        refuse_unless_place(name, target, source, shard(count, executor.size, executor.rank)[0], "out", "x")
    return action_of(executor, name, source, target, count, options, reduces=False, result=target.object)


def require_part(collective: str, x: View, out: View, size: int, rank: int) -> None:
    """Check that ``x`` is this rank's share of ``out``."""
    require_dtype(collective, x, out)
    mine = shard(out.size, size, rank)[1]
    if x.size != mine:
        raise ArgumentError(
            f"{collective}: out: got {out.size} elements (shape {out.shape}) for x of {x.size}, wanted "
            f"{x.size * size} = {size} ranks x {x.size}: of {out.size} elements rank {rank} has {mine}; "
            f"use {collective}(x) or another out"
        )


def all_to_all(executor: Executor, x: Any, out: Any = None, **options: Any) -> Built:
    """Build an all_to_all: block j of x goes to rank j."""
    name = "all_to_all"
    source = input_view(name, "x", x)
    if source.size % executor.size:
        raise ArgumentError(
            f"{name}: x: got {source.size} elements (shape {source.shape}), wanted a multiple of {executor.size} "
            "ranks; use all_to_all_v"
        )
    if out is None:
        target = new_array(executor, source.shape, source)
    else:
        target = output_view(name, "out", out)
        require_dtype(name, source, target)
        require_size(name, "out", target, source.size, "as many as x")
        refuse_overlap(name, source, target, "out=None (all_to_all has no in place form)")
    return action_of(executor, name, source, target, source.size, options, reduces=False, result=target.object)


def gather(executor: Executor, x: Any, out: Any = None, root: Any = 0, count: Any = None, **options: Any) -> Built:
    """Build a gather: the result is the output on the root and None elsewhere."""
    name = "gather"
    rank, size = root_of(executor, name, root), executor.size
    source = input_view(name, "x", x)
    total = source.size * size if count is None else index_of(name, "count", count)
    if executor.rank != rank:
        require_size(name, "x", source, shard(total, size, executor.rank)[1], f"this rank's share of count={total}")
        return action_of(executor, name, source, None, total, options, reduces=False, root=rank)
    if out is None:
        require_size(name, "x", source, shard(total, size, rank)[1], f"this rank's share of count={total}")
        target = new_array(executor, whole_shape(source, size, total), source)
    else:
        target = output_view(name, "out", out)
        if count is not None:
            require_size(name, "out", target, total, f"count={total}")
        total = target.size
        require_part(name, source, target, size, rank)
        refuse_unless_place(name, target, source, shard(total, size, rank)[0], "out", "x")
    return action_of(executor, name, source, target, total, options, reduces=False, root=rank, result=target.object)


def scatter(executor: Executor, x: Any, out: Any = None, root: Any = 0, count: Any = None, **options: Any) -> Built:
    """Build a scatter."""
    name = "scatter"
    rank, size = root_of(executor, name, root), executor.size
    if executor.rank != rank:
        if out is None:
            raise ArgumentTypeError(
                f"{name}: out: got None on rank {executor.rank}, wanted an array on every rank but the root {rank}, "
                f"which alone knows shape and dtype; pass out=numpy.empty(...)"
            )
        target = output_view(name, "out", out)
        total = target.size * size if count is None else index_of(name, "count", count)
        require_size(name, "out", target, shard(total, size, executor.rank)[1], f"this rank's share of count={total}")
        return action_of(executor, name, None, target, total, options, reduces=False, root=rank, result=out)
    source = input_view(name, "x", x)
    total = source.size
    if count is not None:
        require_size(name, "x", source, index_of(name, "count", count), f"count={count}")
    start, mine = shard(total, size, rank)
    if out is None:
        target = new_array(executor, share_shape(source, size, mine), source)
    else:
        target = output_view(name, "out", out)
        require_dtype(name, source, target)
        require_size(name, "out", target, mine, f"rank {rank}'s share of x's {total} on {size} ranks")
        refuse_unless_place(name, source, target, start, "x", "out")
    return action_of(executor, name, source, target, total, options, reduces=False, root=rank, result=target.object)
