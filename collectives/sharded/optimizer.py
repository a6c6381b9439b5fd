"""The sharded weight update: reduce-scatter the gradients, update this rank's shard, all-gather the weights."""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.arrays import View, view_of
from multiring.collectives.communicator.check import input_view, output_view
from multiring.collectives.sharded.accumulate import Accumulator
from multiring.collectives.sharded.agree import agree
from multiring.collectives.sharded.buckets import Bucket
from multiring.collectives.sharded.groups import rules_of
from multiring.collectives.sharded.rules import UpdateRule
from multiring.collectives.sharded.stream import FlatTensors, Stream
from multiring.collectives.sharded.updates import updates_of
from multiring.errors import ArgumentError, ArgumentTypeError
from multiring.kernels.dtypes import DType, dtype_of, numpy_dtype

__all__ = ["ShardedOptimizer", "StepResult"]

_log = logging.getLogger("multiring.sharded")
OVERLAPPED_BUCKET_BYTES = 32 << 20
ALONE_BUCKET_BYTES = 1 << 30
_WIRES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step did; the same on every rank.

    Attributes
    ----------
    applied : bool
        False: the gradient had an inf or a NaN, and nothing was changed.
    gradient_norm : float or None
        Of the whole averaged gradient before clipping; None where it was not needed.
    scale : float
        What clipping multiplied the gradient by.
    """

    applied: bool
    gradient_norm: float | None
    scale: float


class _Collective:
    """A collective on fixed arrays: synchronous by a prepared call, or queued."""

    def __init__(self, comm: Any, name: str, x: Any, out: Any, **options: Any) -> None:
        self._call = comm.prepare(name, x, out, **options)
        self._method, self._arrays, self._options = getattr(comm, name), (x, out), options

    def start(self, queued: bool) -> Any:
        """Return a Work, or None when it is done already."""
        if queued:
            return self._method(*self._arrays, async_op=True, **self._options)
        self._call()
        return None


class ShardedOptimizer:
    """Updates parameters in place; every rank holds the optimizer state of its shard only (Xu et al. 2020).

    Every rank makes one with the same parameters and calls it in the same order. The parameters of rank 0 are copied to
    all ranks at first.

    Parameters
    ----------
    comm : Communicator
    params : sequence of array, or mapping of str to array
        float32, bfloat16 or float16; any shapes, scalars and empty ones too. What
        :func:`multiring.sharded.allocate` returns is updated without a copy.
    rule : multiring.optim rule
    grad_wire, weight_wire : dtype, optional
        Element types that gradients are reduced and weights are gathered in; None: that of each parameter.
    master : dtype
        ``"float32"``.
    bucket_bytes : int, optional
        Most bytes of gradients in one collective. None: 32 MiB where collectives overlap, else 1 GiB: every collective
        is a meeting of all ranks, and one that nothing overlaps only costs.
    clip_norm : float, optional
        The gradient is multiplied by ``min(1, clip_norm / (norm + 1e-6))``, the norm of all parameters together.
    skip_nonfinite : bool
        Skip steps with an inf or a NaN in any rank's gradient.
    groups : sequence of Group
        Parameters with hyper-parameters of their own; the first group that has a parameter counts.
    order : str, optional
        ``"rank"``: sum gradients in ascending rank, so that the bits do not depend on sizes.
    subgroup : int, "node" or None
        Shard among so many neighbouring ranks, or those of a node, and replicate across; None: among all.
    accumulation : {"mean", "sum"}
        What :meth:`accumulate` makes of several micro-batches.
    overlap : bool, optional
        Whether collectives run beside the update and the backward pass; None: where the machine has cores to spare.

    Attributes
    ----------
    steps, skipped : int
        Updates done, and steps left out for an inf or a NaN.
    gradients : list of ndarray
        For each parameter, an array of its shape in symmetric memory: gradients written there need no copy.
    names : tuple of str

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is wrong.
    MismatchError
        If the ranks' parameters or settings differ.

    Notes
    -----
    With ``clip_norm``, ``skip_nonfinite`` or a rule that needs norms, nothing is written before one packed all-reduce
    of them over all buckets. Without, the update of a bucket begins as soon as it is reduced.
    """

    def __init__(
        self,
        comm: Any,
        params: Any,
        rule: UpdateRule,
        *,
        grad_wire: Any = None,
        weight_wire: Any = None,
        master: Any = "float32",
        bucket_bytes: int | None = None,
        clip_norm: float | None = None,
        skip_nonfinite: bool = False,
        groups: Iterable[Any] = (),
        order: str | None = None,
        subgroup: int | str | None = None,
        accumulation: str = "mean",
        overlap: bool | None = None,
    ) -> None:
        listed = list(params.values()) if isinstance(params, Mapping) else list(params)
        names = [str(name) for name in params] if isinstance(params, Mapping) else [str(i) for i in range(len(listed))]
        self.names = tuple(names)
        self._views = [output_view("ShardedOptimizer", f"params[{n!r}]", p) for n, p in zip(names, listed, strict=True)]
        _check_parameters(self._views, self.names)
        self._check_settings(rule, master, 1 if bucket_bytes is None else bucket_bytes, clip_norm, order, accumulation)
        self.shapes = [view.shape for view in self._views]
        self.rule, self.clip_norm, self.skip_nonfinite = rule, clip_norm, bool(skip_nonfinite)
        self._rules = rules_of(rule, groups, self.names, self.shapes)
        self.comm, self._order = comm, order
        self.steps = self.skipped = 0
        wires = [_wire("grad_wire", grad_wire), _wire("weight_wire", weight_wire)]
        per_group = _ranks_per_group(comm, subgroup)
        agree(comm, self._description(wires, bucket_bytes, per_group, accumulation), "ShardedOptimizer")
        self._inner = self._across = None
        if per_group < comm.size:
            self._inner = comm.split(comm.rank // per_group, comm.rank)
            self._across = comm.split(comm.rank % per_group, comm.rank)
        self._queued = self._agree_overlap(overlap)
        if bucket_bytes is None:
            bucket_bytes = OVERLAPPED_BUCKET_BYTES if self._queued else ALONE_BUCKET_BYTES
        group = self._inner or comm
        self._group = group
        flat = params.flat if isinstance(params, FlatTensors) else None
        self._streams = self._make_streams(group, flat, wires, bucket_bytes)
        self._place = {m: (s, i) for s in self._streams for i, m in enumerate(s.members)}
        self.gradients: list[NDArray[Any]] = [self._gradient_view(t) for t in range(len(self._views))]
        self._load_first_weights(comm)
        self._updates = updates_of(self._streams, self._rules, self.shapes) if self._streams else None
        self._needs_sums = (
            clip_norm is not None or self.skip_nonfinite or (self._updates is not None and self._updates.needs_norms)
        )
        self._early = not self._needs_sums and not (self._updates and hasattr(self._updates, "directions"))
        self._prepare_collectives(group)
        self._accumulator = Accumulator(self.shapes, accumulation)
        self._lock = threading.RLock()
        self._reset()

    # --- making one -------------------------------------------------------------------------------------------------

    def _check_settings(
        self, rule: Any, master: Any, bucket_bytes: Any, clip_norm: Any, order: Any, accumulation: Any
    ) -> None:
        where = "ShardedOptimizer"
        if not isinstance(rule, UpdateRule):
            raise ArgumentTypeError(
                f"{where}: rule: got {rule!r}, wanted one of multiring.optim, such as Adam(lr=1e-3)"
            )
        if dtype_of(master).name != "float32":
            raise ArgumentTypeError(
                f"{where}: master: got {dtype_of(master).name}, wanted 'float32': an update below half a unit of a "
                "16-bit weight would be lost"
            )
        if not isinstance(bucket_bytes, (int, np.integer)) or bucket_bytes < 1:
            raise ArgumentError(f"{where}: bucket_bytes: got {bucket_bytes!r}, wanted bytes, 1 or more")
        if clip_norm is not None and not clip_norm > 0:
            raise ArgumentError(f"{where}: clip_norm: got {clip_norm!r}, wanted above 0, or None")
        if order not in (None, "rank"):
            raise ArgumentError(f"{where}: order: got {order!r}, wanted None or 'rank'")
        if accumulation not in ("mean", "sum"):
            raise ArgumentError(f"{where}: accumulation: got {accumulation!r}, wanted 'mean' or 'sum'")

    def _description(
        self, wires: Sequence[Any], bucket_bytes: int | None, per_group: int, accumulation: str
    ) -> list[str]:
        lines = [
            f"{name}: {view.dtype.name} {view.shape}, {rule!r}"
            for name, view, rule in zip(self.names, self._views, _described(self._rules), strict=True)
        ]
        settings = {
            "grad_wire": wires[0] and wires[0].name, "weight_wire": wires[1] and wires[1].name,
            "bucket_bytes": bucket_bytes, "clip_norm": self.clip_norm, "skip_nonfinite": self.skip_nonfinite,
            "order": self._order, "ranks_per_group": per_group, "accumulation": accumulation,
        }  # fmt: skip
        return [*lines, *(f"{name}={value!r}" for name, value in settings.items())]

    def _make_streams(self, group: Any, flat: Any, wires: Sequence[DType | None], bucket_bytes: int) -> list[Stream]:
        members: dict[DType, list[int]] = {}
        for tensor, view in enumerate(self._views):
            members.setdefault(view.dtype, []).append(tensor)
        streams = []
        for dtype, places in members.items():
            grad, weight = wires[0] or dtype, wires[1] or dtype
            views = [self._views[t] for t in places]
            streams.append(Stream(group, places, views, flat, grad, weight, int(bucket_bytes) // grad.itemsize))
        return streams

    def _load_first_weights(self, comm: Any) -> None:
        """Copy rank 0's parameters to all ranks, and this rank's shard of them to its masters."""
        for stream in self._streams:
            whole = np.empty(stream.layout.n_elements, numpy_dtype(stream.dtype))
            starts = stream.layout.starts
            for i, view in enumerate(stream.params):
                whole[starts[i] : starts[i + 1]] = view.array.reshape(-1)
            comm.broadcast(whole, 0)
            tensors = [whole[starts[i] : starts[i + 1]] for i in range(len(stream.params))]
            for view, values in zip(stream.params, tensors, strict=True):
                view.array[...] = values.reshape(view.shape)
            stream.weights[stream.layout.n_elements :] = 0
            stream.set_masters(tensors)

    def _agree_overlap(self, overlap: bool | None) -> bool:
        """Return what rank 0 wants: the order of collectives follows from it."""
        if overlap is None:
            overlap = len(os.sched_getaffinity(0)) > self.comm.local_size
        chosen = np.array([overlap], np.uint8)
        self.comm.broadcast(chosen, 0)
        return bool(chosen[0])

    def _prepare_collectives(self, group: Any) -> None:
        reduce_options: dict[str, Any] = {"op": "avg", "order": self._order}
        self._order_of_buckets: list[tuple[int, Bucket]] = []
        self._scatter: list[_Collective] = []
        self._reduce: list[_Collective | None] = []
        self._gather: list[_Collective] = []
        # A backward pass ends with the first parameters: the last buckets are ready first.
        for number, stream in reversed(list(enumerate(self._streams))):
            for bucket in reversed(stream.layout.buckets):
                start, stop = stream.layout.shard_of(bucket, stream.rank)
                gradients, weights = stream.gradients, stream.weights
                mine = gradients[start:stop]
                self._order_of_buckets.append((number, bucket))
                self._scatter.append(
                    _Collective(group, "reduce_scatter", gradients[bucket.start : bucket.stop], mine, **reduce_options)
                )
                self._reduce.append(
                    _Collective(self._across, "all_reduce", mine, mine, **reduce_options) if self._across else None
                )
                self._gather.append(
                    _Collective(group, "all_gather", weights[start:stop], weights[bucket.start : bucket.stop])
                )
        self._buckets_of: list[list[int]] = [[] for _ in self._views]
        self._members: list[set[int]] = []
        for at, (number, bucket) in enumerate(self._order_of_buckets):
            stream = self._streams[number]
            inside = {stream.members[p.tensor] for p in stream.layout.pieces(bucket.start, bucket.stop)}
            self._members.append(inside)
            for tensor in inside:
                self._buckets_of[tensor].append(at)

    def _gradient_view(self, tensor: int) -> NDArray[Any]:
        stream, i = self._place[tensor]
        starts = stream.layout.starts
        return stream.gradients[starts[i] : starts[i + 1]].reshape(self.shapes[tensor])

    # --- a step -----------------------------------------------------------------------------------------------------

    def accumulate(self, grads: Any) -> None:
        """Add a micro-batch's gradients to those of the next :meth:`step`; local, nothing is sent.

        Parameters
        ----------
        grads : sequence or mapping of array
            As for :meth:`step`.
        """
        with self._lock:
            self._refuse_started("accumulate")
            self._accumulator.add(self._gradient_views(grads))

    def step(self, grads: Any = None) -> StepResult:
        """Average the gradients over all ranks and update the parameters; all ranks must call.

        Parameters
        ----------
        grads : sequence of array, or mapping of str to array, optional
            One for each parameter, of its shape, in any floating-point type; an entry of None is a zero gradient. Left
            out: gradients came by :meth:`backward_hook`, or by :meth:`accumulate`.

        Returns
        -------
        StepResult

        Raises
        ------
        ArgumentError
            If there are no gradients, or some are missing.
        """
        with self._lock:
            if grads is not None:
                self._refuse_started("step")
                views = self._gradient_views(grads)
                if self._accumulator.count:
                    self._accumulator.add(views)
                    views = self._accumulator.views()
            elif self._ready:
                self._refuse_missing()
                views = None
            elif self._accumulator.count:
                views = self._accumulator.views()
            else:
                raise ArgumentError(
                    "step: got no gradients, wanted step(grads), or backward_hook(i) for every parameter, or "
                    "accumulate(grads), before each step"
                )
            try:
                return self._step(views)
            finally:
                self._reset()

    def backward_hook(self, i: int | str, gradient: Any = None) -> Any:
        """Return a function that takes parameter ``i``'s gradient as soon as it is ready; or take it now.

        Parameters
        ----------
        i : int or str
            The parameter's place, or its name.
        gradient : array, optional
            Its gradient.

        Returns
        -------
        callable or None
            ``hook(gradient)``, if none was given. A bucket is sent when all its gradients are there, in the same order
            on every rank; :meth:`step` without gradients finishes.
        """
        tensor = self._tensor(i)
        if gradient is not None:
            self._hand_in(tensor, gradient)
            return None
        return lambda given: self._hand_in(tensor, given)

    def _hand_in(self, tensor: int, gradient: Any) -> None:
        with self._lock:
            if tensor in self._ready:
                raise ArgumentError(
                    f"backward_hook: got the gradient of parameter {self.names[tensor]!r} again, wanted one a step; call "
                    "accumulate(grads) for earlier micro-batches"
                )
            view = self._gradient_view_of(tensor, gradient)
            if self._accumulator.count:
                view = self._accumulator.add_one(tensor, view)
            stream, i = self._place[tensor]
            stream.pack_tensor(i, view)
            self._ready.add(tensor)
            while self._started < len(self._members) and self._members[self._started] <= self._ready:
                self._start_scatter(self._started)
            if self._early and not any(s.aliased for s in self._streams):
                # Where the weights are the caller's own, the backward pass still reads them.
                self._begin(None, 1.0)
                while self._updated < self._started and self._is_reduced(self._updated):
                    self._update(self._updated)

    def _step(self, views: list[View | None] | None) -> StepResult:
        result = StepResult(True, None, 1.0)
        n = len(self._order_of_buckets)
        if self._updates is None:
            self.steps += 1
            return result
        if self._needs_sums or not self._early:
            for at in range(n):
                self._pack(at, views)
            for at in range(n):
                self._finish_scatter(at)
            result = self._agree_sums()
            if not result.applied:
                return result
        else:
            self._begin(None, 1.0)
        for at in range(n):
            self._pack(at, views)
            # One bucket is reduced while the one before it is updated.
            if at > 0 or not self._queued:
                self._update_and_gather(at if not self._queued else at - 1)
        if self._queued and n:
            self._update_and_gather(n - 1)
        for at, (number, bucket) in enumerate(self._order_of_buckets):
            work = self._gathers.get(at)
            if work is not None:
                work.wait()
            self._streams[number].unpack_bucket(bucket)
        for stream in self._streams:
            stream.finish_parameters()
        self.steps += 1
        return result

    def _pack(self, at: int, views: list[View | None] | None) -> None:
        if at < self._started:
            return
        if views is not None:
            number, bucket = self._order_of_buckets[at]
            stream = self._streams[number]
            stream.pack_bucket(bucket, [views[m] for m in stream.members])
        self._start_scatter(at)

    def _start_scatter(self, at: int) -> None:
        self._scatters[at] = [self._scatter[at].start(self._queued)]
        across = self._reduce[at]
        if across is not None:
            self._finish_scatter(at)  # it is another communicator's call that must see the result
            self._scatters[at] = [across.start(self._queued)]
        self._started = at + 1

    def _finish_scatter(self, at: int) -> None:
        for work in self._scatters[at]:
            if work is not None:
                work.wait()
        self._scatters[at] = []

    def _is_reduced(self, at: int) -> bool:
        return all(work is None or work.is_completed() for work in self._scatters[at])

    def _update(self, at: int) -> None:
        self._finish_scatter(at)
        number, bucket = self._order_of_buckets[at]
        if self._updates is not None:
            self._updates.run(number, bucket)
        self._updated = at + 1

    def _update_and_gather(self, at: int) -> None:
        if at >= self._updated:
            self._update(at)
        self._gathers[at] = self._gather[at].start(self._queued)

    def _begin(self, sums: NDArray[np.float64] | None, scale: float) -> None:
        if not self._begun and self._updates is not None:
            self._begun = True
            self._updates.begin(sums, scale * self._accumulator.factor, self.steps)

    def _agree_sums(self) -> StepResult:
        """Sum norms over all shards, once or twice; decide together."""
        updates, factor = self._updates, self._accumulator.factor
        if updates is None:
            raise RuntimeError("there is nothing to update")
        norm, scale, sums = None, 1.0, None
        if self._needs_sums:
            sums = updates.measure()
            self._group.all_reduce(sums)
            square = updates.gradient_square(sums)
            norm = factor * math.sqrt(square) if square >= 0 else math.nan
            if self.skip_nonfinite and not math.isfinite(norm):
                self.skipped += 1
                _log.warning(
                    "step %d skipped on all ranks: the gradient has an inf or a NaN (%d skipped so far)",
                    self.steps + self.skipped, self.skipped,
                )  # fmt: skip
                return StepResult(False, norm, 0.0)
            if self.clip_norm is not None:
                scale = min(1.0, self.clip_norm / (norm + 1e-6))
        self._begin(sums, scale)
        second = updates.second()
        if second is not None:
            self._group.all_reduce(second)
            updates.resume(second)
        return StepResult(True, norm, scale)

    def _reset(self) -> None:
        self._ready: set[int] = set()
        self._started = self._updated = 0
        self._begun = False
        self._scatters: dict[int, list[Any]] = {}
        self._gathers: dict[int, Any] = {}
        self._accumulator.clear()

    # --- arguments --------------------------------------------------------------------------------------------------

    def _tensor(self, i: Any) -> int:
        if isinstance(i, str) and i in self.names:
            return self.names.index(i)
        if isinstance(i, (int, np.integer)) and not isinstance(i, bool) and 0 <= i < len(self.names):
            return int(i)
        raise ArgumentError(
            f"backward_hook: got parameter {i!r}, wanted a number from 0 to {len(self.names) - 1} or one of the names"
        )

    def _gradient_views(self, grads: Any) -> list[View | None]:
        if isinstance(grads, Mapping):
            unknown = [name for name in grads if name not in self.names]
            missing = [name for name in self.names if name not in grads]
            if unknown or missing:
                raise ArgumentError(
                    f"step: grads: got names {unknown} that no parameter has and none for {missing}, wanted the names of "
                    "the parameters (None for a zero gradient)"
                )
            listed: list[Any] = [grads[name] for name in self.names]
        else:
            listed = list(grads)
        if len(listed) != len(self.names):
            raise ArgumentError(
                f"step: grads: got {len(listed)} gradients, wanted {len(self.names)}, one for each parameter"
            )
        return [None if g is None else self._gradient_view_of(t, g) for t, g in enumerate(listed)]

    def _gradient_view_of(self, tensor: int, gradient: Any) -> View:
        if type(gradient) is np.ndarray:
            view = view_of(gradient, f"grads[{self.names[tensor]!r}]")
        else:
            view = input_view("step", f"grads[{self.names[tensor]!r}]", gradient)
        if view.dtype.kind != "float":
            raise ArgumentTypeError(
                f"step: grads[{self.names[tensor]!r}]: got {view.dtype.name}, wanted a floating-point type"
            )
        if view.shape != self.shapes[tensor]:
            raise ArgumentError(
                f"step: grads[{self.names[tensor]!r}]: got shape {view.shape}, wanted {self.shapes[tensor]}, the "
                "parameter's"
            )
        return view

    def _refuse_started(self, call: str) -> None:
        if self._ready:
            raise ArgumentError(
                f"{call}: got gradients while those of {len(self._ready)} parameters were handed in by backward_hook, "
                "wanted step() without gradients first"
            )

    def _refuse_missing(self) -> None:
        missing = [name for t, name in enumerate(self.names) if t not in self._ready and self._views[t].size]
        if missing:
            raise ArgumentError(
                f"step: got no gradient of {len(missing)} parameters ({', '.join(missing[:5])}), wanted one of each; hand "
                "in zeros for parameters that took no part"
            )

    # --- what it tells ----------------------------------------------------------------------------------------------

    @property
    def n_buckets(self) -> int:
        """Reduce-scatters, and all-gathers, of a step."""
        return len(self._order_of_buckets)

    def state_bytes(self) -> dict[str, int]:
        """Return bytes of this rank's state, by name: each moment, ``"master"``, and what every rank holds whole."""
        updates = self._updates
        if updates is None:
            return {"master": 0}
        found = {name: sum(a.nbytes for a in arrays) for name, arrays in updates.state.items()}
        found["master"] = sum(4 * s.layout.shard_elements for s in self._streams)
        whole = sum(a.nbytes for a in updates.replicated().values())
        return found | ({"replicated": whole} if whole else {})

    def close(self) -> None:
        """Close the communicators of the subgroups, if there are any; the caller's stays open."""
        for comm in (self._inner, self._across):
            if comm is not None:
                comm.close()

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return this rank's part of the state as plain arrays; local.

        Returns
        -------
        dict of str to ndarray
            ``NAME.master`` and so on, flat pieces of each tensor, and what is needed to put them together again.
        """
        from multiring.collectives.sharded.state import shard_state

        return shard_state(self)

    def full_state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the whole state as plain arrays of the parameters' shapes; all ranks must call, and all get it."""
        from multiring.collectives.sharded.state import full_state

        return full_state(self)

    def load_state_dict(self, state: Any) -> None:
        """Continue from a state: parameters, masters, moments and counters; all ranks must call.

        Parameters
        ----------
        state : dict, or sequence of dict
            A :meth:`full_state_dict`; or the :meth:`state_dict` of every rank, of any number of ranks; or this rank's
            own, if ranks and buckets are the same as when it was made.

        Raises
        ------
        ArgumentError
            If it does not fit, before anything is changed.
        """
        from multiring.collectives.sharded.state import load_state

        load_state(self, state)


