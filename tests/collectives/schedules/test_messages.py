"""Messages: chunks that travel together, the wire that holds them up, and their time."""

from __future__ import annotations

import pytest

from multiring.collectives.schedules import Collective, Op, Schedule, Step, build, cost
from multiring.collectives.schedules.messages import messages_of, runs
from multiring.topology import Resource, Topology


def shared_port() -> Topology:
    """Ranks 0 and 1 leave through one port of 1 GB/s, and every rank is entered by one of 10 GB/s."""

    def route(src: int, dst: int) -> tuple[Resource, ...]:
        out = Resource("port" if src < 2 else f"out {src}", 2.0, 1.0)
        return out, Resource(f"in {dst}", 1.0, 10.0)

    return Topology("port", ("a", "b", "c", "d"), (0,) * 4, route)


def test_a_message_waits_for_all_that_crosses_its_wire() -> None:
    step = Step([0, 0, 1, 3], [2, 2, 3, 2], [0, 1, 2, 3], [True, True, True, True])
    schedule = Schedule(Collective("reduce"), 4, 4, (step,))
    (found,) = messages_of(schedule, 8000, shared_port())
    assert [(m.src, m.dst, m.chunks, m.nbytes, m.op) for m in found] == [
        (0, 2, (0, 1), 4000, Op.REDUCE),
        (1, 3, (2,), 2000, Op.REDUCE),
        (3, 2, (3,), 2000, Op.REDUCE),
    ]
    # 6000 bytes leave through the port; rank 3's own 2000 take 2 us on its way out, and 6000 enter rank 2 in 0.6 us.
    assert [m.link for m in found] == ["port", "port", "out 3"]
    assert [m.predicted_us for m in found] == pytest.approx([3 + 6.0, 3 + 6.0, 3 + 2.0])


def test_without_a_topology_there_are_no_links() -> None:
    found = messages_of(build("ring", "all_gather", 3), 9)
    assert {(m.link, m.predicted_us) for step in found for m in step} == {(None, None)}
    assert [m.nbytes for step in found for m in step] == [3] * 6


@pytest.mark.parametrize("name", ["ring", "direct", "box:2x2", "double_tree", "bruck"])
def test_the_slowest_message_is_the_transfer_time_of_its_step(name: str) -> None:
    schedule = build(name, "all_reduce", 4)
    steps = cost(schedule, shared_port(), 1 << 20).steps
    for messages, step in zip(messages_of(schedule, 1 << 20, shared_port()), steps, strict=True):
        assert max(m.predicted_us or 0 for m in messages) == pytest.approx(3 + step.transfer_us)


def test_runs() -> None:
    assert runs([]) == ""
    assert runs([0, 1, 2, 5, 7, 8]) == "c0-2,c5,c7-8"
