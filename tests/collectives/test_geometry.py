"""Where chunks lie, in closed form and against numpy.array_split; counts far beyond what memory holds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiring.collectives.schedules import COLLECTIVES, Collective
from multiring.collectives.schedules.geometry import geometry, split_evenly
from multiring.errors import ArgumentError

HUGE = [2**29 + 3, 2**31 - 1, 2**31, 2**31 + 5, 2**33 + 7, 2**40 + 1]
PART_WISE = ["reduce_scatter", "all_gather", "gather", "scatter"]


@given(st.integers(0, 5000), st.integers(1, 64))
def test_shards_are_those_of_array_split(count: int, parts: int) -> None:
    wanted = [len(part) for part in np.array_split(np.zeros(count, dtype=np.int8), parts)]
    assert split_evenly(count, parts).tolist() == wanted


def test_ten_elements_on_four_ranks() -> None:
    assert split_evenly(10, 4).tolist() == [3, 3, 2, 2]
    where = geometry(Collective("reduce_scatter"), 4, 4, 10)
    assert where.chunks.tolist() == [[0, 0, 3], [3, 0, 3], [6, 0, 2], [8, 0, 2]]
    assert where.x_elements.tolist() == [10, 10, 10, 10]
    assert where.out_elements.tolist() == [3, 3, 2, 2]


@given(st.sampled_from(list(COLLECTIVES)), st.integers(1, 9), st.integers(1, 4), st.integers(0, 300), st.integers(0, 8))
def test_chunks_cover_every_array_once(name: str, n_ranks: int, per_part: int, count: int, root: int) -> None:
    collective = Collective(name, root % n_ranks if COLLECTIVES[name].rooted else 0)
    n_chunks = collective.n_parts(n_ranks) * per_part
    whole = count * n_ranks if name == "all_to_all" else count
    where = geometry(collective, n_ranks, n_chunks, whole)
    for rank in range(n_ranks):
        for column, held, elements in (
            (0, collective.before, where.x_elements),
            (1, collective.after, where.out_elements),
        ):
            if elements[rank] < 0:
                assert not len(held(rank, n_ranks, n_chunks))
                continue
            touched = np.zeros(int(elements[rank]), dtype=int)
            for chunk in held(rank, n_ranks, n_chunks).tolist():
                start, length = int(where.chunks[chunk, column]), int(where.chunks[chunk, 2])
                assert start + length <= len(touched)
                touched[start : start + length] += 1
            assert (touched == 1).all()
    assert where.longest == max(where.chunks[:, 2].tolist())


@given(st.integers(1, 6), st.data())
def test_an_all_to_all_with_counts_is_numpys_split(n_ranks: int, data: st.DataObject) -> None:
    numbers = st.lists(st.integers(0, 9), min_size=n_ranks**2, max_size=n_ranks**2)
    table = np.array(data.draw(numbers)).reshape(n_ranks, n_ranks)
    where = geometry(Collective("all_to_all"), n_ranks, n_ranks**2, int(table.sum()), tuple(table.reshape(-1).tolist()))
    assert where.x_elements.tolist() == table.sum(1).tolist()
    assert where.out_elements.tolist() == table.sum(0).tolist()
    for src, dst in itertools.product(range(n_ranks), repeat=2):
        assert where.chunks[src * n_ranks + dst].tolist() == [
            table[src, :dst].sum(),
            table[:src, dst].sum(),
            table[src, dst],
        ]


@pytest.mark.parametrize("count", HUGE)
@pytest.mark.parametrize("n_ranks", [1, 3, 16, 64])
def test_offsets_are_64_bit(count: int, n_ranks: int) -> None:
    """B02, B05: neither elements nor bytes are ever counted in 32 bits."""
    where = geometry(Collective("all_reduce"), n_ranks, 2 * n_ranks, count)
    assert where.chunks.dtype == np.int64
    whole, rest = divmod(count, 2 * n_ranks)
    for index, (x, out, length) in enumerate(where.chunks.tolist()):
        assert x == out == whole * index + min(index, rest)
        assert length == whole + (index < rest)
    assert sum(where.chunks[:, 2].tolist()) == count
    assert where.x_elements.tolist() == [count] * n_ranks


@pytest.mark.parametrize("count", HUGE)
def test_the_last_of_many_shards_starts_beyond_32_bits(count: int) -> None:
    """B05: rank 15's slot of 2**28 bytes."""
    where = geometry(Collective("all_gather"), 16, 16, 16 * count)
    assert where.chunks[15].tolist() == [0, 15 * count, count]
    table = geometry(Collective("all_to_all"), 16, 256, 16 * count)
    assert table.chunks[255].tolist() == [15 * count, 15 * count, count]
    explicit = geometry(Collective("all_gather"), 3, 3, count + 5, (5, 0, count))
    assert explicit.chunks.tolist() == [[0, 0, 5], [0, 5, 0], [0, 5, count]]


