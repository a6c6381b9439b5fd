"""A schedule that does not keep its promise is caught, and the text says where."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from multiring.collectives.schedules import (
    ALGORITHMS,
    Collective,
    Op,
    Schedule,
    Step,
    Transfer,
    build,
    verify,
)
from multiring.collectives.schedules import verify as verify_function
from multiring.errors import ScheduleError

PAIRS = [(name, c) for name, algorithm in ALGORITHMS.items() for c in algorithm.collectives if c != "barrier"]
Execute = Callable[[Schedule, int, int], None]


def schedule_of(collective: str, n_ranks: int, n_chunks: int, *steps: list[Transfer]) -> Schedule:
    return Schedule(Collective(collective), n_ranks, n_chunks, tuple(Step.of(step) for step in steps))


def copy(src: int, dst: int, chunk: int) -> Transfer:
    return Transfer(src, dst, chunk, Op.COPY)


def add(src: int, dst: int, chunk: int) -> Transfer:
    return Transfer(src, dst, chunk, Op.REDUCE)


def holds(schedule: Schedule) -> bool:
    """Whether a schedule keeps its promise, by Python sets: the definition that verify is the fast form of."""
    collective, p, n_chunks = schedule.collective, schedule.n_ranks, schedule.n_chunks
    state = {(r, c): [r] for r in range(p) for c in collective.before(r, p, n_chunks).tolist()}
    for step in schedule.steps:
        new: dict[tuple[int, int], list[int]] = {}
        copied = set()
        for transfer in step:
            slot = (transfer.dst, transfer.chunk)
            if (transfer.src, transfer.chunk) not in state:
                return False
            if transfer.op is Op.REDUCE:
                if slot not in state or slot in copied:
                    return False
                new.setdefault(slot, list(state[slot]))
            elif slot in new:
                return False
            else:
                copied.add(slot)
            new.setdefault(slot, []).extend(state[transfer.src, transfer.chunk])
            if len(set(new[slot])) != len(new[slot]):
                return False
        state |= new
    wanted = p if collective.reduces else 1
    return all(
        len(state.get((r, c), [])) == wanted for r in range(p) for c in collective.after(r, p, n_chunks).tolist()
    )


@pytest.mark.parametrize(("name", "collective"), PAIRS)
@given(data=st.data())
def test_a_removed_doubled_or_changed_transfer_is_caught_unless_the_answer_is_still_right(
    execute: Execute, name: str, collective: str, data: st.DataObject
) -> None:
    n_ranks = data.draw(st.integers(2, 8), "ranks")
    good = build(name, collective, n_ranks)
    steps = [list(step) for step in good.steps]
    index = data.draw(st.integers(0, len(steps) - 1), "step")
    row = data.draw(st.integers(0, len(steps[index]) - 1), "transfer")
    kind = data.draw(st.sampled_from(["remove", "double", "repeat", "move", "swap", "flip", "chunk"]), "kind")
    it = steps[index][row]
    if kind == "remove":
        del steps[index][row]
    elif kind == "double":
        steps[index].append(it)
    elif kind == "repeat":
        steps.append([it])
    elif kind == "move":
        del steps[index][row]
        steps.insert(data.draw(st.integers(0, len(steps)), "to"), [it])
    elif kind == "swap":
        steps[index][row] = Transfer(it.dst, it.src, it.chunk, it.op)
    elif kind == "flip":
        steps[index][row] = Transfer(it.src, it.dst, it.chunk, Op.COPY if it.op is Op.REDUCE else Op.REDUCE)
    else:
        steps[index][row] = Transfer(it.src, it.dst, (it.chunk + 1) % good.n_chunks, it.op)
    bad = schedule_of(collective, n_ranks, good.n_chunks, *steps)
    assume(bad.steps != good.steps)
    if holds(bad):
        # Such as a copy made twice over: it must really be right.
        verify(bad)
        execute(bad, 3 * n_ranks, 1)
    else:
        with pytest.raises(ScheduleError, match=r"step \d+|after the last of \d+ steps"):
            verify(bad)


@pytest.mark.parametrize("name", ["direct", "ring", "one_shot"])
def test_no_transfer_of_these_all_reduces_can_be_left_out(name: str) -> None:
    good = build(name, "all_reduce", 4)
    for index, step in enumerate(good.steps):
        for row in range(len(step)):
            steps = [list(one) for one in good.steps]
            del steps[index][row]
            with pytest.raises(ScheduleError):
                verify(schedule_of("all_reduce", 4, good.n_chunks, *steps))


def test_a_missing_rank_is_named() -> None:
    with pytest.raises(ScheduleError, match=r"custom all_reduce of 3 ranks, after the last of 1 steps: "
                                            r"rank 0 chunk 0 lacks rank\(s\) \[2\]"):  # fmt: skip
        verify(schedule_of("all_reduce", 3, 1, [add(1, 0, 0)]))


def test_a_missing_chunk_is_named() -> None:
    with pytest.raises(ScheduleError, match="after the last of 1 steps: rank 1 chunk 1 is not there"):
        verify(schedule_of("broadcast", 2, 2, [copy(0, 1, 0)]))


def test_a_rank_added_twice_is_named() -> None:
    with pytest.raises(ScheduleError, match=r"step 1: rank 0 chunk 0 gets rank\(s\) \[1\] added twice"):
        verify(schedule_of("reduce", 2, 1, [add(1, 0, 0)], [add(1, 0, 0)]))
    with pytest.raises(ScheduleError, match=r"step 0: rank 0 chunk 0 gets rank\(s\) \[1\] added twice"):
        verify(schedule_of("reduce", 2, 1, [add(1, 0, 0), add(1, 0, 0)]))
    with pytest.raises(ScheduleError, match=r"step 1: rank 2 chunk 0 gets rank\(s\) \[1\] added twice"):
        verify(schedule_of("reduce", 4, 1, [add(1, 0, 0), add(1, 3, 0)], [add(0, 2, 0), add(3, 2, 0)]))


def test_a_chunk_that_is_not_there_cannot_be_read() -> None:
    with pytest.raises(ScheduleError, match="step 0: rank 1 chunk 0 is sent to rank 2, but is not there"):
        verify(schedule_of("broadcast", 3, 1, [copy(0, 1, 0), copy(1, 2, 0)]))


def test_reads_of_a_step_see_the_state_before_it() -> None:
    # Both ranks add the other's original: neither sees the other's sum.
    verify(schedule_of("all_reduce", 2, 1, [add(0, 1, 0), add(1, 0, 0)]))
    verify(schedule_of("reduce", 3, 1, [add(2, 1, 0), copy(1, 2, 0)], [add(1, 0, 0)]))


def test_a_copy_with_anything_else_into_one_slot_is_refused() -> None:
    wanted = "step 0: rank 0 chunk 0 is written by a copy and by another transfer at once, wanted the copy alone"
    with pytest.raises(ScheduleError, match=wanted):
        verify(schedule_of("reduce", 3, 1, [copy(1, 0, 0), add(2, 0, 0)]))
    with pytest.raises(ScheduleError, match=wanted):
        verify(schedule_of("reduce", 3, 1, [copy(1, 0, 0), copy(2, 0, 0)]))


def test_nothing_is_added_to_what_is_not_there_or_not_reduced() -> None:
    with pytest.raises(ScheduleError, match="step 0: rank 1 chunk 0 is added to, but is not there"):
        verify(schedule_of("broadcast", 2, 1, [add(0, 1, 0)]))
    with pytest.raises(ScheduleError, match="step 1: rank 1 chunk 0 gets its only origin added twice"):
        verify(schedule_of("broadcast", 2, 1, [copy(0, 1, 0)], [add(0, 1, 0)]))


def test_a_schedule_checked_in_blocks_of_chunks_fails_in_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    module = __import__("sys").modules[verify_function.__module__]
    good = build("ring", "all_reduce", 70)
    without_last = Schedule(good.collective, 70, 70, good.steps[:-1])
    for limit in (1, 70 * 2 * 8 * 9, 1 << 28):
        monkeypatch.setattr(module, "MAX_STATE_BYTES", limit)
        verify(good)
        with pytest.raises(ScheduleError, match=r"after the last of 137 steps: rank \d+ chunk \d+ lacks rank"):
            verify(without_last)


def test_256_ranks_are_checked() -> None:
    for name in ("ring", "direct", "one_shot"):
        verify(build(name, "all_reduce", 256))
