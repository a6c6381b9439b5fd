"""Random collectives of every kind on real processes, every element checked.

A test (``test_stress.py``) and a command::

    python tests/shm/stress.py --ranks 4 --calls 20000 --seed 7 --delay 40
"""

from __future__ import annotations

import argparse
import collections
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from multiring.collectives.communicator import Communicator
from multiring.collectives.drivers.control import Layout, Waiting
from multiring.collectives.entries import entries
from multiring.collectives.executor import Executor
from multiring.kernels.build import span_address
from multiring.kernels.dtypes import DTYPES, dtype_of, numpy_dtype
from tests.shm.stress_calls import (
    KINDS,
    MAX_BYTES,
    OPERATION,
    PAIRS,
    REDUCING,
    Call,
    draw_call,
    draw_template,
    input_of,
    reduced,
    shares,
)
from tests.support.ranks import Outcome, run_ranks

GUARD_BYTES = 64
GUARD, POISON = 0xA5, 0xFF
TEMPLATES = 48
TEMPLATE_LIFE = 1500
"""Calls until all templates are drawn anew: plans are used many times, and fall out of the cache too."""

Plant = Callable[[list[Executor]], None]
"""Alters the data of a rank's executors, to see a fault found."""


@dataclass(frozen=True)
class SmallBoxes(Layout):
    """A layout with small point-to-point boxes, so that short messages are many pieces."""

    small_box_bytes: int = 256

    @property
    def box_bytes(self) -> int:
        return self.small_box_bytes


@dataclass(frozen=True)
class Options:
    """What to run."""

    ranks: int = 4
    calls: int = 1000
    seed: int = 1
    delay: int = 0
    spins: int | None = None
    yields: int | None = None
    symmetric: float = 0.5
    kinds: tuple[str, ...] = KINDS
    timeout_s: float = 60.0

    def layouts(self) -> list[Layout]:
        """Return the layouts of the two communicators."""
        return [
            SmallBoxes(self.ranks, n_slots=4, slot_bytes=1024, eager_bytes=256, small_box_bytes=256),
            SmallBoxes(self.ranks, n_slots=3, slot_bytes=4096, eager_bytes=1024, small_box_bytes=1024),
        ]

    def waiting(self) -> Waiting:
        """Return the policy of all ranks."""
        spins = (0 if self.ranks > 2 else 200) if self.spins is None else self.spins
        yields = 100 if self.yields is None else self.yields
        return Waiting(spins=spins, yields=yields, delay=self.delay, seed=self.seed)


class WrongError(Exception):
    """A call gave a wrong answer."""


