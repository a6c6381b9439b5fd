"""Closing a communicator on its node: the ABORT word, and the text that explains it."""

from __future__ import annotations

import time

from multiring.collectives.drivers.control import Context
from multiring.collectives.entries import Entries
from multiring.errors import MultiringError
from multiring.kernels.records import ABORT_CULPRIT_SHIFT, ABORT_REASON_SHIFT, ABORT_REPORTER_SHIFT, ABORT_TOLD

__all__ = ["Closing"]

WRITER_S = 1.0
"""How long another rank may take between claiming the text and setting ABORT."""


class Closing:
    """One rank's way to set ABORT.

    Parameters
    ----------
    context : Context
    entries : Entries
    rank : int
        What the communicator calls this rank.
    """

    def __init__(self, context: Context, entries: Entries, rank: int) -> None:
        self._context = context
        self._entries = entries
        self.rank = rank

    def set(self, reason: int, culprit: int = 0) -> None:
        """Set ABORT, unless it is set.

        Parameters
        ----------
        reason : int
            One of the ABORT constants.
        culprit : int
            What the communicator calls the rank that is to blame.
        """
        record = (reason << ABORT_REASON_SHIFT) | (culprit << ABORT_CULPRIT_SHIFT) | (self.rank << ABORT_REPORTER_SHIFT)
        self._entries.abort(self._context.address, record)

    def set_text(self, text: str, reason: int) -> None:
        """Set ABORT with a text, unless another rank has set it or is about to."""
        context = self._context
        if self._entries.claim_text(context.address, self.rank + 1) == 0:
            if not context.abort_word:
                context.abort_text = text
            self.set(reason)
            return
        end = time.monotonic() + WRITER_S
        while not context.abort_word and time.monotonic() < end:
            time.sleep(1e-4)
        self.set(reason)  # Whoever claimed the text may have been killed since.

    def tell(self, error: MultiringError) -> None:
        """Set ABORT so that all ranks of the node raise this error."""
        self.set_text(f"{type(error).__name__}\n{error}", ABORT_TOLD)
