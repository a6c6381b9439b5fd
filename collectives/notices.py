"""News between processes outside MPI: what ends a communicator must arrive also where MPI does not work any more.

A process that sends to one that was killed may crash inside MPI. So news go over TCP, a connection for each, without an
answer: the kernel takes them for a process that is busy, and refuses them for one that has ended. Whoever cannot be
reached finds out by its time limit.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import selectors
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["Notices", "own_notices"]

MOST_BYTES = 16 << 10
BACKLOG = 1024
TELLING_S = 0.3
"""How long telling may take, for all peers together."""
ASKING_S = 0.05
"""How long asking whether peers live may take."""
SIOCGIFADDR = 0x8915


class Notices:
    """What this process hears, by topic, and how it tells others.

    Attributes
    ----------
    facts : dict
        What others must know to tell this process something: port, addresses, machine, and a token that they must give
        and that reaches them over MPI alone.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("", 0), backlog=BACKLOG)
        self._listener.setblocking(False)
        self._reading: dict[socket.socket, bytearray] = {}
        self._heard: dict[str, list[tuple[int, str]]] = defaultdict(list)
        self.facts: dict[str, Any] = {
            "port": self._listener.getsockname()[1],
            "addresses": _addresses(),
            "machine": _machine(),
            "token": secrets.token_hex(16),
        }

    def tell(self, peers: Sequence[dict[str, Any]], topic: str, rank: int, text: str) -> None:
        """Tell some processes something, and do not wait for them.

        Parameters
        ----------
        peers : sequence of dict
            Their facts.
        topic : str
            Which communicator it is about.
        rank : int
            Who tells it.
        text : str
        """
        messages = [{"token": peer["token"], "topic": topic, "rank": rank, "text": text} for peer in peers]
        self._reach(peers, [json.dumps(message).encode()[:MOST_BYTES] for message in messages], TELLING_S)

    def ended(self, peers: Sequence[dict[str, Any]]) -> list[int]:
        """Return which of some processes have ended for sure, by their index: their machines answer, they do not."""
        return self._reach(peers, [b""] * len(peers), ASKING_S)

    def _reach(self, peers: Sequence[dict[str, Any]], data: Sequence[bytes], limit_s: float) -> list[int]:
        """Connect to processes, say something, and return which were refused."""
        refused: set[int] = set()
        reached: set[int] = set()
        with selectors.DefaultSelector() as selector:
            for index, peer in enumerate(peers):
                here = peer["machine"] == self.facts["machine"]
                for address in ["127.0.0.1"] if here else peer["addresses"]:
                    _begin(selector, (address, peer["port"]), index)
            end = time.monotonic() + limit_s
            while selector.get_map() and (left_s := end - time.monotonic()) > 0:
                for key, _ in selector.select(left_s):
                    selector.unregister(key.fileobj)
                    error = _finish(key.fileobj, data[key.data])
                    (refused if error == errno.ECONNREFUSED else reached).add(key.data)
            for key in list(selector.get_map().values()):
                _finish(key.fileobj, b"")
        return sorted(refused - reached)

    def heard(self, topic: str) -> list[tuple[int, str]]:
        """Return what was told about a topic since the last call, as (rank, text)."""
        self._listen()
        return self._heard.pop(topic, [])

    def close(self) -> None:
        """Hear nothing any more."""
        for connection in (self._listener, *self._reading):
            connection.close()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                break
            connection.setblocking(False)
            self._reading[connection] = bytearray()
        for connection, data in list(self._reading.items()):
            try:
                part = connection.recv(MOST_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                part = b""
            data += part
            if not part or len(data) > MOST_BYTES:
                connection.close()
                del self._reading[connection]
                self._take(bytes(data))

    def _take(self, data: bytes) -> None:
        """Note a message, if it comes from one of ours."""
        try:
            message = json.loads(data)
            token, topic, rank, text = (message[key] for key in ("token", "topic", "rank", "text"))
        except (ValueError, KeyError, TypeError):
            return
        if secrets.compare_digest(str(token), self.facts["token"]):
            self._heard[str(topic)].append((int(rank), str(text)))


@cache
def own_notices() -> Notices:
    """Return this process's own, made at the first call."""
    return Notices()


def _forget_in_child() -> None:
    """Let a forked child have its own: what is told to its parent is the parent's."""
    if own_notices.cache_info().currsize:
        own_notices().close()
        own_notices.cache_clear()


os.register_at_fork(after_in_child=_forget_in_child)


def _begin(selector: selectors.BaseSelector, address: tuple[str, int], index: int) -> None:
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    connection.setblocking(False)
    # Also a refusal is told later, when the socket is looked at.
    if connection.connect_ex(address) in (0, errno.EINPROGRESS, errno.ECONNREFUSED):
        selector.register(connection, selectors.EVENT_WRITE, index)
    else:
        connection.close()


def _finish(connection: Any, data: bytes) -> int:
    """Say something over a connection that was made, and end it; return what was wrong with it, or 0."""
    error = errno.EIO
    try:
        error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if data and not error:
            connection.send(data)
    except OSError:
        pass  # It has ended, and needs no news.
    connection.close()
    return error


def _machine() -> str:
    """Return what processes have in common that reach each other over the loopback."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/net').readlink()}"
    except OSError:
        return secrets.token_hex(8)


def _addresses() -> list[str]:
    """Return this machine's IPv4 addresses but the loopback's."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # It has none.
            found.append(socket.inet_ntoa(answer[20:24]))
    return [address for address in found if not address.startswith("127.")]
