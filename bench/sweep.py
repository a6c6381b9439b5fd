"""One run of a benchmark: every case of the sweep, checked and timed, on every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multiring.bench.cases import COLLECTIVES, Case, make_case
from multiring.bench.console import complain
from multiring.bench.contender import Contender
from multiring.bench.inputs import Inputs, count_wrong, poison, write_periodic
from multiring.bench.limit import Limit, limit_bytes
from multiring.bench.rows import Half, PeerFigures, Row
from multiring.bench.timing import Trial, iterations_for, measure_ns, slowest_us
from multiring.bench.wire_limit import WireLimit
from multiring.bench.world import World
from multiring.errors import MultiringError
from multiring.kernels.dtypes import DType, numpy_dtype
from multiring.kernels.operations import Reduction, check_operation

__all__ = ["Settings", "Sweep", "needed_bytes"]

_HALVES = (("out_of_place", False), ("in_place", True))
_MOST_COMPLAINTS = 10


@dataclass(frozen=True, slots=True)
class Settings:
    """What to measure.

    Attributes
    ----------
    collective : str
    sizes : tuple of int
        Bytes.
    dtypes : tuple of DType
    operations : tuple of (name, Reduction)
        Empty for collectives that do not reduce.
    roots : tuple of int
        Empty for collectives without a root.
    iterations : int or None
        None: by size.
    warmup, checks : int
    wire : DType or None
    """

    collective: str
    sizes: tuple[int, ...]
    dtypes: tuple[DType, ...]
    operations: tuple[tuple[str, Reduction], ...] = ()
    roots: tuple[int, ...] = ()
    iterations: int | None = None
    warmup: int = 5
    checks: int = 1
    wire: DType | None = None

    def cases(self, n_ranks: int) -> Iterator[Case]:
        """Return the lines in nccl-tests' order: type, operation, root, size; without undefined combinations."""
        shape = COLLECTIVES[self.collective]
        operations = [(name, op) for name, op in self.operations] if shape.reduces else [("none", None)]
        for dtype in self.dtypes:
            for name, operation in operations:
                if operation is not None and not _defined(operation, dtype):
                    continue
                for root in self.roots if shape.rooted else (-1,):
                    for size in self.sizes:
                        wire = self.wire if shape.reduces else None
                        yield make_case(self.collective, n_ranks, size, dtype, operation, name, root, wire)


def _defined(operation: Reduction, dtype: DType) -> bool:
    try:
        check_operation(operation, dtype)
    except MultiringError:
        return False
    return True


def needed_bytes(settings: Settings, n_ranks: int, peers: Sequence[str] = ()) -> int:
    """Return the memory that one rank needs for the largest case.

    Notes
    -----
    A send and a receive buffer, the same again for the limit's copies, and for MPI as much again (its own copies of
    what it reduces, and float32 copies of 16-bit arrays where it cannot reduce them).
    """
    most = 0
    for case in settings.cases(n_ranks):
        both = (case.send_count + case.receive_count) * case.dtype.itemsize
        wide = 2 if case.dtype.itemsize == 2 and case.shape.reduces else 1
        most = max(most, 2 * both + (both * (wide if "mpi" in peers else 0)))
    return most


