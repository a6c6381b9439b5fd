"""What the executor needs of a network: messages between two ranks, one after another in each numbered lane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

__all__ = [
    "FIRST_LANE_TAG",
    "HEADER_TAG",
    "MAIL_HEADER_TAG",
    "MAIL_TAG",
    "SPLIT_TAG",
    "Network",
    "NetworkError",
]

HEADER_TAG = 0
"""What a rank calls, ahead of its first slice to another in each call."""
MAIL_HEADER_TAG = 2
MAIL_TAG = 3
"""Messages of send and recv."""
SPLIT_TAG = 4
"""What MPI itself sends over a communicator to split it: no other message may have this tag."""
FIRST_LANE_TAG = 8
"""Slices of a collective: one tag for each lane of an ordered pair."""


class NetworkError(Exception):
    """A message that the network could not carry; what it says of it."""


class Network(Protocol):
    """Messages between ranks of different nodes.

    Messages of one tag from one rank to another arrive in the order in which they were sent. An address stays valid
    until its message has finished.
    """

    def send(self, address: int, n_bytes: int, peer: int, tag: int) -> Any:
        """Begin to send; return a handle."""
        ...

    def receive(self, address: int, n_bytes: int, peer: int, tag: int) -> Any:
        """Begin to receive at most ``n_bytes`` bytes; return a handle."""
        ...

    def has_finished(self, handle: Any) -> bool:
        """Whether a message has been sent, or has come; let the network work.

        Raises
        ------
        NetworkError
        """
        ...

    def abandon(self, handle: Any) -> None:
        """Let a message that has not finished write nothing any more, if that can still be had."""
        ...

    def split(self, ranks: Sequence[int]) -> Network:
        """Return the network among some ranks, which all call this with the same list; in it they count from 0."""
        ...

    def close(self) -> None:
        """Give back what this rank holds, without waiting for others."""
        ...
