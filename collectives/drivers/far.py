"""The other nodes, from one rank: what it sends them, gets from them and hears of them while a call waits.

The protocol is in ``DESIGN.md`` beside this file, under "Between nodes".
"""

from __future__ import annotations

import os
import select
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.drivers.control import Context
from multiring.collectives.drivers.far_mail import FarMail, FarMismatchError
from multiring.collectives.drivers.network import Network, NetworkError
from multiring.collectives.drivers.wire import Wire
from multiring.collectives.notices import own_notices
from multiring.errors import MultiringError
from multiring.kernels.records import (
    ABORT_CLOSED,
    ABORT_MISMATCH,
    ABORT_PEER_LOST,
    ABORT_TIMEOUT,
    ABORT_TOLD,
    ARRIVAL_SIGNATURE,
    CALL_PEER,
    CONTEXT_PATIENCE_NS,
    MAIL_PEER,
    REPORT_GOT_BYTES,
    REPORT_GOT_SIGNATURE,
    SIGNATURE_CLOSED,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from multiring.collectives.drivers.closing import Closing
    from multiring.collectives.entries import Entries
    from multiring.collectives.invocation import CallRecord

__all__ = ["Far"]

CLOSED_NOTICE = "closed"
YIELDS = 100
"""How often a rank with nothing to do offers its core to others before it sleeps."""
NAP_S = 50e-6
LOOK_INTERVAL_S = 2e-3
"""How often a waiting rank looks for notices, ended peers and the time limit."""
ASK_INTERVAL_S = 0.5
"""How often a rank that waits for another node asks whether the process there still lives."""
OVERTAKING_S = 0.1
"""By how much the notice that a rank left may overtake the last messages that it sent."""
PATIENCE_NS = 20_000_000
"""How long a native call waits for its node while nothing is under way to others."""


class Far:
    """What one rank has to do with other nodes.

    Parameters
    ----------
    network : Network
    context : Context
        Of this rank in its node.
    entries : Entries
    closing : Closing
        How to close the communicator on this node.
    others : sequence of sequence of int
        The ranks of each other node.
    topic : str
        What all ranks call this communicator in notices.
    facts : sequence of dict
        How to tell each rank something, as :class:`~multiring.collectives.notices.Notices` has it.
    """

    def __init__(
        self,
        network: Network,
        context: Context,
        entries: Entries,
        closing: Closing,
        others: Sequence[Sequence[int]],
        topic: str,
        facts: Sequence[dict[str, Any]],
    ) -> None:
        self.network = network
        self._notices = own_notices()
        self._topic = topic
        self._facts = facts
        self._context = context
        self._entries = entries
        self._closing = closing
        self._others = others
        self._member = int(context.member_of[closing.rank])
        self.wire = Wire(network, closing.rank)
        self._left_s: dict[int, float] = {}
        self._idle = 0
        self._looked_s = 0.0
        self._asked_s = time.monotonic()
        self._patience(busy=False)
        self._watch = select.poll()
        self._members: dict[int, int] = {}
        for member, descriptor in enumerate(context.descriptors):
            if descriptor >= 0:
                self._watch.register(descriptor, select.POLLIN)
                self._members[descriptor] = member

    def _patience(self, *, busy: bool) -> None:
        # What is under way needs this process's attention.
        self._context.words[CONTEXT_PATIENCE_NS] = 0 if busy else PATIENCE_NS

    # --- while a collective waits ------------------------------------------------------------------------------------

    def attend(self, record: CallRecord) -> None:
        """Do what there is to do for a call that waits; what makes it hopeless is set in ABORT."""
        words = record.words
        while True:
            moved = False
            if record.wire is not None:
                try:
                    moved = self.wire.progress(record.wire, words, record.plan)
                except NetworkError as error:
                    self._entries.give_up(record.address, ABORT_PEER_LOST, self._context.member_of[error.args[1]])
                    return
                except MultiringError as error:
                    self._closing.tell(error)
                    return
            self._patience(busy=self.wire.is_busy)
            if moved:
                self._idle = 0
                return
            if self.is_time_to_look():
                self._look(record.address, words, self.wire.awaited())
                return
            if int(words[CALL_PEER]) >= 0 or not self.wire.is_busy:
                return  # It waits for its node, which the interpreter looks after.

    def is_time_to_look(self) -> bool:
        """Give up the core for a moment; return whether to look around, after a while without progress."""
        self._idle += 1
        if self._idle <= YIELDS:
            os.sched_yield()
            if self._idle < YIELDS:
                return False
        else:
            time.sleep(NAP_S)
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_INTERVAL_S:
            return False
        self._looked_s = now_s
        return True

    def _look(self, address: int, words: NDArray[np.int64], awaited: list[int]) -> None:
        """Look for what makes a call's wait hopeless."""
        self.listen()
        if self._context.abort_word:
            return
        peer = int(words[CALL_PEER])
        far = [self._context.member_of[rank] for rank in awaited]
        reason, culprit = self._entries.glance(address), int(words[CALL_PEER])
        words[CALL_PEER] = peer
        if reason == ABORT_TIMEOUT and peer < 0:
            culprit = far[0] if far else self._member
        elif not reason and (gone := self._find_dead()) >= 0:
            reason, culprit = ABORT_PEER_LOST, gone
        elif not reason and (left := [rank for rank in awaited if self.has_left(rank)]):
            reason, culprit = ABORT_CLOSED, self._context.member_of[left[0]]
        elif not reason and (ended := self._find_ended(awaited)) >= 0:
            reason, culprit = ABORT_PEER_LOST, self._context.member_of[ended]
        if reason:
            self._entries.give_up(address, reason, culprit)

    def _find_ended(self, awaited: list[int]) -> int:
        """Return a rank of another node that is waited for and has ended without a word, or -1."""
        now_s = time.monotonic()
        if now_s - self._asked_s < ASK_INTERVAL_S:
            return -1
        self._asked_s = now_s
        silent = [rank for rank in awaited if rank not in self._left_s]
        ended = self._notices.ended([self._facts[rank] for rank in silent])
        return silent[ended[0]] if ended else -1

    def _find_dead(self) -> int:
        """Return a rank of this node that ended without a word, or -1: other nodes may wait for it in vain."""
        for descriptor, _ in self._watch.poll(0):
            member = self._members[descriptor]
            lines = [self._context.arrival(epoch, member) for epoch in (0, 1)]
            if all(int(line[ARRIVAL_SIGNATURE]) != SIGNATURE_CLOSED for line in lines):
                return member
        return -1

    # --- point to point ----------------------------------------------------------------------------------------------

    def begin_mail(self, records: Sequence[NDArray[np.int64]]) -> FarMail:
        """Begin sends and receives; their records name the communicator's ranks."""
        return FarMail(self.network, records)

    def attend_mail(self, mail: FarMail) -> None:
        """Do what there is to do for messages under way; what makes them hopeless is set in ABORT."""
        try:
            moved = mail.progress()
        except FarMismatchError as error:
            record, *got = error.args
            report = self._context.report(self._member)
            report[REPORT_GOT_BYTES], report[REPORT_GOT_SIGNATURE] = got
            self._give_up_mail(record, ABORT_MISMATCH)
            return
        except NetworkError as error:
            self._give_up_mail(error.args[1], ABORT_PEER_LOST)
            return
        self._patience(busy=mail.first is not None)
        if moved:
            self._idle = 0
        elif mail.first is not None and self.is_time_to_look():
            mail.first[CALL_PEER] = -1
            self._look(mail.first.ctypes.data, mail.first, mail.awaited)

    def _give_up_mail(self, record: NDArray[np.int64], reason: int) -> None:
        self._entries.give_up(record.ctypes.data, reason, self._context.member_of[int(record[MAIL_PEER])])

    # --- notices -----------------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Take in what other nodes tell."""
        for rank, text in self._notices.heard(self._topic):
            if text == CLOSED_NOTICE:
                self._left_s[rank] = time.monotonic()
            else:
                self._closing.set_text(text, ABORT_TOLD)

    def has_left(self, rank: int) -> bool:
        """Whether a rank of another node closed the communicator, long enough ago for all that it sent to be here."""
        return rank in self._left_s and time.monotonic() - self._left_s[rank] > OVERTAKING_S

    def tell_failure(self, error: MultiringError) -> None:
        """Let every other node know why this communicator is closed: one rank there, since it shares the news."""
        self._tell([ranks[self._member % len(ranks)] for ranks in self._others], f"{type(error).__name__}\n{error}")
        self.wire.forget()
        self.network.close()

    def leave(self) -> None:
        """Let all ranks of other nodes know that this one closes: any of them might wait for it."""
        self._tell([rank for ranks in self._others for rank in ranks], CLOSED_NOTICE)
        self.network.close()

    def _tell(self, ranks: Sequence[int], text: str) -> None:
        self._notices.tell([self._facts[rank] for rank in ranks], self._topic, self._closing.rank, text)
