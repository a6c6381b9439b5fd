"""Several communicators at once, splits, threads, back-to-back calls, and that bits are equal everywhere."""

from __future__ import annotations

import hashlib
import os
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import multiring as mr
from multiring.collectives.drivers.control import Layout, Waiting, words_at
from multiring.kernels.records import CONTEXT_CONTROL
from tests.shm.helpers import array, caught, join
from tests.shm.stress_calls import OPERATION, left_fold
from tests.support.ranks import results, run_ranks

pytestmark = pytest.mark.shm

DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"


# --- split and dup ---------------------------------------------------------------------------------------------------


def test_split_orders_by_key_then_rank() -> None:
    def body(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 5)
        backwards = comm.split(0, key=-rank)
        halves = comm.split(rank % 2, key=0)
        assert backwards is not None
        assert halves is not None
        x = np.array([rank])
        out = backwards.all_gather(x)
        return backwards.rank, out.tolist(), halves.rank, halves.size, halves.all_gather(x).tolist()

    for rank, answer in enumerate(results(run_ranks(5, body))):
        members = [r for r in range(5) if r % 2 == rank % 2]
        assert answer == (4 - rank, [4, 3, 2, 1, 0], members.index(rank), len(members), members)


def test_a_rank_without_a_color_gets_none() -> None:
    def body(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 3)
        part = comm.split(None if rank == 1 else 7, key=rank)
        if part is None:
            comm.barrier()
            return None
        value = part.all_gather(np.array([rank])).tolist()
        comm.barrier()
        return value

    assert results(run_ranks(3, body)) == [[0, 2], None, [0, 2]]