class Area:
    """Memory that calls' arrays are cut from, with guard bytes around each."""

    def __init__(self, make: Callable[[int], NDArray[np.uint8]]) -> None:
        self._make = make
        self._kept = make(MAX_BYTES + 4096)

    def take(self, n_bytes: int, itemsize: int, fresh: bool) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return (the bytes of an array, the same with its guards); freshly allocated or cut from the kept piece."""
        base = self._make(n_bytes + 2 * GUARD_BYTES + itemsize) if fresh else self._kept
        skip = itemsize * (n_bytes % 3 == 1)
        whole = base[skip : skip + n_bytes + 2 * GUARD_BYTES]
        whole[:] = GUARD
        return whole[GUARD_BYTES : GUARD_BYTES + n_bytes], whole


class Rank:
    """One rank of the stress program."""

    def __init__(self, rank: int, options: Options, executors: list[Executor]) -> None:
        self.rank = rank
        self.size = options.ranks
        self.communicators = [Communicator(e) for e in executors]
        heap = executors[0]

        def symmetric(n: int) -> NDArray[np.uint8]:
            return heap.empty(n, DTYPES["uint8"])

        def ordinary(n: int) -> NDArray[np.uint8]:
            return np.empty(n, np.uint8)

        self.areas = [[Area(ordinary), Area(symmetric)], [Area(ordinary), Area(symmetric)]]
        self._guards: list[NDArray[np.uint8]] = []
        self._unchanged: list[tuple[NDArray[Any], NDArray[Any]]] = []

    def array(self, call: Call, is_out: bool, count: int) -> NDArray[Any]:
        """Return an array for an input or output, full of poison."""
        x_symmetric, out_symmetric, _, fresh = call.places[self.rank]
        dtype = numpy_dtype(DTYPES[call.template.dtype])
        area = self.areas[is_out][out_symmetric if is_out else x_symmetric]
        inner, whole = area.take(count * dtype.itemsize, dtype.itemsize, fresh)
        inner[:] = POISON
        self._guards.append(whole)
        return inner.view(dtype)

    def filled(self, call: Call, values: NDArray[Any]) -> NDArray[Any]:
        """Return an input that must not change."""
        x = self.array(call, False, len(values))
        x[:] = values
        self._unchanged.append((x, values))
        return x

    def run(self, call: Call) -> None:
        """Make a call and check everything about it."""
        self._guards.clear()
        self._unchanged.clear()
        comm = self.communicators[call.communicator]
        for what, got, wanted in getattr(self, call.template.kind)(comm, call):
            self._compare(call, what, got, wanted)
        for x, values in self._unchanged:
            self._compare(call, "input", x, values)
        for whole in self._guards:
            if (whole[:GUARD_BYTES] != GUARD).any() or (whole[-GUARD_BYTES:] != GUARD).any():
                raise WrongError(f"rank {self.rank}, {call}: wrote outside its array")

    def _compare(self, call: Call, what: str, got: NDArray[Any], wanted: NDArray[Any]) -> None:
        if got.tobytes() == wanted.tobytes():
            return
        itemsize = got.dtype.itemsize
        wrong = np.flatnonzero((got.view(np.uint8) != wanted.view(np.uint8)).reshape(-1, itemsize).any(axis=1))
        first = int(wrong[0])
        raise WrongError(
            f"rank {self.rank}, {call}: {len(wrong)} of {len(got)} elements of the {what} are wrong, the first at"
            f" {first}: got {got[first]}, wanted {wanted[first]}"
        )

    def _options(self, call: Call) -> dict[str, Any]:
        t = call.template
        given: dict[str, Any] = {"algorithm": t.algorithm, "wire": t.wire}
        if t.kind in REDUCING:
            given.update(op=OPERATION[t.op], order=t.order)
        return given

    # --- one method for each kind: (what, got, wanted) of each array to check ----------------------------------------

    def all_reduce(self, comm: Communicator, call: Call) -> Any:
        wanted = reduced(call, self.size)
        mine = input_of(call, self.rank, call.count)
        if call.places[self.rank][2]:
            out = self.array(call, True, call.count)
            out[:] = mine
            comm.all_reduce(out, **self._options(call))
        else:
            out = self.array(call, True, call.count)
            comm.all_reduce(self.filled(call, mine), out, **self._options(call))
        yield "output", out, wanted

    def all_reduce_many(self, comm: Communicator, call: Call) -> Any:
        whole = self.array(call, True, call.count)
        whole[:] = input_of(call, self.rank, call.count)
        ends = np.cumsum(call.counts).tolist()
        comm.all_reduce_many([whole[e - n : e] for e, n in zip(ends, call.counts, strict=True)], **self._options(call))
        yield "output", whole, reduced(call, self.size)

    def reduce(self, comm: Communicator, call: Call) -> Any:
        root = call.template.root
        mine = input_of(call, self.rank, call.count)
        if self.rank != root:
            comm.reduce(self.filled(call, mine), root=root, **self._options(call))
            return
        out = self.array(call, True, call.count)
        if call.places[self.rank][2]:
            out[:] = mine
            comm.reduce(out, root=root, **self._options(call))
        else:
            comm.reduce(self.filled(call, mine), out, root, **self._options(call))
        yield "output", out, reduced(call, self.size)

    def _scattered(self, call: Call, parts: list[int]) -> tuple[NDArray[Any], NDArray[Any], int]:
        """Return (x, out, where out begins) of a reduce_scatter, ``out`` in its place in x where the call says so."""
        first = sum(parts[: self.rank])
        mine = input_of(call, self.rank, call.count)
        if call.places[self.rank][2]:
            x = self.array(call, False, call.count)
            x[:] = mine
            return x, x[first : first + parts[self.rank]], first
        return self.filled(call, mine), self.array(call, True, parts[self.rank]), first

    def _check_scattered(self, call: Call, x: NDArray[Any], out: NDArray[Any], first: int) -> Any:
        yield "output", out, reduced(call, self.size)[first : first + len(out)]
        if call.places[self.rank][2]:
            whole = input_of(call, self.rank, call.count)
            yield "rest of x", x[:first], whole[:first]
            yield "rest of x", x[first + len(out) :], whole[first + len(out) :]

    def reduce_scatter(self, comm: Communicator, call: Call) -> Any:
        x, out, first = self._scattered(call, shares(call.count, self.size))
        comm.reduce_scatter(x, out, **self._options(call))
        return self._check_scattered(call, x, out, first)

    def reduce_scatter_v(self, comm: Communicator, call: Call) -> Any:
        x, out, first = self._scattered(call, list(call.counts))
        comm.reduce_scatter_v(x, call.counts, out, **self._options(call))
        return self._check_scattered(call, x, out, first)

    def broadcast(self, comm: Communicator, call: Call) -> Any:
        root = call.template.root
        wanted = input_of(call, root, call.count)
        in_place = call.places[self.rank][2]
        if self.rank == root and in_place:
            comm.broadcast(self.filled(call, wanted), root, **self._options(call))
            return
        out = self.array(call, True, call.count)
        if in_place:
            comm.broadcast(out, root, **self._options(call))
        else:
            comm.broadcast(self.filled(call, wanted) if self.rank == root else out, root, out, **self._options(call))
        yield "output", out, wanted

    def _gathered(self, call: Call, parts: list[int]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return (x, out, what out must hold); x in its place in ``out`` where the call says so."""
        wanted = np.concatenate([input_of(call, r, n) for r, n in enumerate(parts)])
        out = self.array(call, True, call.count)
        mine = input_of(call, self.rank, parts[self.rank])
        if call.places[self.rank][2]:
            first = sum(parts[: self.rank])
            x = out[first : first + parts[self.rank]]
            x[:] = mine
            return x, out, wanted
        return self.filled(call, mine), out, wanted

    def all_gather(self, comm: Communicator, call: Call) -> Any:
        x, out, wanted = self._gathered(call, shares(call.count, self.size))
        comm.all_gather(x, out, **self._options(call))
        yield "output", out, wanted

    def all_gather_v(self, comm: Communicator, call: Call) -> Any:
        x, out, wanted = self._gathered(call, list(call.counts))
        # Every seventh time the ranks tell each other their counts first.
        comm.all_gather_v(x, call.counts if call.index % 7 else None, out, **self._options(call))
        yield "output", out, wanted

    def gather(self, comm: Communicator, call: Call) -> Any:
        root, parts = call.template.root, shares(call.count, self.size)
        if self.rank != root:
            x = self.filled(call, input_of(call, self.rank, parts[self.rank]))
            comm.gather(x, root=root, count=call.count, **self._options(call))
            return
        x, out, wanted = self._gathered(call, parts)
        comm.gather(x, out, root, count=call.count, **self._options(call))
        yield "output", out, wanted

    def scatter(self, comm: Communicator, call: Call) -> Any:
        root, parts = call.template.root, shares(call.count, self.size)
        first = sum(parts[: self.rank])
        wanted = input_of(call, root, call.count)[first : first + parts[self.rank]]
        x = self.filled(call, input_of(call, root, call.count)) if self.rank == root else None
        if x is not None and call.places[self.rank][2]:
            out = x[first : first + parts[self.rank]]
        else:
            out = self.array(call, True, parts[self.rank])
        comm.scatter(x, out, root, count=call.count, **self._options(call))
        yield "output", out, wanted

    def all_to_all(self, comm: Communicator, call: Call) -> Any:
        block = call.count // self.size
        out = self.array(call, True, call.count)
        comm.all_to_all(self.filled(call, input_of(call, self.rank, call.count)), out, **self._options(call))
        first = self.rank * block
        blocks = [input_of(call, r, call.count)[first : first + block] for r in range(self.size)]
        yield "output", out, np.concatenate(blocks)

    def all_to_all_v(self, comm: Communicator, call: Call) -> Any:
        matrix = [call.counts[r * self.size : (r + 1) * self.size] for r in range(self.size)]
        blocks = []
        for source, row in enumerate(matrix):
            first = sum(row[: self.rank])
            blocks.append(input_of(call, source, sum(row))[first : first + row[self.rank]])
        wanted = np.concatenate(blocks)
        out = self.array(call, True, len(wanted))
        x = self.filled(call, input_of(call, self.rank, sum(matrix[self.rank])))
        given: Any = matrix if call.index % 7 else matrix[self.rank]
        comm.all_to_all_v(x, given, out=out, **self._options(call))
        yield "output", out, wanted

    def send_recv(self, comm: Communicator, call: Call) -> Any:
        source = (self.rank - call.shift) % self.size
        x = self.filled(call, input_of(call, self.rank, call.count))
        out = self.array(call, True, call.count)
        comm.send_recv(x, (self.rank + call.shift) % self.size, out, source)
        yield "output", out, input_of(call, source, call.count)

    def group(self, comm: Communicator, call: Call) -> Any:
        """Two messages each way around the ring, of different lengths, in one group."""
        right, left = (self.rank + call.shift) % self.size, (self.rank - call.shift) % self.size
        cut = call.count // 3
        x = self.filled(call, input_of(call, self.rank, call.count))
        out = self.array(call, True, call.count)
        with comm.group():
            comm.send(x[:cut], right)
            comm.recv(out[:cut], left)
            comm.send(x[cut:], right)
            comm.recv(out[cut:], left)
        yield "output", out, input_of(call, left, call.count)

    def barrier(self, comm: Communicator, call: Call) -> Any:
        comm.barrier()
        return ()


