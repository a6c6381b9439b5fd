"""News between processes: who hears what, and who is taken for ended."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from multiring.collectives.notices import MOST_BYTES, Notices, own_notices
from tests.support.ranks import results, run_ranks

Make = Callable[[], Notices]


@pytest.fixture
def make() -> Iterator[Make]:
    """Make processes' notices, in this process."""
    made: list[Notices] = []

    def one() -> Notices:
        made.append(Notices())
        return made[-1]

    yield one
    for notices in made:
        notices.close()


def wait_for(notices: Notices, topic: str, count: int) -> list[tuple[int, str]]:
    """Return what was heard once there are so many, or after five seconds."""
    found: list[tuple[int, str]] = []
    end = time.monotonic() + 5
    while len(found) < count and time.monotonic() < end:
        found += notices.heard(topic)
    return found


def say(notices: Notices, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", notices.facts["port"])) as connection:
        connection.sendall(data)


def test_what_is_told_is_heard_once_and_by_topic(make: Make) -> None:
    one, other = make(), make()
    one.tell([other.facts, other.facts], "a", 3, "first")
    one.tell([other.facts], "b", 3, "tëxt\nof lines")
    assert wait_for(other, "a", 2) == [(3, "first")] * 2
    assert wait_for(other, "b", 1) == [(3, "tëxt\nof lines")]
    assert other.heard("a") == []
    assert one.heard("a") == []


def test_what_strangers_say_is_not_heard(make: Make) -> None:
    notices = make()
    for data in (
        b"",
        b"hello",
        b"[1, 2]",
        b'{"token": "00", "topic": "a", "rank": 1, "text": "x"}',
        b'{"token": 7, "topic": "a", "rank": 1, "text": "x"}',
        b"\xff" * (MOST_BYTES + 5),
    ):
        say(notices, data)
    make().tell([notices.facts], "a", 1, "last")
    assert wait_for(notices, "a", 1) == [(1, "last")]


def test_a_connection_that_says_nothing_keeps_nobody(make: Make) -> None:
    notices = make()
    with socket.create_connection(("127.0.0.1", notices.facts["port"])):
        begin = time.monotonic()
        assert notices.heard("a") == []
        assert time.monotonic() - begin < 1
        make().tell([notices.facts], "a", 1, "x")
        assert wait_for(notices, "a", 1) == [(1, "x")]


def test_who_has_ended_is_refused(make: Make) -> None:
    asking, living, ended = make(), make(), make()
    ended.close()
    assert asking.ended([living.facts, ended.facts]) == [1]
    # Telling it does no harm.
    asking.tell([ended.facts, living.facts], "a", 0, "x")
    assert wait_for(living, "a", 1) == [(0, "x")]


def test_a_machine_that_does_not_answer_is_not_taken_for_ended(make: Make) -> None:
    """Like one behind a cut cable: the kernel of a full server answers no further connection."""
    asking = make()
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        silent = {**asking.facts, "port": full.getsockname()[1]}
        assert asking.ended([silent]) == []
    assert asking.ended([{**asking.facts, "machine": "another", "addresses": []}]) == []


def test_a_killed_process_is_refused_and_a_busy_one_is_not() -> None:
    def body(rank: int, exchange: Any) -> Any:
        facts = [json.loads(answer) for answer in exchange(json.dumps(own_notices().facts).encode())]
        if rank == 1:
            os._exit(0)
        exchanged = time.monotonic()
        while rank == 0 and own_notices().ended(facts[1:]) != [0]:
            assert time.monotonic() - exchanged < 10
        if rank == 2:
            time.sleep(0.5)  # It looks at nothing, and lives.
        return True

    outcomes = run_ranks(3, body)
    assert results([outcomes[0], outcomes[2]]) == [True, True]


def test_a_forked_child_hears_nothing_of_its_parents() -> None:
    mine = own_notices()
    child = os.fork()
    if child == 0:
        os._exit(0 if own_notices() is not mine and own_notices().facts["port"] != mine.facts["port"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert own_notices() is mine