def test_a_split_that_fails_for_one_color_leaves_the_others_in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 4, timeout_s=5.0)
        if rank >= 2:
            monkeypatch.setenv("MULTIRING_SHM_DIR", "/nonexistent")
        parts: list[Any] = []
        found = caught(lambda: parts.append(comm.split(rank // 2, 0)))
        values = parts[0].all_gather(np.array([rank])).tolist() if parts else []
        comm.barrier()
        return found[:2], values

    for rank, (found, values) in enumerate(results(run_ranks(4, body))):
        if rank < 2:
            assert (found, values) == (("", ""), [0, 1])
        else:
            assert found[0] == "SharedMemoryError"
            assert "rank 0: control segment of a communicator of 2 ranks" in found[1]
            assert "/nonexistent (MULTIRING_SHM_DIR)" in found[1]


def test_three_communicators_of_the_same_ranks_do_not_mix() -> None:
    def body(rank: int, exchange: Any) -> Any:
        comms = [join(rank, exchange, 3) for _ in range(3)]
        sums = []
        for step in range(60):
            # Every rank takes them in the same order; the order changes from step to step.
            for k in np.random.default_rng(step).permutation(3).tolist():
                x = np.full(500 * (k + 1), rank + 10 * k + step)
                comms[k].all_reduce(x)
                sums.append(int(x[-1]) == 3 + 30 * k + 3 * step)
        comms[1].close()
        comms[0].barrier()
        comms[2].barrier()
        return all(sums)

    assert results(run_ranks(3, body)) == [True] * 3


def test_an_error_closes_one_communicator_alone() -> None:
    def body(rank: int, exchange: Any) -> Any:
        one, other = join(rank, exchange, 2), join(rank, exchange, 2)
        x = one.empty(100, "float32")
        found = caught(lambda: one.all_reduce(x, op="max" if rank else "sum"))
        x[:] = 1
        other.all_reduce(x)
        return found[0], one.closed, other.closed, float(x[0])

    assert results(run_ranks(2, body)) == [("MismatchError", True, False, 2.0)] * 2


@pytest.mark.parametrize("separate", [False, True], ids=["one-communicator", "a-communicator-each"])
def test_two_threads(separate: bool) -> None:
    """On one communicator calls of equal kind may come in any order; on two they are independent."""

    def body(rank: int, exchange: Any) -> Any:
        first = join(rank, exchange, 2)
        comms = [first, first.dup() if separate else first]
        wrong: list[Any] = []

        def work(k: int) -> None:
            value = k + 1 if separate else 1
            for _ in range(100):
                x = np.full(3000, value)
                comms[k].all_reduce(x)
                if (x != 2 * value).any():
                    wrong.append(x)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return len(wrong), any(t.is_alive() for t in threads)

    assert results(run_ranks(2, body)) == [(0, False)] * 2


def test_two_communicators_in_opposite_order_asynchronously() -> None:
    """Each has its own queue, so the order between them does not matter (NCCL #592)."""

    def body(rank: int, exchange: Any) -> Any:
        comms = [join(rank, exchange, 2), join(rank, exchange, 2)]
        values = []
        for _ in range(30):
            arrays = [np.full(2000, k + 1) for k in range(2)]
            works = [comms[k].all_reduce(arrays[k], async_op=True) for k in ((0, 1) if rank else (1, 0))]
            for work in works:
                work.wait(30)
            values.append([int(a[-1]) for a in arrays])
        for comm in comms:
            comm.close()
        return values == [[2, 4]] * 30

    assert results(run_ranks(2, body)) == [True, True]


# --- back to back ----------------------------------------------------------------------------------------------------


def test_ten_thousand_barriers() -> None:
    """Each rank counts its barriers where the others see it: nobody may be more than one ahead or behind."""
    calls = 10_000 if DEEP else 3000

    def body(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 3)
        counter = comm.empty(8, "int64")
        counter[:] = 0
        where = [int(a) for a in comm.all_gather(np.array([_descriptor_of(comm, counter)])).tolist()]
        pids = comm.all_gather(np.array([os.getpid()])).tolist()
        seen = [counter if r == rank else _map(pids[r], where[r]) for r in range(3)]
        wrong = 0
        for n in range(calls):
            counter[0] = n
            comm.barrier()
            wrong += any(not n <= int(s[0]) <= n + 1 for s in seen)
        comm.barrier()
        return wrong

    assert results(run_ranks(3, body, timeout_s=200)) == [0, 0, 0]


def _descriptor_of(comm: Any, x: Any) -> int:
    """Return the file descriptor of the first heap segment, where ``x`` lies at the start."""
    heap = comm._engine.executor._driver.heap
    assert x.ctypes.data == heap._segments[0].address
    return int(heap._segments[0].descriptor)


def _map(pid: int, descriptor: int) -> Any:
    import mmap

    fd = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR)
    try:
        return np.frombuffer(mmap.mmap(fd, 4096), np.int64)
    finally:
        os.close(fd)


@pytest.mark.parametrize("symmetric", [False, True], ids=["ordinary", "symmetric"])
def test_tiny_messages_carry_their_number(symmetric: bool) -> None:
    """A flag that is seen before its payload would show an old number (UCC #939)."""
    calls = 100_000 if DEEP else 4000

    def body(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 2)
        x, out = (array(comm, 3, "int64", symmetric, 0) for _ in range(2))
        reduce = comm.prepare("all_reduce", x, out, op="max")
        wrong = 0
        for n in range(calls):
            x[:] = n
            if n % 2:
                reduce()
            else:
                comm.send_recv(x, 1 - rank, out, 1 - rank)
            wrong += int((out != n).sum())
        return wrong

    assert results(run_ranks(2, body, timeout_s=250)) == [0, 0]


def test_memory_that_was_full_of_ones() -> None:
    """New segments start at zero whatever their pages held before: the kernel clears them, and calls start at 1."""

    def body(rank: int, exchange: Any) -> Any:
        first = join(rank, exchange, 2)
        filler = first.empty(8 << 20, "uint8")
        filler[:] = 0xFF
        first.barrier()
        first.close()
        second = join(rank, exchange, 2)
        executor: Any = second._engine.executor
        words = words_at(int(executor._context.words[CONTEXT_CONTROL]), 48)
        zero = [int(words[k]) for k in (0, 16, 32)]
        exchange(b"")  # A rank that waits in the barrier counts itself in these words.
        second.barrier()
        return zero

    assert results(run_ranks(2, body)) == [[0, 0, 0]] * 2


# --- bits ------------------------------------------------------------------------------------------------------------


def digest(x: Any) -> str:
    return hashlib.sha256(x.tobytes()).hexdigest()


SIZES = [1, 7, 3001, 30_000]
ALGORITHMS = [None, "direct", "ring", "chain", "halving_doubling", "recursive_doubling", "bruck", "double_tree"]


def random_bits(dtype: str) -> Any:
    """Sums of values of any magnitude: here every other order of adding gives other bits."""

    def body(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 4, layout=Layout(4, slot_bytes=4096), waiting=Waiting(spins=0, delay=20, seed=rank))
        found = []
        for algorithm in ALGORITHMS:
            for count in SIZES:
                for symmetric in (False, True):
                    generator = np.random.default_rng([rank, count])
                    exponents = generator.integers(-8, 8, count)
                    values = np.ldexp(generator.standard_normal(count), exponents).astype(dtype)
                    x = array(comm, count, dtype, symmetric, 0)
                    x[:] = values
                    comm.all_reduce(x, algorithm=algorithm)
                    found.append(digest(x))
        comm.close()
        return found

    return body


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_rank_and_every_run_gets_the_same_bits(dtype: str) -> None:
    first = results(run_ranks(4, random_bits(dtype)))
    assert all(answer == first[0] for answer in first)
    # Registered or not, the bits of one algorithm are the same.
    assert first[0][::2] == first[0][1::2]
    assert results(run_ranks(4, random_bits(dtype))) == first


def fold(parts: list[Any], dtype: str) -> Any:
    """Return the left fold of sums in ascending rank, 16-bit types added in float32 and rounded once."""
    wide = np.float32 if dtype in ("bfloat16", "float16") else np.dtype(dtype)
    total = parts[0].astype(wide)
    for part in parts[1:]:
        total = total + part.astype(wide)
    return total.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


ORDER = {3: (1e8, -1e8, 1), 4: (1e8, 1, -1e8, 1), 5: (1, 1e8, 1, -1e8, 1)}


@pytest.mark.parametrize("ranks", [3, 4, 5])
def test_rank_order_adds_in_ascending_rank_whatever_the_size(ranks: int) -> None:
    """float32: 1e8 + 1 - 1e8 + 1 is 1 from the left, and 0 or 2 in other orders (NCCL #157)."""

    def body(rank: int, exchange: Any) -> Any:
        layout = Layout(ranks, slot_bytes=2048, eager_bytes=512)
        comm = join(rank, exchange, ranks, layout=layout)
        wrong = []
        for count in (1, 2, 31, 1000, 1001, 4096, 30_000):
            for symmetric in (False, True):
                for algorithm in (None, "direct", "chain"):
                    for dtype in ("float32", "bfloat16", "float16"):
                        if dtype == "float16":
                            sources = [np.random.default_rng([r, count]) for r in range(ranks)]
                            inputs = [s.standard_normal(count).astype(dtype) for s in sources]
                        else:
                            inputs = [
                                np.full(count, v, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
                                for v in ORDER[ranks]
                            ]
                        if algorithm == "chain" and dtype != "float32":
                            continue  # It rounds partial sums.
                        x = array(comm, count, inputs[0].dtype, symmetric, 0)
                        x[:] = inputs[rank]
                        comm.all_reduce(x, order="rank", algorithm=algorithm)
                        if x.tobytes() != fold(inputs, dtype).tobytes():
                            wrong.append((count, symmetric, algorithm, dtype, x[0], fold(inputs, dtype)[0]))
        return wrong

    assert results(run_ranks(ranks, body)) == [[]] * ranks


def test_rank_order_of_a_reduction_that_does_not_commute() -> None:
    def body(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 4, layout=Layout(4, slot_bytes=2048, eager_bytes=512))
        wrong = []
        for count in (1, 5, 1000, 20_001):
            for symmetric in (False, True):
                inputs = [np.random.default_rng([r, count]).integers(-9, 9, count) for r in range(4)]
                wanted = inputs[0]
                for part in inputs[1:]:
                    wanted = left_fold(wanted, part)
                x = array(comm, count, "int64", symmetric, 0)
                x[:] = inputs[rank]
                out = comm.all_reduce(x, op=OPERATION["custom"], order="rank")
                shares = comm.reduce_scatter(inputs[rank], op=OPERATION["custom"], order="rank")
                if (out != wanted).any() or (comm.all_gather(shares, np.empty_like(wanted)) != wanted).any():
                    wrong.append((count, symmetric))
        return wrong

    assert results(run_ranks(4, body)) == [[]] * 4


def test_packing_does_not_change_rank_ordered_bits() -> None:
    """The same 1000 values alone, and in a bucket behind 0, 1, 7 and 4096 others (NCCL #157, ROCm #11661)."""

    def body(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 3)
        values = np.random.default_rng(rank).standard_normal(1000).astype(np.float32)
        alone = values.copy()
        comm.all_reduce(alone, order="rank")
        found = {digest(alone)}
        for before in (0, 1, 7, 4096):
            mine = values.copy()
            comm.all_reduce_many([np.ones(before, np.float32), mine], order="rank")
            found.add(digest(mine))
        return sorted(found)

    answers = results(run_ranks(3, body))
    assert len(answers[0]) == 1
    assert answers[0] == answers[1] == answers[2]


def test_other_communicators_before_do_not_change_bits() -> None:
    """What was allocated earlier plays no part (NCCL #2360)."""

    def body(rank: int, exchange: Any, busy: bool) -> Any:
        comm = join(rank, exchange, 3)
        kept = []
        if busy:
            for n in range(5):
                twin = comm.dup()
                kept.append(twin.empty(1000 * (n + 1), "bfloat16"))
                twin.all_reduce(kept[-1], op="max")
                twin.close()
        x = array(comm, 10_000, "float32", True, 0)
        x[:] = np.random.default_rng(rank).standard_normal(10_000)
        comm.all_reduce(x)
        wire = comm.all_reduce(x.copy(), wire="bfloat16")
        return digest(x), digest(wire)

    assert results(run_ranks(3, body, True)) == results(run_ranks(3, body, False))


def test_one_hundred_repeats_give_one_hash() -> None:
    def body(rank: int, exchange: Any) -> Any:
        comm = join(rank, exchange, 3, waiting=Waiting(spins=0, delay=30, seed=rank))
        values = np.random.default_rng(rank).standard_normal(5000).astype(np.float32)
        return len({digest(comm.all_reduce(values.copy())) for _ in range(100)})

    assert results(run_ranks(3, body)) == [1, 1, 1]


def test_the_public_reduction_is_what_the_stress_program_uses() -> None:
    assert mr.reduction(left_fold) == OPERATION["custom"]
