"""Length-prefixed messages over a stream socket between processes of one user."""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass
from enum import IntEnum

from multiring.errors import LaunchError

__all__ = ["LIMIT_BYTES", "Channel", "Frame", "Gone", "Kind", "peer_of"]

MAGIC = b"mrb1"
HEADER = struct.Struct("<4sBxxxIIQQ")  # magic, kind, rank, size, deadline (monotonic, ns), length in bytes
LIMIT_BYTES = 1 << 28


class Kind(IntEnum):
    """What a frame is."""

    HELLO = 1
    WELCOME = 2
    PART = 3
    ALL = 4
    ERROR = 5


class Gone(Exception):
    """The other end closed the connection."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message.

    Attributes
    ----------
    kind : Kind
        What it is.
    rank, size : int
        Who the sender says it is.
    deadline_ns : int
        When the sender gives up, on the node's monotonic clock, in nanoseconds.
    payload : bytes
        The rest.
    """

    kind: Kind
    rank: int
    size: int
    deadline_ns: int
    payload: bytes = b""


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return (pid, uid) of the process at the other end, as the kernel knows them."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", raw)
    return pid, uid


class Channel:
    """A connection that yields whole frames.

    Parameters
    ----------
    connection : socket.socket
        A connected stream socket; owned by the channel from now on.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.pid, self.uid = peer_of(connection)
        self._received = bytearray()

    def fileno(self) -> int:
        """Return the descriptor, so that a selector can watch the channel."""
        return self.socket.fileno()

    def poll(self) -> Frame | None:
        """Take what has arrived, without waiting: a whole frame, or None.

        Raises
        ------
        Gone
            The other end closed the connection.
        LaunchError
            The bytes are not a frame, or the frame is larger than the limit.
        """
        self.socket.setblocking(False)
        try:
            arrived = self.socket.recv(1 << 20)
        except BlockingIOError:
            return self._whole()
        except ConnectionError as error:
            raise Gone from error
        if not arrived:
            raise Gone
        self._received += arrived
        return self._whole()

    def receive(self, deadline_ns: int) -> Frame:
        """Wait for the next frame.

        Raises
        ------
        TimeoutError
            None came before ``deadline_ns``.
        Gone, LaunchError
            As :meth:`poll`.
        """
        while True:
            frame = self._whole()
            if frame:
                return frame
            self.socket.settimeout(_left_s(deadline_ns))
            try:
                arrived = self.socket.recv(1 << 20)
            except ConnectionError as error:
                raise Gone from error
            if not arrived:
                raise Gone
            self._received += arrived

    def send(self, frame: Frame, deadline_ns: int) -> None:
        """Send a whole frame.

        Raises
        ------
        TimeoutError
            The other end did not take it before ``deadline_ns``.
        Gone
            The other end closed the connection.
        LaunchError
            The payload is larger than the limit.
        """
        if len(frame.payload) > LIMIT_BYTES:
            raise LaunchError(f"bootstrap: got a message of {len(frame.payload)} bytes, wanted at most {LIMIT_BYTES}")
        header = HEADER.pack(MAGIC, frame.kind, frame.rank, frame.size, frame.deadline_ns, len(frame.payload))
        self.socket.settimeout(_left_s(deadline_ns))
        try:
            self.socket.sendall(header + frame.payload)
        except ConnectionError as error:
            raise Gone from error

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def _whole(self) -> Frame | None:
        if len(self._received) < HEADER.size:
            return None
        magic, kind, rank, size, deadline_ns, length = HEADER.unpack_from(self._received)
        if magic != MAGIC or kind not in iter(Kind) or length > LIMIT_BYTES:
            raise LaunchError(
                f"bootstrap: got {bytes(self._received[: HEADER.size])!r} from process {self.pid}, wanted a message of "
                f"at most {LIMIT_BYTES} bytes; are all ranks of one version of multiring?"
            )
        end = HEADER.size + length
        if len(self._received) < end:
            return None
        payload = bytes(self._received[HEADER.size : end])
        del self._received[:end]
        return Frame(Kind(kind), rank, size, deadline_ns, payload)


def _left_s(deadline_ns: int) -> float:
    """Return the seconds up to a deadline, never 0: that would mean not to wait at all."""
    return max((deadline_ns - time.monotonic_ns()) / 1e9, 1e-3)
