"""Which ranks are on which node."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

__all__ = ["Nodes"]


@dataclass(frozen=True)
class Nodes:
    """The ranks of a communicator, grouped by the node that they run on.

    Attributes
    ----------
    node_of : tuple of int
        The node of each rank; nodes are numbered from 0 in the order of their first ranks.
    hosts : tuple of str
        The host name of each rank, for messages.
    """

    node_of: tuple[int, ...]
    hosts: tuple[str, ...]

    @classmethod
    def of(cls, identities: Sequence[Hashable], hosts: Sequence[str]) -> Nodes:
        """Group ranks by what those of one node have in common.

        Parameters
        ----------
        identities, hosts : sequences
            Of each rank: what tells its node from others, and its host's name.
        """
        number = {identity: node for node, identity in enumerate(dict.fromkeys(identities))}
        return cls(tuple(number[identity] for identity in identities), tuple(hosts))

    @property
    def count(self) -> int:
        """The number of nodes."""
        return max(self.node_of) + 1

    def members(self, rank: int) -> list[int]:
        """Return the ranks on the node of a rank, ascending."""
        return [r for r, node in enumerate(self.node_of) if node == self.node_of[rank]]

    def others(self, rank: int) -> list[list[int]]:
        """Return the ranks of each other node."""
        mine = self.node_of[rank]
        return [
            [r for r, other in enumerate(self.node_of) if other == node] for node in range(self.count) if node != mine
        ]

    def of_some(self, ranks: Sequence[int]) -> Nodes:
        """Return the grouping of some of the ranks, in the order given."""
        return Nodes.of([self.node_of[r] for r in ranks], [self.hosts[r] for r in ranks])
