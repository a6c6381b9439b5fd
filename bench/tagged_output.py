"""Output of several ranks, line by line, with the rank in front of each line."""

from __future__ import annotations

import os
import selectors
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

__all__ = ["TaggedOutput"]


@dataclass(slots=True)
class _Stream:
    rank: int
    pipe: IO[bytes]
    target: int
    pending: bytes = b""


class TaggedOutput:
    """Forward the pipes of ranks to this process's standard output and error.

    Parameters
    ----------
    selector : selectors.BaseSelector
        Says when a pipe has something; its keys' ``data`` goes to :meth:`forward`.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._streams: list[_Stream] = []

    def add(self, rank: int, pipe: IO[bytes], target: int) -> None:
        """Forward ``pipe`` of ``rank`` to the descriptor ``target``."""
        os.set_blocking(pipe.fileno(), False)
        stream = _Stream(rank, pipe, target)
        self._streams.append(stream)
        self._selector.register(pipe, selectors.EVENT_READ, stream)

    def forward(self, key: selectors.SelectorKey) -> None:
        """Write the whole lines that one pipe holds; forget the pipe at its end."""
        stream: _Stream = key.data
        if not self._take(stream):
            self._selector.unregister(stream.pipe)
            stream.pipe.close()
            self._streams.remove(stream)

    def drain(self) -> None:
        """Write what is left in all pipes; lines without an end get one."""
        for stream in self._streams:
            while self._take(stream):
                pass
            self._selector.unregister(stream.pipe)
            stream.pipe.close()
        self._streams = []

    def _take(self, stream: _Stream) -> bool:
        """Move what a pipe holds; return whether there may be more."""
        try:
            arrived = os.read(stream.pipe.fileno(), 1 << 16)
        except BlockingIOError:
            arrived = b""
        *lines, stream.pending = (stream.pending + arrived).split(b"\n")
        if not arrived and stream.pending:
            lines.append(stream.pending)
            stream.pending = b""
        text = b"".join(b"[%d] %s\n" % (stream.rank, line) for line in lines)
        with suppress(BrokenPipeError):
            while text:
                text = text[os.write(stream.target, text) :]
        return bool(arrived)