def _check_parameters(views: Sequence[View], names: Sequence[str]) -> None:
    where = "ShardedOptimizer"
    for name, view in zip(names, views, strict=True):
        if view.dtype.name not in _WIRES:
            raise ArgumentTypeError(
                f"{where}: params[{name!r}]: got {view.dtype.name}, wanted {', '.join(_WIRES)}: masters are float32"
            )
    if len(set(names)) != len(names):
        raise ArgumentError(f"{where}: params: got names that are equal as text, wanted different ones: {list(names)}")
    spans = sorted((v.address, v.address + v.nbytes, i) for i, v in enumerate(views) if v.size and v.direct)
    for (_, end, i), (start, _, j) in zip(spans, spans[1:], strict=False):
        if start < end:
            raise ArgumentError(
                f"{where}: params[{names[j]!r}] overlaps params[{names[i]!r}], wanted separate arrays; give a shared "
                "parameter once"
            )


def _wire(name: str, value: Any) -> DType | None:
    if value is None:
        return None
    dtype = dtype_of(value)
    if dtype.name not in _WIRES:
        raise ArgumentTypeError(f"ShardedOptimizer: {name}: got {dtype.name}, wanted {', '.join(_WIRES)} or None")
    return dtype


def _described(rules: Sequence[UpdateRule]) -> list[str]:
    """Return rules as text that is equal on every rank: functions by their names."""
    return [
        ", ".join(
            f"{k}={getattr(v, '__qualname__', 'function') if callable(v) else v}" for k, v in vars(rule).items()
        ).join((f"{rule.name}(", ")"))
        for rule in rules
    ]


def _ranks_per_group(comm: Any, subgroup: Any) -> int:
    size: int = comm.size
    if subgroup is None:
        return size
    if subgroup == "node":
        wanted: Any = comm.local_size
    else:
        wanted = subgroup
    if not isinstance(wanted, (int, np.integer)) or isinstance(wanted, bool) or wanted < 1 or size % wanted:
        raise ArgumentError(
            f"ShardedOptimizer: subgroup: got {subgroup!r} on {size} ranks, wanted 'node' or a divisor of {size}"
        )
    return int(wanted)
