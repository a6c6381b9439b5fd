"""A network inside one process, for :class:`~multiring.collectives.drivers.in_process.InProcess`.

A message moves at a random moment between the two calls that begin it and the ones that find it finished: so a place
that is written too early, or read too early, shows.
"""

from __future__ import annotations

import ctypes
import random
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from multiring.collectives.drivers.network import Network, NetworkError

__all__ = ["Ether", "InMemory"]


@dataclass(eq=False)
class _End:
    """One side of a message."""

    address: int
    n_bytes: int
    finished: bool = False


class Ether:
    """What carries the messages of all ranks.

    Parameters
    ----------
    seed : int
        Of the moments at which messages move.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        # In some runs messages take so long that all ranks wait for one: what was not waited for then shows.
        self._chance = self._random.choice((0.5, 0.1, 0.02))
        self.sent: dict[tuple[int, int, int], deque[_End]] = defaultdict(deque)
        self.offered: dict[tuple[int, int, int], deque[_End]] = defaultdict(deque)
        self.n_messages = 0

    def move(self, pair: tuple[int, int, int]) -> None:
        """Perhaps let the next message of a (source, destination, tag) arrive."""
        sent, offered = self.sent[pair], self.offered[pair]
        if not sent or not offered or self._random.random() >= self._chance:
            return
        source, destination = sent.popleft(), offered.popleft()
        if source.n_bytes > destination.n_bytes:
            raise NetworkError(f"{source.n_bytes} bytes came where {destination.n_bytes} were expected")
        ctypes.memmove(destination.address, source.address, source.n_bytes)
        source.finished = destination.finished = True
        self.n_messages += 1

    @property
    def is_empty(self) -> bool:
        """Whether nothing is under way."""
        return not any(self.sent.values()) and not any(self.offered.values())


class InMemory(Network):
    """One rank's end of an :class:`Ether`."""

    def __init__(self, ether: Ether, rank: int) -> None:
        self._ether = ether
        self._rank = rank

    def send(self, address: int, n_bytes: int, peer: int, tag: int) -> tuple[tuple[int, int, int], _End]:
        """See :class:`~multiring.collectives.drivers.network.Network`."""
        pair, end = (self._rank, peer, tag), _End(address, n_bytes)
        self._ether.sent[pair].append(end)
        return pair, end

    def receive(self, address: int, n_bytes: int, peer: int, tag: int) -> tuple[tuple[int, int, int], _End]:
        """See :class:`~multiring.collectives.drivers.network.Network`."""
        pair, end = (peer, self._rank, tag), _End(address, n_bytes)
        self._ether.offered[pair].append(end)
        return pair, end

    def has_finished(self, handle: tuple[tuple[int, int, int], _End]) -> bool:
        """See :class:`~multiring.collectives.drivers.network.Network`."""
        pair, end = handle
        if not end.finished:
            self._ether.move(pair)
        return end.finished

    def abandon(self, handle: tuple[tuple[int, int, int], _End]) -> None:
        """Nothing moves that nobody looks after."""

    def split(self, ranks: Sequence[int]) -> InMemory:
        """Not needed here."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is held."""
