"""Meeting without MPI on one node: rank 0 listens on an abstract socket, the others connect to it.

::

    rank 1 --HELLO--> rank 0 <--HELLO-- rank 2        all are here
           <-WELCOME-        -WELCOME->
           --PART-->         <--PART--                one all_gather
           <--ALL---         ---ALL-->

Nothing is left on disk: the kernel forgets an abstract name with its last socket. Only processes of one user meet.
"""

from __future__ import annotations

import hashlib
import os
import selectors
import socket
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import NoReturn

from multiring.collectives.bootstrap.frames import Channel, Frame, Gone, Kind, peer_of
from multiring.errors import LaunchError

__all__ = ["SocketBootstrap", "socket_name"]

RETRY_S = 0.01
ERROR_LIMIT_BYTES = 4096


def socket_name(job_key: str) -> str:
    """Return the abstract name that the ranks of one job share, and no other job of any user.

    Parameters
    ----------
    job_key : str
        What tells the job from others on this node.

    Returns
    -------
    str
        A name that starts with a zero byte: it lies in no file system.
    """
    digest = hashlib.sha256(job_key.encode()).hexdigest()[:40]
    return f"\0multiring-{os.geteuid()}-{digest}"


class SocketBootstrap:
    """The bootstrap of ranks on one node that know a common job key.

    Parameters
    ----------
    rank, size : int
        This rank and the number of ranks.
    job_key : str
        Equal on all ranks of the job, different from other jobs of the user.
    timeout_s : float
        Time limit of the meeting and of each later call, in seconds.

    Raises
    ------
    LaunchError
        A rank is missing, came twice, or expects another number of ranks.
    """

    def __init__(self, rank: int, size: int, job_key: str, timeout_s: float) -> None:
        if not job_key:
            raise LaunchError("bootstrap: got an empty job key, wanted one that only this job has (MULTIRING_JOB)")
        self.rank = rank
        self.size = size
        self._timeout_s = timeout_s
        # Rank 0 gives up a little earlier than the others, so that they hear from it who is missing.
        self._margin_ns = int(min(0.25, timeout_s / 10) * 1e9)
        self._channels: dict[int, Channel] = {}
        self._open = True
        try:
            (self._listen if rank == 0 else self._join)(socket_name(job_key))
        except BaseException:
            self.close()
            raise

    def all_gather(self, payload: bytes) -> list[bytes]:
        """Return the payloads of all ranks, by rank.

        Raises
        ------
        LaunchError
            A rank ended or did not come within the time limit, or the bootstrap is closed.
        """
        if not self._open:
            raise LaunchError(
                "bootstrap: got a call after close(), or after an earlier error, wanted an open bootstrap"
            )
        try:
            return (self._collect if self.rank == 0 else self._contribute)(bytes(payload))
        except BaseException:
            self.close()
            raise

    def barrier(self) -> None:
        """Return when all ranks have come here."""
        self.all_gather(b"")

    def close(self) -> None:
        """Close the connections: the others notice at their next call."""
        self._open = False
        for channel in self._channels.values():
            channel.close()
        self._channels = {}

    # Rank 0

    def _listen(self, name: str) -> None:
        deadline_ns = self._deadline_ns() - self._margin_ns
        with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
            while not _bind(listener, name):
                if time.monotonic_ns() > deadline_ns:
                    raise LaunchError(
                        f"bootstrap: rank 0 found another process that listens as rank 0 of this job for "
                        f"{self._timeout_s:g} s; is the rank given twice, or the job started twice with one key?"
                    )
                time.sleep(RETRY_S)
            listener.listen(self.size)
            selector.register(listener, selectors.EVENT_READ)
            while len(self._channels) < self.size - 1:
                for key, _ in self._events(selector, deadline_ns, set(range(1, self.size)) - self._channels.keys()):
                    if key.data is None:
                        connection, _ = listener.accept()
                        channel = Channel(connection)
                        if channel.uid == os.geteuid():
                            selector.register(channel, selectors.EVENT_READ, channel)
                        else:
                            channel.close()  # of another user: none of our ranks
                        continue
                    frame = self._heard(key.data)
                    if frame:
                        self._admit(key.data, frame)
                        deadline_ns = min(deadline_ns, frame.deadline_ns - self._margin_ns)
        # The name is free before anyone goes on: a rank that meets again cannot reach the listener of this meeting.
        self._tell(Kind.WELCOME, b"", deadline_ns)

    def _admit(self, channel: Channel, hello: Frame) -> None:
        """Take a rank in, or end the meeting where it cannot be right."""
        known = self._channels.get(hello.rank)
        wrong = ""
        if hello.size != self.size:
            wrong = f"rank {hello.rank} (process {channel.pid}) expects {hello.size} ranks, rank 0 expects {self.size}"
        elif known:
            wrong = f"processes {known.pid} and {channel.pid} both say that they are rank {hello.rank}"
        elif not 0 < hello.rank < self.size:
            wrong = f"process {channel.pid} says that it is rank {hello.rank}, wanted 1 to {self.size - 1}"
        if wrong:
            self._fail(f"{wrong}; start all ranks of a job with one launcher", also=[channel])
        self._channels[hello.rank] = channel

    def _collect(self, payload: bytes) -> list[bytes]:
        deadline_ns = self._deadline_ns() - self._margin_ns
        parts = {0: payload}
        with selectors.DefaultSelector() as selector:
            for rank, channel in self._channels.items():
                selector.register(channel, selectors.EVENT_READ, rank)
            while len(parts) < self.size:
                for key, _ in self._events(selector, deadline_ns, set(range(self.size)) - parts.keys()):
                    frame = self._heard(self._channels[key.data])
                    if frame:
                        parts[key.data] = frame.payload
                        deadline_ns = min(deadline_ns, frame.deadline_ns - self._margin_ns)
        ordered = [parts[rank] for rank in range(self.size)]
        self._tell(Kind.ALL, b"".join(struct.pack("<Q", len(part)) + part for part in ordered), deadline_ns)
        return ordered

    def _events(
        self, selector: selectors.BaseSelector, deadline_ns: int, missing: set[int]
    ) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait until something arrives; past the deadline, name who is missing."""
        left_s = (deadline_ns - time.monotonic_ns()) / 1e9
        events = selector.select(max(left_s, 0.0))
        if not events and left_s <= 0:
            ranks = ", ".join(map(str, sorted(missing)))
            self._fail(
                f"{self.size - len(missing)} of {self.size} ranks came within {self._timeout_s:g} s, missing: rank(s) "
                f"{ranks}; see what they print, or give a longer timeout (ranks without MPI must be on one node)"
            )
        return events

    def _heard(self, channel: Channel) -> Frame | None:
        """Return what a rank sent; its end is everybody's error."""
        try:
            return channel.poll()
        except Gone:
            ranks = [rank for rank, known in self._channels.items() if known is channel]
            name = f"rank {ranks[0]}" if ranks else "a rank that had not yet said its number"
            self._fail(f"{name} (process {channel.pid}) ended before all ranks had come; see what it printed")

    def _tell(self, kind: Kind, payload: bytes, deadline_ns: int) -> None:
        for rank, channel in self._channels.items():
            try:
                channel.send(Frame(kind, 0, self.size, deadline_ns, payload), deadline_ns + self._margin_ns)
            except (Gone, TimeoutError):
                self._fail(f"rank {rank} (process {channel.pid}) ended or stopped before all ranks had come")

    def _fail(self, text: str, also: Iterable[Channel] = ()) -> NoReturn:
        """Say why to all that are here, then raise it here."""
        deadline_ns = time.monotonic_ns() + self._margin_ns
        for channel in (*self._channels.values(), *also):
            try:
                channel.send(Frame(Kind.ERROR, 0, self.size, 0, text.encode()[:ERROR_LIMIT_BYTES]), deadline_ns)
            except (Gone, OSError):
                continue
            finally:
                channel.close()
        raise LaunchError(f"bootstrap: {text}")

    # The other ranks

    def _join(self, name: str) -> None:
        deadline_ns = self._deadline_ns()
        hello = Frame(Kind.HELLO, self.rank, self.size, deadline_ns)
        while True:
            channel = _reach(name, deadline_ns)
            if channel is None:
                raise LaunchError(
                    f"bootstrap: rank {self.rank} of {self.size} did not reach rank 0 within {self._timeout_s:g} s, "
                    "missing: rank(s) 0; see what it prints, or give a longer timeout (ranks without MPI must be on "
                    "one node)"
                )
            self._channels = {0: channel}
            try:
                channel.send(hello, deadline_ns)
                self._answer(deadline_ns)
            except Gone:  # reached the listener of an earlier meeting as it closed
                channel.close()
                time.sleep(RETRY_S)
            else:
                return

    def _contribute(self, payload: bytes) -> list[bytes]:
        deadline_ns = self._deadline_ns()
        try:
            with suppress(Gone):  # then why it went is still to be read
                self._channels[0].send(Frame(Kind.PART, self.rank, self.size, deadline_ns, payload), deadline_ns)
            everything = self._answer(deadline_ns)
        except Gone:
            raise LaunchError(
                f"bootstrap: rank 0 (process {self._channels[0].pid}) ended before all ranks had come; "
                "see what it printed"
            ) from None
        parts: list[bytes] = []
        start = 0
        for _ in range(self.size):
            (length,) = struct.unpack_from("<Q", everything, start)
            parts.append(everything[start + 8 : start + 8 + length])
            start += 8 + length
        return parts

    def _answer(self, deadline_ns: int) -> bytes:
        try:
            frame = self._channels[0].receive(deadline_ns)
        except TimeoutError:
            raise LaunchError(
                f"bootstrap: rank {self.rank} of {self.size} waited {self._timeout_s:g} s, missing: rank(s) 0 (process "
                f"{self._channels[0].pid} lives but does not answer); see what it prints, or give a longer timeout"
            ) from None
        if frame.kind is Kind.ERROR:
            raise LaunchError(f"bootstrap: {frame.payload.decode(errors='replace')}")
        return frame.payload

    def _deadline_ns(self) -> int:
        return time.monotonic_ns() + int(self._timeout_s * 1e9)


def _bind(listener: socket.socket, name: str) -> bool:
    try:
        listener.bind(name)
    except OSError as error:
        if isinstance(error, PermissionError):
            raise
        return False
    return True


def _reach(name: str, deadline_ns: int) -> Channel | None:
    """Connect to rank 0, trying until the deadline; None past it."""
    while time.monotonic_ns() < deadline_ns:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(name)
        except (ConnectionError, BlockingIOError):
            connection.close()
            time.sleep(RETRY_S)
            continue
        _, uid = peer_of(connection)
        if uid != os.geteuid():
            connection.close()
            raise LaunchError(
                f"bootstrap: got a listener of user {uid} under this job's name, wanted one of user {os.geteuid()}; "
                "start all ranks as one user"
            )
        return Channel(connection)
    return None
