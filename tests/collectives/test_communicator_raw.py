"""The low level: integers in, and function pointers for callers in C."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tests.collectives import fake_executor
from tests.collectives.cases import caught, same, values
from tests.collectives.conftest import OnRanks


def address(x: Any) -> int:
    return int(x.ctypes.data)


def test_every_collective_with_nccls_counts(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> None:
        raw, size, rank = comm.raw, comm.size, comm.rank
        inputs = [values(r, (6,)) for r in range(size)]
        mine, total = inputs[rank].copy(), inputs[0] + inputs[1] + inputs[2]
        out = np.empty(6, np.float32)
        for dtype, op in ((7, 0), ("float32", "sum"), (np.float32, "sum")):
            raw.all_reduce(address(mine), address(out), 6, dtype, op)
            same(out, total)
        raw.all_reduce(address(mine), address(out), 6, 7, 2)
        same(out, np.maximum(np.maximum(*inputs[:2]), inputs[2]))
        same(mine, inputs[rank])
        raw.reduce(address(mine), address(out) if rank == 1 else 0, 6, 7, 0, 1)
        if rank == 1:
            same(out, total)
        raw.broadcast(address(mine) if rank == 2 else 0, address(out), 6, 7, 2)
        same(out, inputs[2])
        raw.reduce_scatter(address(mine), address(out), 2, 7, 0)
        same(out[:2], total[2 * rank : 2 * rank + 2])
        big = np.empty((size, 6), np.float32)
        raw.all_gather(address(mine), address(big), 6, 7)
        same(big, np.array(inputs))
        big[...] = -1
        big[rank] = mine
        raw.all_gather(address(big) + 24 * rank, address(big), 6, 7)  # NCCL's place
        same(big, np.array(inputs))
        raw.all_to_all(address(mine), address(out), 2, 7)
        same(out, np.concatenate([i[2 * rank : 2 * rank + 2] for i in inputs]))
        big[...] = -1
        raw.gather(address(mine), address(big) if rank == 0 else 0, 6, 7, 0)
        if rank == 0:
            same(big, np.array(inputs))
        raw.scatter(address(big) if rank == 0 else 0, address(out), 6, 7, 0)
        same(out, inputs[rank])
        if rank == 0:
            raw.send(address(mine), 6, 7, 1)
        elif rank == 1:
            raw.recv(address(out), 6, 7, 0)
            same(out, inputs[0])
        with comm.group():
            raw.recv(address(out), 6, 7, (rank - 1) % size)
            raw.send(address(mine), 6, 7, (rank + 1) % size)
        same(out, inputs[rank - 1])
        raw.barrier()

    on_ranks(3, body)


def test_refusals(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> None:
        raw, x = comm.raw, np.ones(4, np.float32)
        at = address(x)
        for call, kind, text in (
            (lambda: raw.all_reduce(at, at, 4, 99, 0), "ArgumentError", "dtype: got code 99, wanted one of 0 (int8)"),
            (lambda: raw.all_reduce(at, at, 4, 7, 99), "ArgumentError", "op: got code 99, wanted one of 0 (sum)"),
            (
                lambda: raw.all_reduce(at, at, 4, 7, 5),
                "ArgumentTypeError",
                "op='band' is not defined for dtype float32",
            ),
            (lambda: raw.all_reduce(at, at, -1, 7, 0), "ArgumentError", "count: got -1, wanted 0 or more"),
            (lambda: raw.all_reduce(at, at, 4, 7, 0, stream=8), "ArgumentError", "stream: got 8, wanted 0"),
            (lambda: raw.broadcast(at, at, 4, 7, 2), "ArgumentError", "root: got 2, wanted a rank from 0 to 1"),
        ):
            got = caught(call)
            assert got[0] == kind
            assert text in got[1]
            raw.all_reduce(at, at, 4, 7, 2)
        same(x, np.ones(4, np.float32))
        assert "wanted one of all_reduce" in caught(raw.address, "send")[1]

    on_ranks(2, body)


def test_function_pointers(on_ranks: OnRanks) -> None:
    def body(comm: Any) -> None:
        pointer, size, word = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        plain = ctypes.CFUNCTYPE(word, pointer, pointer, size, word, word, pointer)
        rooted = ctypes.CFUNCTYPE(word, pointer, pointer, size, word, word, word, pointer)
        assert comm.raw.address("all_reduce") == comm.raw.address("all_reduce") != 0
        all_reduce = plain(comm.raw.address("all_reduce"))
        x = values(comm.rank, (5,))
        assert all_reduce(address(x), address(x), 5, 7, 0, None) == 0
        same(x, values(0, (5,)) + values(1, (5,)))
        assert comm.raw.last_error() == ""
        assert all_reduce(address(x), address(x), 5, 77, 0, None) == 4
        assert "ArgumentError: all_reduce: dtype: got code 77" in comm.raw.last_error()
        reduce = rooted(comm.raw.address("reduce"))
        assert reduce(address(x), address(x), 5, 7, 2, 1, None) == 0
        broadcast = plain(comm.raw.address("broadcast"))  # its fifth is the root
        assert broadcast(None if comm.rank else address(x), address(x), 5, 7, 0, None) == 0
        gather = ctypes.CFUNCTYPE(word, pointer, pointer, size, word, pointer)(comm.raw.address("all_gather"))
        both = np.empty(10, np.float32)
        assert gather(address(x), address(both), 5, 7, None) == 0
        same(both, np.tile(x, 2))
        comm.close()
        assert all_reduce(address(x), address(x), 5, 7, 0, None) == 5
        assert "CommunicatorClosed" in comm.raw.last_error()

    on_ranks(2, body)


def test_a_mismatch_has_its_code() -> None:
    def body(comm: Any) -> int:
        kind = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_void_p
        )
        x = np.zeros(4, np.float32)
        return int(kind(comm.raw.address("all_reduce"))(address(x), address(x), 4 - comm.rank, 7, 0, None))

    assert fake_executor.on_ranks(2, body) == [5, 5]