@given(st.sampled_from(PART_WISE), st.integers(1, 9), st.integers(1, 3), st.data())
def test_ranks_agree_on_in_place_positions(name: str, n_ranks: int, per_part: int, data: st.DataObject) -> None:
    """A rank's own slice starts, in the whole array, where all others think that it does."""
    counts = data.draw(st.lists(st.integers(0, 9), min_size=n_ranks, max_size=n_ranks))
    collective = Collective(name, data.draw(st.integers(0, n_ranks - 1)) if COLLECTIVES[name].rooted else 0)
    where = geometry(collective, n_ranks, n_ranks * per_part, sum(counts), tuple(counts))
    whole, own = (0, 1) if name in ("reduce_scatter", "scatter") else (1, 0)
    starts = np.cumsum([0, *counts])
    for rank in range(n_ranks):
        mine = where.chunks[rank * per_part : (rank + 1) * per_part]
        assert (mine[:, whole] - mine[:, own] == starts[rank]).all()


@pytest.mark.parametrize("count", [-1, -(2**40)])
def test_a_negative_count_is_refused(count: int) -> None:
    with pytest.raises(ArgumentError, match=rf"all_reduce: got {count} elements, wanted 0 or more"):
        geometry(Collective("all_reduce"), 2, 2, count)


@pytest.mark.parametrize("count", [2**63, 2**80])
def test_a_count_beyond_64_bits_is_refused(count: int) -> None:
    with pytest.raises(ArgumentError, match=rf"all_reduce: got {count} elements, wanted fewer than 2\*\*59"):
        geometry(Collective("all_reduce"), 2, 2, count)


def test_bytes_beyond_64_bits_are_refused() -> None:
    """2**59 elements of 16 bytes do not fit an address."""
    with pytest.raises(ArgumentError, match=r"all_gather: got \d+ elements, wanted fewer than 2\*\*59"):
        geometry(Collective("all_gather"), 2, 2, 2**59)
    with pytest.raises(ArgumentError, match=r"all_gather: got \d+ elements, wanted fewer than 2\*\*59"):
        geometry(Collective("all_gather"), 2, 2, 2**64, (2**63, 2**63))


def test_counts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ArgumentError, match="all_gather: got 3 counts, wanted 2"):
        geometry(Collective("all_gather"), 2, 2, 6, (1, 2, 3))
    with pytest.raises(ArgumentError, match="all_to_all: got 2 counts, wanted 4"):
        geometry(Collective("all_to_all"), 2, 4, 3, (1, 2))
    with pytest.raises(ArgumentError, match="all_gather: got counts of 3 elements, wanted 4 in all"):
        geometry(Collective("all_gather"), 2, 2, 4, (1, 2))
    with pytest.raises(ArgumentError, match=r"all_gather: got -1 elements for part 1, wanted 0 or more"):
        geometry(Collective("all_gather"), 2, 2, 2, (3, -1))
    with pytest.raises(ArgumentError, match="all_to_all: got 7 elements for 3 ranks, wanted a multiple"):
        geometry(Collective("all_to_all"), 3, 9, 7)
