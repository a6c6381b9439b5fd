"""Which parts of a segment are free."""

from __future__ import annotations

import bisect

__all__ = ["FreeList"]


class FreeList:
    """The free ranges of one segment, by first fit; neighbours are joined."""

    def __init__(self, n_bytes: int) -> None:
        self.starts = [0]
        self.sizes = {0: n_bytes}

    def take(self, n_bytes: int, alignment: int) -> int | None:
        """Return the start of a range that is free no longer; None if none fits."""
        for start in self.starts:
            first = -(-start // alignment) * alignment
            rest = start + self.sizes[start] - (first + n_bytes)
            if rest >= 0:
                self._remove(start)
                if first > start:
                    self._insert(start, first - start)
                if rest:
                    self._insert(first + n_bytes, rest)
                return first
        return None

    def give(self, start: int, n_bytes: int) -> None:
        """Let a range be free again."""
        index = bisect.bisect_left(self.starts, start)
        if index < len(self.starts) and self.starts[index] == start + n_bytes:
            following = self.starts[index]
            n_bytes += self.sizes[following]
            self._remove(following)
        if index > 0:
            before = self.starts[index - 1]
            if before + self.sizes[before] == start:
                n_bytes += self.sizes[before]
                self._remove(before)
                start = before
        self._insert(start, n_bytes)

    def _insert(self, start: int, n_bytes: int) -> None:
        bisect.insort(self.starts, start)
        self.sizes[start] = n_bytes

    def _remove(self, start: int) -> None:
        self.starts.remove(start)
        del self.sizes[start]