class Sweep:
    """The run on one rank; every rank makes the same calls.

    Parameters
    ----------
    world : World
    settings : Settings
    ours : sequence of Ours (or another contender that stands for it)
        One for each algorithm.
    peers : sequence of Contender
    limit : Limit or WireLimit or None
        None where the ranks of a node share no memory.
    barrier : callable
        For between timed calls.
    allocate : callable
        ``allocate(nbytes) -> ndarray of uint8``, aligned: where the buffers come from.
    algorithm_name : callable
        ``algorithm_name(contender, case) -> str``, for the column.
    predict : callable
        ``predict(contender, case, in_place) -> float or None``, microseconds.
    """

    def __init__(
        self,
        world: World,
        settings: Settings,
        ours: Sequence[Any],
        peers: Sequence[Contender] = (),
        limit: Limit | WireLimit | None = None,
        barrier: Callable[[], object] | None = None,
        allocate: Callable[[int], Any] | None = None,
        algorithm_name: Callable[[Any, Case], str] = lambda contender, case: (
            getattr(contender, "algorithm", None) or "-"
        ),
        predict: Callable[[Any, Case, bool], float | None] = lambda contender, case, in_place: None,
    ) -> None:
        self._world = world
        self._settings = settings
        self._ours = ours
        self._peers = peers
        self._limit = limit
        self._barrier = barrier or world.barrier
        self._algorithm_name = algorithm_name
        self._predict = predict
        allocate = allocate or (lambda nbytes: np.empty(nbytes, np.uint8))
        cases = list(settings.cases(world.size))
        self.n_rows = len(cases) * len(ours)
        self._send = allocate(max([c.send_count * c.dtype.itemsize for c in cases], default=0))
        self._receive = allocate(max([c.receive_count * c.dtype.itemsize for c in cases], default=0))
        self._complaints = 0

    def rows(self) -> Iterator[Row]:
        """Measure line after line."""
        for case in self._settings.cases(self._world.size):
            for contender in self._ours:
                yield self._row(contender, case)

    def _row(self, ours: Contender, case: Case) -> Row:
        settings, rank = self._settings, self._world.rank
        dtype = numpy_dtype(case.dtype)
        send = self._send[: case.send_count * dtype.itemsize].view(dtype)
        receive = self._receive[: case.receive_count * dtype.itemsize].view(dtype)
        contenders: list[Contender] = [ours, *self._peers]
        trials: list[Trial] = []
        wrong: dict[tuple[str, bool], int] = {}
        constants = [Inputs(case, seed, constant=True) for seed in (0, 1)]
        sent = [inputs.sent(rank) for inputs in constants]
        for _, in_place in _HALVES:
            arrays = case.split(rank, send, receive) if in_place else (send, receive)
            if arrays is None:
                continue
            for contender in contenders:
                call = contender.bind(case, *arrays, in_place)
                if call is None:
                    continue
                where = _result_of(contender, case, *arrays, in_place)
                key = (contender.name, in_place)
                wrong[key] = sum(
                    self._check(contender, case, call, arrays, where, in_place, seed) for seed in range(settings.checks)
                )

                def rewrite(k: int, array: Any = arrays[0]) -> None:
                    write_periodic(array, sent[k % 2])

                def verify(k: int, key: Any = key, where: Any = where, contender: Contender = contender) -> None:
                    if settings.checks:
                        wrong[key] += self._compare(contender, case, where, constants[k % 2].received(rank), key[1])

                trials.append(Trial(contender.name, rewrite, call, verify, in_place))
            if self._limit is not None:
                limit_sent, move = self._limit.bind(case, in_place)
                limit_send = limit_sent.view(dtype)

                def rewrite_limit(k: int, array: Any = limit_send) -> None:
                    write_periodic(array, sent[k % 2])

                trials.append(Trial(self._limit.name, rewrite_limit, move, None, in_place))
        iterations = settings.iterations or iterations_for(case.size_bytes)
        taken = measure_ns(trials, iterations, settings.warmup, self._barrier)
        by_rank = self._world.gather(taken).reshape(self._world.size, *taken.shape)
        medians, fastest = slowest_us(by_rank)
        both = zip(medians.tolist(), fastest.tolist(), strict=True)
        times = dict(zip([(t.name, t.in_place) for t in trials], both, strict=True))
        total = dict(
            zip(wrong, self._world.gather([float(v) for v in wrong.values()]).sum(axis=0).tolist(), strict=True)
        )
        halves = [self._half(ours, case, in_place, times, total) for _, in_place in _HALVES]
        return Row(case, self._algorithm_name(ours, case), halves[0], halves[1], iterations)

    def _half(
        self,
        ours: Contender,
        case: Case,
        in_place: bool,
        times: dict[tuple[str, bool], tuple[float, float]],
        wrong: dict[tuple[str, bool], float],
    ) -> Half | None:
        nothing = (None, None)
        time_us, fastest_us = times.get((ours.name, in_place), nothing)
        if time_us is None:
            return None
        checked = self._settings.checks > 0
        peers = {}
        for peer in self._peers:
            peer_us, peer_fastest_us = times.get((peer.name, in_place), nothing)
            if peer_us is not None:
                n_wrong = int(wrong[peer.name, in_place]) if checked else None
                peers[peer.name] = PeerFigures(
                    peer_us,
                    case.alg_bw_gbs(peer_us),
                    case.bus_bw_gbs(peer_us),
                    peer_us / time_us,
                    n_wrong,
                    peer.how(case, in_place),
                    peer_fastest_us,
                )
        return Half(
            time_us,
            case.alg_bw_gbs(time_us),
            case.bus_bw_gbs(time_us),
            int(wrong[ours.name, in_place]) if checked else None,
            self._predict(ours, case, in_place),
            times.get(("limit", in_place), nothing)[0],
            (self._limit.limit_bytes if self._limit is not None else limit_bytes)(case, in_place),
            peers,
            fastest_us,
        )

    def _check(
        self,
        contender: Contender,
        case: Case,
        call: Any,
        arrays: tuple[Any, Any],
        where: Any,
        in_place: bool,
        seed: int,
    ) -> int:
        """Do the case once from known inputs into a poisoned output; return how many elements are wrong."""
        rank = self._world.rank
        inputs = Inputs(case, seed)
        send, receive = arrays
        sent = inputs.sent(rank)
        poison(receive)
        write_periodic(send, sent)
        self._barrier()
        call()
        n_wrong = self._compare(contender, case, where, inputs.received(rank), in_place)
        if not in_place and count_wrong(send, sent)[0]:
            n_wrong += self._compare(contender, case, send, sent, in_place, what="input (which must not change)")
        # The next contender poisons what others may still be reading.
        self._barrier()
        return n_wrong

    def _compare(
        self, contender: Contender, case: Case, array: Any, wanted: list[Any], in_place: bool, what: str = "output"
    ) -> int:
        n_wrong, first = count_wrong(array, wanted)
        if n_wrong and self._complaints < _MOST_COMPLAINTS:
            self._complaints += 1
            length = array.size // len(wanted)
            template = wanted[first // length]
            complain(
                f"rank {self._world.rank}: {contender.name} {case.collective} "
                f"{'in place' if in_place else 'out of place'}, {case.size_bytes} bytes of {case.dtype.name}, "
                f"op {case.operation_name}: {n_wrong} of {array.size} elements of the {what} are wrong, "
                f"the first at index {first}: got {array[first]}, wanted {template[first % length % template.size]}"
            )
        return n_wrong


def _result_of(contender: Contender, case: Case, send: Any, receive: Any, in_place: bool) -> Any:
    """Return the array in which a contender leaves its result."""
    find = getattr(contender, "result", None)
    return receive if find is None else find(case, send, receive, in_place)
