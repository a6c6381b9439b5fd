"""Real ranks for tests: forked processes that meet through a hub in the parent."""

from __future__ import annotations

import json
import os
import pickle  # noqa: TID251  # between a test and its own children
import signal
import socket
import struct
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class Outcome:
    """How a rank ended: its result, or its traceback, or the signal that killed it."""

    result: Any = None
    error: str | None = None
    signal: int = 0
    answered: bool = False


class Hub:
    """Gives every rank the bytes of all ranks; served by the parent."""

    def __init__(self, n_ranks: int) -> None:
        self.pairs = [socket.socketpair() for _ in range(n_ranks)]

    def exchange(self, rank: int) -> Callable[[bytes], list[bytes]]:
        """Return the exchange of a rank."""
        end = self.pairs[rank][1]

        def exchange(payload: bytes) -> list[bytes]:
            send(end, b"X" + payload)
            return [bytes.fromhex(part) for part in json.loads(receive(end))]

        return exchange


def send(end: socket.socket, payload: bytes) -> None:
    end.sendall(struct.pack("<Q", len(payload)) + payload)


def receive(end: socket.socket) -> bytes:
    header = b""
    while len(header) < 8:
        part = end.recv(8 - len(header))
        if not part:
            raise EOFError
        header += part
    length = struct.unpack("<Q", header)[0]
    parts = bytearray()
    while len(parts) < length:
        part = end.recv(min(1 << 20, length - len(parts)))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def run_ranks(
    n_ranks: int,
    body: Callable[..., Any],
    *arguments: Any,
    timeout_s: float = 120.0,
    during: Callable[[list[int]], None] | None = None,
) -> list[Outcome]:
    """Run ``body(rank, exchange, *arguments)`` in ``n_ranks`` forked processes.

    Parameters
    ----------
    during : callable, optional
        Called in the parent with the process numbers once all ranks run: to kill or stop one.
    """
    hub = Hub(n_ranks)
    pids = []
    for rank in range(n_ranks):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for r, (near, far) in enumerate(hub.pairs):
                    near.close()
                    if r != rank:
                        far.close()
                try:
                    answer: tuple[str, Any] = ("result", body(rank, hub.exchange(rank), *arguments))
                except BaseException:
                    answer = ("error", traceback.format_exc())
                send(hub.pairs[rank][1], b"R" + pickle.dumps(answer))
                status = 0
            finally:
                os._exit(status)
        pids.append(pid)
    for _, far in hub.pairs:
        far.close()
    outcomes = [Outcome() for _ in range(n_ranks)]
    try:
        _serve(hub, outcomes, pids, during, time.monotonic() + timeout_s)
    finally:
        for rank, pid in enumerate(pids):
            done, status = os.waitpid(pid, os.WNOHANG)
            if not done:
                if not outcomes[rank].answered:
                    os.kill(pid, signal.SIGKILL)
                    outcomes[rank].error = outcomes[rank].error or f"rank {rank} did not end within {timeout_s} s"
                status = os.waitpid(pid, 0)[1]
            outcomes[rank].signal = status & 0x7F
        for near, _ in hub.pairs:
            near.close()
    return outcomes


def _serve(
    hub: Hub,
    outcomes: list[Outcome],
    pids: list[int],
    during: Callable[[list[int]], None] | None,
    deadline: float,
) -> None:
    live = set(range(len(pids)))
    waiting: dict[int, bytes] = {}
    rounds = 0
    import selectors

    with selectors.DefaultSelector() as selector:
        for rank in live:
            selector.register(hub.pairs[rank][0], selectors.EVENT_READ, rank)
        while live:
            if time.monotonic() > deadline:
                return
            for key, _ in selector.select(0.05):
                rank = key.data
                try:
                    message = receive(hub.pairs[rank][0])
                except (EOFError, ConnectionError):
                    live.discard(rank)
                    selector.unregister(key.fileobj)
                    continue
                if message[:1] == b"X":
                    waiting[rank] = message[1:]
                else:
                    kind, value = pickle.loads(message[1:])
                    setattr(outcomes[rank], kind, value)
                    outcomes[rank].answered = True
                    live.discard(rank)
                    selector.unregister(key.fileobj)
            if waiting and len(waiting) == len(pids):
                answer = json.dumps([waiting[r].hex() for r in sorted(waiting)]).encode()
                waiting.clear()
                for near, _ in hub.pairs:
                    send(near, answer)
                rounds += 1
            if during is not None and rounds >= JOINING_ROUNDS:
                during(pids)
                during = None


JOINING_ROUNDS = 4
"""Exchanges that a communicator needs to be made."""


def results(outcomes: list[Outcome]) -> list[Any]:
    """Return the ranks' results; raise if any failed, with its traceback."""
    for rank, outcome in enumerate(outcomes):
        if outcome.error or outcome.signal:
            raise AssertionError(f"rank {rank} failed (signal {outcome.signal}):\n{outcome.error}")
    return [o.result for o in outcomes]
