"""A job of one rank: nobody to meet."""

from __future__ import annotations

__all__ = ["AloneBootstrap"]


class AloneBootstrap:
    """The bootstrap of a job of one rank."""

    rank = 0
    size = 1

    def all_gather(self, payload: bytes) -> list[bytes]:
        """Return this rank's payload."""
        return [bytes(payload)]

    def barrier(self) -> None:
        """Return at once."""

    def close(self) -> None:
        """Do nothing: nothing is held."""
