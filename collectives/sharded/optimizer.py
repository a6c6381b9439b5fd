"""The sharded weight update: reduce-scatter the gradients, update this rank's shard, all-gather the weights."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.arrays import View
from multiring.collectives.communicator.check import host_output_view
from multiring.collectives.sharded.accumulate import Accumulator
from multiring.collectives.sharded.agree import agree
from multiring.collectives.sharded.arguments import (
    check_parameters,
    check_settings,
    described,
    ranks_per_group,
    wire_of,
)
from multiring.collectives.sharded.choice import updates_of
from multiring.collectives.sharded.gradients import Gradients
from multiring.collectives.sharded.groups import rules_of
from multiring.collectives.sharded.pipeline import Pipeline
from multiring.collectives.sharded.rule import UpdateRule
from multiring.collectives.sharded.stepping import Stepper, StepResult
from multiring.collectives.sharded.stream import FlatTensors, Stream
from multiring.errors import ArgumentError, MultiringError
from multiring.kernels.dtypes import DType, numpy_dtype

__all__ = ["ShardedOptimizer", "StepResult"]

OVERLAPPED_BUCKET_BYTES = 32 << 20
ALONE_BUCKET_BYTES = 1 << 30


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
    norm : {"l2", "max"}
        What ``clip_norm`` limits: the root of the sum of squares, or the largest absolute value.
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
        norm: str = "l2",
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
        self.views = [
            host_output_view("ShardedOptimizer", f"params[{n!r}]", p) for n, p in zip(names, listed, strict=True)
        ]
        if comm.device != "host":
            raise ArgumentError(
                f"ShardedOptimizer: comm: got a communicator of device {comm.device!r}, wanted one of"
                " multiring.init(device='host'): updates on GPUs are not built yet"
            )
        check_parameters(self.views, self.names)
        check_settings(rule, master, 1 if bucket_bytes is None else bucket_bytes, clip_norm, norm, order, accumulation)
        self.shapes = [view.shape for view in self.views]
        self.rule, self.clip_norm, self.skip_nonfinite = rule, clip_norm, bool(skip_nonfinite)
        self._rules = rules_of(rule, groups, self.names, self.shapes)
        self.comm, self._order, self._norm = comm, order, norm
        wires = [wire_of("grad_wire", grad_wire), wire_of("weight_wire", weight_wire)]
        per_group = ranks_per_group(comm, subgroup)
        agree(comm, self._description(wires, bucket_bytes, per_group, accumulation), "ShardedOptimizer")
        self._inner = self._across = None
        if per_group < comm.size:
            # Ranks of a node need not be neighbours.
            of_node = subgroup == "node"
            self._inner = comm.split(comm.node if of_node else comm.rank // per_group, comm.rank)
            self._across = comm.split(comm.local_rank if of_node else comm.rank % per_group, comm.rank)
        self._queued = self._agree_overlap(overlap)
        if bucket_bytes is None:
            bucket_bytes = OVERLAPPED_BUCKET_BYTES if self._queued else ALONE_BUCKET_BYTES
        group = self._inner or comm
        self.group = group
        flat = params.flat if isinstance(params, FlatTensors) else None
        self.streams = self._make_streams(group, flat, wires, bucket_bytes)
        self._place = {m: (s, i) for s in self.streams for i, m in enumerate(s.members)}
        self.gradients: list[NDArray[Any]] = [self._gradient_view(t) for t in range(len(self.views))]
        self._load_first_weights(comm)
        self.updates = updates_of(self.streams, self._rules or [rule], self.shapes)
        self._pipeline = Pipeline(group, self._across, self.streams, order, self._queued)
        self._stepper = Stepper(group, self.streams, self.updates, self._pipeline, clip_norm, norm, self.skip_nonfinite)
        self._accumulator = Accumulator(self.shapes, accumulation)
        self._given = Gradients(self.names, self.shapes)
        self._lock = threading.RLock()
        self._reset()

    # --- making one -------------------------------------------------------------------------------------------------

    def _description(
        self, wires: Sequence[Any], bucket_bytes: int | None, per_group: int, accumulation: str
    ) -> list[str]:
        lines = [
            f"{name}: {view.dtype.name} {view.shape}, {rule}"
            for name, view, rule in zip(self.names, self.views, described(self._rules), strict=True)
        ]
        settings = {
            "grad_wire": wires[0] and wires[0].name,
            "weight_wire": wires[1] and wires[1].name,
            "bucket_bytes": bucket_bytes,
            "clip_norm": self.clip_norm,
            "norm": self._norm,
            "skip_nonfinite": self.skip_nonfinite,
            "order": self._order,
            "ranks_per_group": per_group,
            "accumulation": accumulation,
        }
        return [*lines, *(f"{name}={value!r}" for name, value in settings.items())]

    def _make_streams(self, group: Any, flat: Any, wires: Sequence[DType | None], bucket_bytes: int) -> list[Stream]:
        members: dict[DType, list[int]] = {}
        for tensor, view in enumerate(self.views):
            members.setdefault(view.dtype, []).append(tensor)
        streams = []
        for dtype, places in members.items():
            grad, weight = wires[0] or dtype, wires[1] or dtype
            views = [self.views[t] for t in places]
            streams.append(Stream(group, places, views, flat, grad, weight, int(bucket_bytes) // grad.itemsize))
        return streams

    def _load_first_weights(self, comm: Any) -> None:
        """Copy rank 0's parameters to all ranks, and this rank's shard of them to its masters."""
        for stream in self.streams:
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
            self._accumulator.add(self._given.views(grads))

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
            try:
                views = self._taken(grads)
            except MultiringError:
                self.group.refuse()  # the other ranks must not wait for this step
                raise
            try:
                return self._stepper.step(views, self._accumulator.factor)
            finally:
                self._reset()

    def _taken(self, grads: Any) -> list[View | None] | None:
        """Return the gradients of a step; None where they are packed already."""
        if grads is not None:
            self._refuse_started("step")
            views = self._given.views(grads)
            if not self._accumulator.count:
                return views
            self._accumulator.add(views)
        elif self._ready:
            self._refuse_missing()
            return None
        elif not self._accumulator.count:
            raise ArgumentError(
                "step: got no gradients, wanted step(grads), or backward_hook(i) for every parameter, or "
                "accumulate(grads), before each step"
            )
        return self._accumulator.views()

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
        tensor = self._given.tensor(i)
        if gradient is not None:
            self._hand_in(tensor, gradient)
            return None
        return lambda given: self._hand_in(tensor, given)

    def _hand_in(self, tensor: int, gradient: Any) -> None:
        with self._lock:
            if tensor in self._ready:
                raise ArgumentError(
                    f"backward_hook: got the gradient of parameter {self.names[tensor]!r} again, wanted one a step; "
                    "call accumulate(grads) for earlier micro-batches"
                )
            view = self._given.view(tensor, gradient)
            if self._accumulator.count:
                view = self._accumulator.add_one(tensor, view)
            stream, i = self._place[tensor]
            stream.pack_tensor(i, view)
            self._ready.add(tensor)
            self._pipeline.start_ready(self._ready)
            self._stepper.update_reduced(self._accumulator.factor)

    def _reset(self) -> None:
        self._ready: set[int] = set()
        self._stepper.reset()
        self._accumulator.clear()

    # --- order of calls -----------------------------------------------------------------------------------------------

    def _refuse_started(self, call: str) -> None:
        if self._ready:
            raise ArgumentError(
                f"{call}: got gradients while those of {len(self._ready)} parameters were handed in by backward_hook, "
                "wanted step() without gradients first"
            )

    def _refuse_missing(self) -> None:
        missing = [name for t, name in enumerate(self.names) if t not in self._ready and self.views[t].size]
        if missing:
            raise ArgumentError(
                f"step: got no gradient of {len(missing)} parameters ({', '.join(missing[:5])}), wanted one of each; "
                "hand in zeros for parameters that took no part"
            )

    # --- what it tells ----------------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """Updates done."""
        return self._stepper.done

    @property
    def skipped(self) -> int:
        """Steps left out for an inf or a NaN."""
        return self._stepper.skipped

    def set_counters(self, steps: int, skipped: int) -> None:
        """Go on counting from a checkpoint's numbers."""
        self._stepper.done, self._stepper.skipped = steps, skipped

    @property
    def n_buckets(self) -> int:
        """Reduce-scatters, and all-gathers, of a step."""
        return len(self._pipeline.buckets)

    def state_bytes(self) -> dict[str, int]:
        """Return bytes of this rank's state, by name: each moment, ``"master"``, and what every rank holds whole."""
        updates = self.updates
        found = {name: sum(a.nbytes for a in arrays) for name, arrays in updates.state.items()}
        found["master"] = sum(4 * s.layout.shard_elements for s in self.streams)
        whole = sum(a.nbytes for a in updates.replicated().values())
        return found | ({"replicated": whole} if whole else {})

    @property
    def shard(self) -> int:
        """Number of this rank's shard."""
        return int(self.group.rank)

    @property
    def n_shards(self) -> int:
        """Ranks that share the state."""
        return int(self.group.size)

    def has_state(self, kind: str, tensor: int) -> bool:
        """Return whether a tensor has a state of a kind for each of its elements."""
        return kind == "master" or self.updates.has_moment(tensor)

    def publish_masters(self) -> None:
        """Write every rank's masters into the parameters of all; all ranks must call."""
        for stream in self.streams:
            stream.round_masters()
        pipeline = self._pipeline
        for at in range(len(pipeline.buckets)):
            pipeline.gather(at)
        pipeline.take_in()
        self._reset()

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

        return shard_state(cast(Any, self))

    def full_state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the whole state as plain arrays of the parameters' shapes; all ranks must call, and all get it."""
        from multiring.collectives.sharded.state import full_state

        return full_state(cast(Any, self))

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

        load_state(cast(Any, self), state)
