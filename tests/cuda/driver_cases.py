"""Calls that a GPU's communicator and a host's must answer alike, bit for bit with order="rank"."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

import multiring as mr
from multiring.kernels.dtypes import DTYPES, numpy_dtype
from tests.cuda.device_ranks import PLACES, Both

Case = Callable[[Both], None]


def placed(both: Both, place: str, call: Callable[..., list[Any]], what: str) -> list[Any]:
    both.place, both.arrays = place, 0
    return both.compare(call, what)


def reducing(collective: str, dtype: str, count: int, place: str, inside: bool, **options: Any) -> Case:
    def case(both: Both) -> None:
        size, rank = both.size, both.rank
        values = both.values(dtype, count)
        mine = {"all_reduce": count, "reduce": count if rank == options.get("root", 0) else 0}.get(
            collective, count // size + (rank < count % size)
        )
        start = rank * (count // size) + min(rank, count % size)

        def call(comm: Any, array_of: Any) -> list[Any]:
            x = array_of(values)
            method = getattr(comm, collective)
            if collective == "reduce" and rank != options.get("root", 0):
                return [method(x, **options), x]
            if not inside:
                out = array_of(both.poison(dtype, mine))
                return [method(x, out, **options), x]
            if collective == "reduce_scatter":
                return [method(x, **options), x]
            return [method(x, **options)]

        wanted = placed(both, place, call, f"{collective} {dtype} {count} {place}")
        if collective == "all_reduce" and dtype == "int32" and options.get("op", "sum") == "sum":
            everyone = [_values_of(both, dtype, count, r) for r in range(size)]
            assert wanted[0].tolist() == np.sum(everyone, axis=0, dtype=np.int32).tolist()
        assert start >= 0

    return case


def _values_of(both: Both, dtype: str, count: int, rank: int) -> Any:
    return np.random.default_rng([0, rank, count]).integers(-50, 50, count).astype(numpy_dtype(DTYPES[dtype]))


def moving(collective: str, dtype: str, count: int, place: str, root: int = 0) -> Case:
    """``count`` elements of the whole."""

    def case(both: Both) -> None:
        size, rank = both.size, both.rank
        mine = count // size + (rank < count % size)
        options = {} if collective.startswith("all") else {"root": root}

        def call(comm: Any, array_of: Any) -> list[Any]:
            method = getattr(comm, collective)
            if collective == "broadcast":
                return [method(array_of(both.values(dtype, count)), **options)]
            if collective == "scatter":
                x = array_of(both.values(dtype, count)) if rank == root else None
                return [method(x, array_of(both.poison(dtype, mine)), count=count, **options)]
            if collective == "gather":
                x = array_of(both.values(dtype, mine))
                out = array_of(both.poison(dtype, count)) if rank == root else None
                return [method(x, out, count=count, **options), x]
            x = array_of(both.values(dtype, mine if collective == "all_gather" else count))
            return [method(x, array_of(both.poison(dtype, count)), **options), x]

        placed(both, place, call, f"{collective} {dtype} {count} {place}")

    return case


def variable(collective: str, place: str, zeros: bool) -> Case:
    def case(both: Both) -> None:
        size, rank = both.size, both.rank
        counts = [0 if zeros and r == size - 1 else 30 + 17 * r for r in range(size)]
        table = [[(5 * i + 3 * j) % 40 if not (zeros and i == j) else 0 for j in range(size)] for i in range(size)]

        def call(comm: Any, array_of: Any) -> list[Any]:
            if collective == "reduce_scatter_v":
                return [comm.reduce_scatter_v(array_of(both.values("float32", sum(counts))), counts, order="rank")]
            if collective == "all_gather_v":
                x = array_of(both.values("float32", counts[rank]))
                return [comm.all_gather_v(x, counts), comm.all_gather_v(x)]
            x = array_of(both.values("float32", sum(table[rank])))
            return [comm.all_to_all_v(x, table), comm.all_to_all_v(x, table[rank])]

        placed(both, place, call, f"{collective} {place}")

    return case


def layouts(both: Both) -> None:
    """Contiguous arrays of several dimensions, shares of them, and a place inside the whole."""

    def call(comm: Any, array_of: Any) -> list[Any]:
        x = array_of(both.values("float32", 24 * both.size).reshape(2 * both.size, 3, 4))
        return [comm.reduce_scatter(x, order="rank"), comm.all_gather(x), comm.all_reduce(x, order="rank")]

    for place in PLACES:
        placed(both, place, call, f"layouts {place}")


def many(both: Both) -> None:
    def call(comm: Any, array_of: Any) -> list[Any]:
        arrays = [array_of(both.values(d, n, n)) for n in (1, 7, 33) for d in ("float32", "int32", "bfloat16")]
        return list(comm.all_reduce_many(arrays, order="rank"))

    placed(both, "mixed", call, "all_reduce_many")


def messages(both: Both) -> None:
    right, left = (both.rank + 1) % both.size, (both.rank - 1) % both.size

    def call(comm: Any, array_of: Any) -> list[Any]:
        out = array_of(both.poison("float32", 400))
        comm.send_recv(array_of(both.values("float32", 400)), right, out, left)
        own = array_of(both.poison("int16", 9))
        comm.send_recv(array_of(both.values("int16", 9)), both.rank, own, both.rank)
        pair = array_of(both.poison("bfloat16", 3))
        if both.rank == 0:
            comm.send(array_of(both.values("bfloat16", 3)), 1)
        elif both.rank == 1:
            comm.recv(pair, 0)
        grouped = array_of(both.poison("int64", 5))
        with comm.group():
            comm.send(array_of(both.values("int64", 5)), right)
            comm.recv(grouped, left)
            total = comm.all_reduce(array_of(both.values("int32", 5)))
        return [out, own, pair, grouped, total]

    for place in PLACES:
        placed(both, place, call, f"messages {place}")


def forms(both: Both) -> None:
    """Prepared, asynchronous and raw calls, and those of a part of the ranks."""

    def call(comm: Any, array_of: Any) -> list[Any]:
        x, out = array_of(both.values("float32", 70)), array_of(both.poison("float32", 70))
        prepared = comm.prepare("all_reduce", x, out, order="rank")
        prepared()
        work = comm.all_reduce(array_of(both.values("int32", 40)), async_op=True)
        y, z = array_of(both.values("int64", 12)), array_of(both.poison("int64", 12))
        comm.raw.all_reduce(address(y), address(z), 12, "int64", "max")
        whole = array_of(both.poison("int64", 12 * comm.size))
        comm.raw.all_gather(address(y), address(whole), 12, "int64")
        comm.raw.barrier()
        part = comm.split(comm.rank % 2, -comm.rank)
        alone = part.all_reduce(array_of(both.values("int32", 20)))
        part.close()
        comm.barrier()
        return [out, work.wait(), z, whole, alone]

    placed(both, "mixed", call, "forms")


def address(x: Any) -> int:
    interface = x.__array_interface__ if isinstance(x, np.ndarray) else x.__cuda_array_interface__
    return int(interface["data"][0])


def larger_absolute(a: Any, b: Any) -> Any:
    return a if abs(a) > abs(b) else b


ORDERED = {"order": "rank"}


def cases(size: int) -> dict[str, Case]:
    """Return all cases by name."""
    found: dict[str, Case] = {}

    def add(name: str, case: Case) -> None:
        assert name not in found
        found[name] = case

    for dtype, place in itertools.product(("float32", "bfloat16"), PLACES):
        for inside in (True, False):
            where = f"{dtype} {place} {'in' if inside else 'out of'} place"
            add(f"all_reduce {where}", reducing("all_reduce", dtype, 301, place, inside, **ORDERED))
            add(f"reduce_scatter {where}", reducing("reduce_scatter", dtype, 200, place, inside, **ORDERED))
            add(f"reduce {where}", reducing("reduce", dtype, 90, place, inside, root=size - 1, **ORDERED))
    for dtype in ("float16", "int8", "uint32", "int64", "float64", "complex64", "complex128"):
        add(f"all_reduce {dtype}", reducing("all_reduce", dtype, 77, "mixed", True, **ORDERED))
    add("all_reduce int32", reducing("all_reduce", "int32", 400, "symmetric", False))
    add("all_reduce bool max", reducing("all_reduce", "bool", 50, "ordinary", False, op="max"))
    for op in ("prod", "min", "max", "avg"):
        add(f"all_reduce {op}", reducing("all_reduce", "float32", 60, "symmetric", True, op=op, **ORDERED))
    for op in ("band", "bor", "bxor"):
        add(f"all_reduce {op}", reducing("all_reduce", "int16", 60, "ordinary", True, op=op))
    add("all_reduce avg float16", reducing("all_reduce", "float16", 60, "ordinary", False, op="avg", **ORDERED))
    add(
        "premul_sum",
        reducing("all_reduce", "float32", 130, "symmetric", False, op=mr.premul_sum(0.3), **ORDERED),
    )
    custom = mr.reduction(larger_absolute)
    add("custom", reducing("all_reduce", "int32", 40, "mixed", False, op=custom, **ORDERED))
    for wire, place in (("bfloat16", "symmetric"), ("float16", "mixed"), ("float64", "ordinary")):
        add(f"wire {wire}", reducing("all_reduce", "float32", 333, place, False, wire=wire, **ORDERED))
    add("wide sums", reducing("reduce_scatter", "bfloat16", 70, "ordinary", False, accumulate="float64", **ORDERED))
    for algorithm in ("ring", "direct"):
        for place in PLACES:
            name = f"{algorithm} int32 {place}"
            add(name, reducing("all_reduce", "int32", 777, place, place == "symmetric", algorithm=algorithm))
    for count in (0, 1, size, size + 1):
        for place in ("ordinary", "symmetric"):
            add(f"all_reduce of {count} {place}", reducing("all_reduce", "float32", count, place, False, **ORDERED))
            add(f"reduce_scatter of {count} {place}", reducing("reduce_scatter", "int32", count, place, False))
    for collective, place in itertools.product(("all_gather", "broadcast", "gather", "scatter"), PLACES):
        for count in (0, 1, 257):
            root = size - 1
            add(f"{collective} of {count} {place}", moving(collective, "float32", count, place, root))
        add(f"{collective} uint8 {place}", moving(collective, "uint8", 3001, place))
    for place in PLACES:
        add(f"all_to_all {place}", moving("all_to_all", "int16", 60 * size, place))
        for collective in ("reduce_scatter_v", "all_gather_v", "all_to_all_v"):
            add(f"{collective} {place}", variable(collective, place, zeros=False))
            add(f"{collective} with zeros {place}", variable(collective, place, zeros=True))
    add("layouts", layouts)
    add("all_reduce_many", many)
    add("messages", messages)
    add("forms", forms)
    return found


def some(size: int, one_in: int) -> dict[str, Case]:
    """Return one case in so many, and the last four, which are of other kinds."""
    found = list(cases(size).items())
    return dict([*found[:-4:one_in], *found[-4:]])
