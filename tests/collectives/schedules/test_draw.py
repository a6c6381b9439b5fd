"""Pictures show every message of a schedule, once, where it belongs."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest

from multiring.collectives.schedules import Collective, build, cost
from multiring.collectives.schedules.draw import svg, text, trace
from multiring.topology import host_topology


def test_text_of_a_ring() -> None:
    assert text(build("ring", "all_reduce", 3)).splitlines() == [
        "ring all_reduce: 3 ranks, 3 chunks, 4 steps",
        "0  0→1 +c2  1→2 +c0  2→0 +c1",
        "1  0→1 +c1  1→2 +c2  2→0 +c0",
        "2  0→1 =c0  1→2 =c1  2→0 =c2",
        "3  0→1 =c2  1→2 =c0  2→0 =c1",
    ]


def test_text_joins_runs_of_chunks_and_names_the_root() -> None:
    assert text(build("binomial", Collective("scatter", 1), 5)).splitlines() == [
        "binomial scatter root 1: 5 ranks, 5 chunks, 3 steps",
        "0  1→0 =c0",
        "1  1→3 =c3-4",
        "2  1→2 =c2  3→4 =c4",
    ]


def test_text_prices_steps_and_shortens_long_ones() -> None:
    schedule = build("direct", "all_gather", 5)
    lines = text(schedule, cost(schedule, host_topology(5, 1.0, 1.0), 5000, message_gap=0.0)).splitlines()
    assert lines[1].startswith("0  1→0 =c1  2→0 =c2")
    assert re.search(r"  … 4 more   5\.00 us over shared memory to rank \d$", lines[1])
    assert lines[2] == "5.00 us"


@pytest.mark.parametrize("name", ["ring", "direct", "halving_doubling"])
def test_svg_is_xml_with_an_arrow_for_each_message(name: str) -> None:
    schedule = build(name, "all_reduce", 4)
    picture = svg(schedule, cost(schedule, host_topology(4), 1 << 20))
    root = ElementTree.fromstring(picture)
    arrows = [line for line in root.iter("{http://www.w3.org/2000/svg}line") if "marker-end" in line.attrib]
    assert len(arrows) == sum(len({(t.src, t.dst) for t in step}) for step in schedule.steps)
    width, height = (float(root.attrib[side]) for side in ("width", "height"))
    assert all(0 < float(line.attrib[x]) < width for line in arrows for x in ("x1", "x2"))
    assert all(0 < float(line.attrib["y1"]) < height for line in arrows)
    reduces = sum("REDUCE" in line.attrib["marker-end"] for line in arrows)
    assert reduces == len(arrows) / 2


def test_a_trace_holds_each_step_of_each_receiver_back_to_back() -> None:
    schedule = build("ring", "all_gather", 3)
    price = cost(schedule, host_topology(3, 1.0, 1.0), 3000)
    events = json.loads(trace(schedule, price))["traceEvents"]
    blocks = [event for event in events if event["ph"] == "X"]
    assert [(block["tid"], block["ts"], block["dur"]) for block in blocks] == [
        (rank, 2.0 * step, 2.0) for step in range(2) for rank in range(3)
    ]
    assert blocks[0]["name"] == "=c2 from 2"
    assert [event["args"]["name"] for event in events if event["ph"] == "M"] == [
        "ring all_gather: 3 ranks, 3 chunks, 2 steps", "rank 0", "rank 1", "rank 2",
    ]  # fmt: skip


def test_several_messages_to_one_rank_are_one_block() -> None:
    schedule = build("direct", "all_reduce", 3)
    events = json.loads(trace(schedule, cost(schedule, host_topology(3), 300)))["traceEvents"]
    first = next(event for event in events if event["ph"] == "X")
    assert first["name"] == "2 messages"
    assert first["args"]["messages"] == ["+c0 from 1", "+c0 from 2"]