def body(rank: int, exchange: Any, options: Options, plant: Plant | None) -> dict[str, Any]:
    """Run one rank; return how many calls of each kind, and the seconds."""
    waiting = options.waiting()
    layouts = options.layouts()
    executors = [
        Executor(rank, options.ranks, exchange, timeout_s=options.timeout_s, waiting=waiting, layout=layout)
        for layout in layouts
    ]
    if plant is not None:
        plant(executors)
    me = Rank(rank, options, executors)
    source = random.Random(options.seed)
    kinds: collections.Counter[str] = collections.Counter()
    begun = time.monotonic()
    templates = []
    for index in range(options.calls):
        if index % TEMPLATE_LIFE == 0:
            templates = [draw_template(source, options.ranks, options.kinds) for _ in range(TEMPLATES)]
        call = draw_call(source, index, source.choice(templates), layouts, options.symmetric)
        me.run(call)
        kinds[call.template.kind] += 1
    seconds = time.monotonic() - begun
    for comm in me.communicators:
        comm.close()
    return {"kinds": dict(kinds), "seconds": seconds}


def warm() -> None:
    """Compile or load in this process what its forked ranks need."""
    entries()
    float32, bfloat16 = dtype_of("float32"), dtype_of("bfloat16")
    for name, op in PAIRS:
        for final in (False, True):
            span_address("reduce", dtype=dtype_of(name), operation=OPERATION[op], accumulate=None, final=final)
    span_address("cast", source=float32, destination=bfloat16, scale=False)
    span_address("cast", source=bfloat16, destination=float32, scale=False)
    span_address("cast", source=float32, destination=float32, scale=True)


def run(options: Options, plant: Plant | None = None, limit_s: float = 280.0) -> list[Outcome]:
    """Run the stress program; see each outcome's ``error`` for what went wrong."""
    warm()
    return run_ranks(options.ranks, body, options, plant, timeout_s=limit_s)


def main() -> int:
    """Run it as a command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--delay", type=int, default=0, help="chance in 256 of a random delay between steps")
    parser.add_argument("--spins", type=int)
    parser.add_argument("--yields", type=int)
    parser.add_argument("--symmetric", type=float, default=0.5, help="share of arrays in symmetric memory")
    parser.add_argument("--kinds", type=lambda text: tuple(text.split(",")), default=KINDS)
    options = Options(**vars(parser.parse_args()))
    outcomes = run(options, limit_s=86_400.0)
    wrong = [f"rank {r} (signal {o.signal}):\n{o.error}" for r, o in enumerate(outcomes) if o.error or o.signal]
    for text in wrong:
        sys.stdout.write(text + "\n")
    if not wrong:
        result = outcomes[0].result
        sys.stdout.write(
            f"{options.calls} calls in {result['seconds']:.1f} s, every element right: {result['kinds']}\n"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
