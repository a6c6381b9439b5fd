"""Three ways to do one data-parallel Adam step, on arrays of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

import multiring as mr
from multiring.collectives.arrays import address_of
from multiring.collectives.sharded.passes import Blocks, Pass
from multiring.kernels.dtypes import DTYPES
from multiring.kernels.rules import RULES

__all__ = ["CONTENDERS", "Contender"]

RULE = mr.optim.Adam(lr=1e-3)
FLOAT32 = DTYPES["float32"]
Arrays = list[NDArray[np.float32]]


class Contender(Protocol):
    """One way.

    Attributes
    ----------
    params, grads : list of ndarray
        Gradients are rewritten before every step, outside the timing.
    """

    params: Arrays
    grads: Arrays

    def step(self) -> None:
        """Average the gradients and update the parameters."""


class Sharded:
    """This library's sharded step; ``flat``: on symmetric memory, without copies."""

    def __init__(self, comm: Any, shapes: Sequence[tuple[int, ...]], flat: bool, **options: Any) -> None:
        self.params: Any = mr.sharded.allocate(comm, shapes) if flat else [np.zeros(s, np.float32) for s in shapes]
        self._opt = mr.ShardedOptimizer(comm, self.params, RULE, **options)
        self.grads = self._opt.gradients if flat else [np.zeros(s, np.float32) for s in shapes]

    def step(self) -> None:
        """Do one step."""
        self._opt.step(self.grads)


class Replicated:
    """All-reduce, then the same fused update of everything on every rank."""

    def __init__(self, comm: Any, shapes: Sequence[tuple[int, ...]], flat: bool) -> None:
        self._comm, self._done = comm, 0
        self._whole: NDArray[np.float32] | None = None
        if flat:
            gradients = mr.sharded.allocate(comm, shapes)
            self._whole = gradients.flat
            self.params, self.grads = list(mr.sharded.allocate(comm, shapes)), list(gradients)
        else:
            self.params = [np.zeros(s, np.float32) for s in shapes]
            self.grads = [np.zeros(s, np.float32) for s in shapes]
        self._moments = [[np.zeros(s, np.float32) for s in shapes] for _ in range(2)]
        kernel = RULES["adam"]
        self._blocks = Blocks(kernel.parameters, 1)
        self._update = Pass(kernel, FLOAT32, None)
        for g, w, m, v in zip(self.grads, self.params, *self._moments, strict=True):
            arrays = [address_of(a) for a in (w, m, v)]
            self._update.add((0, 0), address_of(g), 0, g.size, self._blocks.address(0), arrays)

    def step(self) -> None:
        """Do one step."""
        if self._whole is not None:
            self._comm.all_reduce(self._whole, op="avg")
        else:
            self._comm.all_reduce_many(self.grads, op="avg")
        self._blocks.fill(0, {"scale": 1.0} | RULE.constants(self._done))
        self._update.run((0, 0))
        self._done += 1


class Mpi:
    """The sharded step with mpi4py's Reduce_scatter and Allgather, and numpy; ``flat``: nothing is packed."""

    def __init__(self, world: Any, shapes: Sequence[tuple[int, ...]], flat: bool) -> None:
        self._world, self._flat, self._done = world, flat, 0
        size, rank = world.Get_size(), world.Get_rank()
        count = sum(math.prod(s) for s in shapes)
        each = math.ceil(count / size)
        self._gradient, self._weight = np.zeros(each * size, np.float32), np.zeros(each * size, np.float32)
        self._mine = slice(rank * each, (rank + 1) * each)
        self._first, self._second, self._shard, self._room = (np.zeros(each, np.float32) for _ in range(4))
        self._starts = np.cumsum([0, *(math.prod(s) for s in shapes)])
        if flat:
            self.grads, self.params = self._views(self._gradient, shapes), self._views(self._weight, shapes)
        else:
            self.grads = [np.zeros(s, np.float32) for s in shapes]
            self.params = [np.zeros(s, np.float32) for s in shapes]

    def _views(self, flat: NDArray[np.float32], shapes: Sequence[tuple[int, ...]]) -> Arrays:
        return [flat[a : a + math.prod(s)].reshape(s) for a, s in zip(self._starts, shapes, strict=False)]

    def step(self) -> None:
        """Do one step."""
        from mpi4py import MPI

        if not self._flat:
            for a, b, g in zip(self._starts, self._starts[1:], self.grads, strict=False):
                self._gradient[a:b] = g.reshape(-1)
        self._world.Reduce_scatter_block(self._gradient, self._shard, MPI.SUM)
        self._adam(self._shard, self._weight[self._mine])
        self._world.Allgather(MPI.IN_PLACE, self._weight)
        if not self._flat:
            for a, b, p in zip(self._starts, self._starts[1:], self.params, strict=False):
                p.reshape(-1)[...] = self._weight[a:b]

    def _adam(self, g: NDArray[np.float32], w: NDArray[np.float32]) -> None:
        """Adam in numpy, without temporaries."""
        c = {name: np.float32(value) for name, value in RULE.constants(self._done).items()}
        m, v, room = self._first, self._second, self._room
        g *= np.float32(1 / self._world.Get_size())
        m *= c["beta1"]
        np.multiply(g, c["rest1"], out=room)
        m += room
        np.multiply(g, g, out=room)
        room *= c["rest2"]
        v *= c["beta2"]
        v += room
        np.sqrt(v, out=room)
        room *= c["correction"]
        room += c["epsilon"]
        np.divide(m, room, out=room)
        room *= c["step"]
        w -= room
        self._done += 1


CONTENDERS = ("sharded", "replicated", "mpi4py and numpy")
