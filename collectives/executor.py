"""One communicator's calls: plans, invocations, and what to do when a native call returns early."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import secrets
import time
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.drivers.closing import Closing
from multiring.collectives.drivers.control import Layout, Waiting
from multiring.collectives.drivers.far import Far
from multiring.collectives.drivers.far_mail import FarMail
from multiring.collectives.drivers.faults import abort_error, mismatch_error
from multiring.collectives.drivers.network import Network
from multiring.collectives.drivers.shared_memory import Exchange, SharedMemory
from multiring.collectives.entries import entries
from multiring.collectives.farewell import note_failure
from multiring.collectives.invocation import CallRecord, Invocation
from multiring.collectives.living import remember
from multiring.collectives.nodes import Nodes
from multiring.collectives.notices import own_notices
from multiring.collectives.plan import Plan
from multiring.collectives.planner import Planner
from multiring.collectives.request import Request
from multiring.collectives.schedules.explanation import Explanation
from multiring.collectives.schedules.measured_cost import Manner
from multiring.errors import CommunicatorClosed, LaunchError, MultiringError, PeerLostError, SharedMemoryError
from multiring.kernels.dtypes import DType, dtype_of, numpy_dtype
from multiring.kernels.records import (
    ABORT_PEER_LOST,
    ABORT_USER,
    ABORTED,
    ATTACH,
    CALL_CONTEXT,
    CALL_COUNT,
    CALL_DEADLINE_NS,
    CALL_EPOCH,
    CALL_PEER,
    CALL_PHASE,
    CALL_SEGMENT,
    CALL_SIGNATURE,
    CALL_TIMEOUT_NS,
    CALL_WORDS,
    CALL_X,
    CALL_X_BYTES,
    DONE,
    LAUNCH,
    LOWER,
    MAIL_PEER,
    MAIL_SENDS,
    MISMATCH,
    PHASE_IDLE,
    PHASE_MAIL,
    REPORT_COUNT,
    REPORT_PEER,
    REPORT_PHASE,
    REPORT_SIGNATURE,
    SIGNATURE_CLOSED,
    SIGNATURE_REFUSED,
    WAIT,
)
from multiring.topology.assumed import ASSUMED
from multiring.topology.cluster import cluster_topology
from multiring.topology.load import injected as injected_topology
from multiring.topology.model import Topology
from multiring.topology.tuning_file import agreed_text, measured_of

__all__ = ["Executor", "Message"]

Message = tuple[int, int, DType, int]
"""(address, count, dtype, peer) of a send or a receive."""

CACHED_INVOCATIONS = 1024
CLOSE_PATIENCE_S = 2.0


class Executor:
    """Runs the calls of one communicator.

    Parameters
    ----------
    rank, size : int
    exchange : callable
        Collective: gives every rank the bytes of all.
    timeout_s : float
        How long a call waits for the others.
    waiting, layout
        Instead of this node's policy and the usual sizes; for tests.
    nodes : Nodes, optional
        Where the ranks are; by default on one node.
    network : Network, optional
        Needed where there are several nodes; owned by the executor from now on.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        exchange: Exchange,
        *,
        timeout_s: float = 300.0,
        waiting: Waiting | None = None,
        layout: Layout | None = None,
        nodes: Nodes | None = None,
        network: Network | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.timeout_s = timeout_s
        self._waiting = waiting
        self._entries = entries()
        self._nodes = nodes or Nodes((0,) * size, (platform.node(),) * size)
        members = self._nodes.members(rank)
        others = self._nodes.others(rank)
        facts = own_notices().facts if others else None
        answers = [json.loads(a) for a in exchange(json.dumps({"settings": _settings(), "notices": facts}).encode())]
        # Rank 0's settings count for all: the choice must not depend on what one rank knows.
        self._settings: dict[str, str | None] = answers[0]["settings"]
        self._driver = self._join(
            members.index(rank),
            len(members),
            exchange,
            waiting,
            layout or (Layout.between_nodes(len(members)) if others else None),
            [*members, *(r for ranks in others for r in ranks)],
        )
        self._context = self._driver.context
        self._closing = Closing(self._context, self._entries, rank)
        self._far: Far | None = None
        if others:
            if network is None:
                raise LaunchError(f"the {size} ranks are on {self._nodes.count} nodes, and no network joins them")
            everyone = [answer["notices"] for answer in answers]
            topic = str(self._settings["communicator"])
            self._far = Far(network, self._context, self._entries, self._closing, others, topic, everyone)
        self._invocations: OrderedDict[tuple[Request, int, tuple[int, ...] | None], Invocation] = OrderedDict()
        self._alive: weakref.WeakSet[Invocation] = weakref.WeakSet()
        self._announcement: NDArray[np.int64] = np.zeros(CALL_WORDS, dtype=np.int64)
        self._announcement[CALL_CONTEXT] = self._context.address
        self._error: MultiringError | None = None
        self.closed = False
        self._left = False
        self.local_rank, self.local_size = members.index(rank), len(members)
        self.node, self.n_nodes = self._nodes.node_of[rank], self._nodes.count
        self.device = "host"
        injected = injected_topology({"MULTIRING_TOPOLOGY": self._settings["topology"] or ""}, size)
        measured = measured_of(self._settings.get("tuning"))
        assumed = ASSUMED if self._far is None else None  # on one node it prices, and the rule chooses
        self.topology: Topology = injected or cluster_topology(self._nodes.node_of, measured=measured or assumed)
        priced = self.topology.rates is not None
        self._by_price = injected is not None or self._far is not None or (measured is not None and priced)
        self._planner = self._new_planner()
        remember(self)

    def _new_planner(self, *, staged: bool = False) -> Planner:
        return Planner(
            self.rank,
            self.topology,
            self._settings["algorithm"],
            self._context.layout.n_slots,
            nodes=self._nodes.node_of,
            staged=staged,
            by_price=self._by_price,
        )

    @property
    def on_device(self) -> Any:
        """What works on arrays in device memory; None on the host."""
        return None

    def _join(
        self,
        member: int,
        size: int,
        exchange: Exchange,
        waiting: Waiting | None,
        layout: Layout | None,
        ranks: list[int],
    ) -> SharedMemory:
        """Join the ranks of this node; see :class:`multiring.collectives.drivers.shared_memory.SharedMemory`."""
        return SharedMemory(member, size, exchange, waiting=waiting, layout=layout, ranks=ranks)

    @property
    def failed(self) -> bool:
        """Whether an error closed the communicator."""
        return self._error is not None and not self._left

    # --- running ----

    def prepare(self, request: Request, count: int, counts: tuple[int, ...] | None = None) -> Invocation:
        """Return the invocation of a request for a count.

        Parameters
        ----------
        request : Request
        count : int
            Elements, as :func:`multiring.collectives.schedules.geometry.geometry` counts them.
        counts : tuple of int, optional
            Elements of each part, for the v-forms.
        """
        key = (request, count, counts)
        found = self._invocations.get(key)
        if found is not None:
            self._invocations.move_to_end(key)
            return found
        self.check()
        record = CallRecord(
            self._planner.plan(request, count), self._context, count, counts, self.timeout_s, self._entries.span_address
        )
        invocation = Invocation(record, self._entries.run, self._finish, self._broken)
        self._invocations[key] = invocation
        self._alive.add(invocation)
        if len(self._invocations) > CACHED_INVOCATIONS:
            self._invocations.popitem(last=False)
        return invocation

    def explain(self, request: Request, count: int, *, symmetric: bool = True, in_place: bool = False) -> Explanation:
        """Return the plan of a call with its price on the topology, the reason for it, and the alternatives.

        Parameters
        ----------
        request : Request
        count : int
        symmetric, in_place : bool
            Where the arrays lie: it changes the price, never the choice.
        """
        return self._planner.explain(request, count, Manner(symmetric, in_place))

    def describe(self, request: Request, count: int) -> str:
        """Return :meth:`explain`'s answer as text."""
        return str(self.explain(request, count))

    def _finish(self, invocation: Invocation, code: int) -> None:
        """Carry on with a call that returned early, until it is done."""
        record = invocation.record
        while code != DONE:
            if code == WAIT:
                if self._far is not None:
                    self._far.attend(record)
            elif code == ATTACH:
                self._attach(record.words)
            elif code == LOWER:
                record.enter_variant()
            elif code == LAUNCH:
                invocation.launch()
            else:
                self._fail(code, int(record.words[CALL_EPOCH]), record.plan)
            code = self._entries.advance(record.address)

    def _attach(self, words: NDArray[np.int64]) -> None:
        """Map what a call record asks for; a peer that has ended is everybody's error."""
        peer = int(words[CALL_PEER])
        try:
            self._driver.attach(peer, int(words[CALL_SEGMENT]))
        except PeerLostError:
            report = self._context.report(self.local_rank)
            for field, source in (
                (REPORT_PHASE, CALL_PHASE),
                (REPORT_PEER, CALL_PEER),
                (REPORT_SIGNATURE, CALL_SIGNATURE),
                (REPORT_COUNT, CALL_COUNT),
            ):
                report[field] = words[source]
            report[REPORT_PEER] = self._context.ranks[peer]
            self._closing.set(ABORT_PEER_LOST, self._context.ranks[peer])
            self._fail(ABORTED, 0, None)

    def _broken(self, invocation: Invocation, error: BaseException) -> None:
        """Close the communicator for all when a call ends half-way by what is not in ABORT, such as Ctrl-C."""
        if isinstance(error, MultiringError):
            if self._error is None:
                self.abort(str(error))
        elif int(invocation.record.words[CALL_PHASE]) != PHASE_IDLE:
            self.abort(f"{type(error).__name__} in the middle of a call")

    @contextlib.contextmanager
    def _abort_on_interrupt(self) -> Any:
        """Close the communicator for all when something ends a message half-way, as :meth:`_broken` does for calls."""
        try:
            yield
        except MultiringError as error:
            if self._error is None:
                self.abort(str(error))
            raise
        except BaseException as error:
            self.abort(f"{type(error).__name__} in the middle of a call")
            raise

    def _fail(self, code: int, epoch: int, plan: Plan | None) -> NoReturn:
        if code == MISMATCH and not self._context.abort_word:
            error = mismatch_error(self._context, epoch, self.rank, plan)
        else:
            error = abort_error(self._context, self.rank, self._nodes.hosts, plan)
        self._abandon(error)
        raise error

    def _abandon(self, error: MultiringError) -> None:
        """Close for good: every later call raises the same error."""
        note_failure()
        if self._far is not None:
            self._far.tell_failure(error)
        self._driver.heap.retire()
        self._end(error)

    def _end(self, error: MultiringError) -> None:
        self._error = error
        self.closed = True

        def refuse(record: int, x: int, out: int) -> int:
            raise _again(error)

        for invocation in list(self._alive):
            invocation.disable(refuse)
        self._invocations.clear()

    def refuse(self) -> None:
        """Publish the call that this rank would make now as refused, without waiting for the others."""
        self.check()
        self._announce(SIGNATURE_REFUSED)

    def _announce(self, signature: int, patience_s: float = math.inf) -> None:
        """Publish a refusal or a closing, after an earlier refusal is settled; without it if that takes too long."""
        words = self._announcement
        words[CALL_DEADLINE_NS] = 0
        words[CALL_TIMEOUT_NS] = int(self.timeout_s * 1e9)
        given_up = time.monotonic() + patience_s
        words[CALL_SIGNATURE] = signature
        with self._abort_on_interrupt():
            code = WAIT
            while code == WAIT:
                code = self._entries.announce(words.ctypes.data, signature)
                if code == WAIT and time.monotonic() > given_up:
                    return
                if code == WAIT and self._far is not None:
                    self._far.listen()
            if code != DONE:
                self._fail(code, int(words[CALL_EPOCH]), None)

    # --- point to point ----------------------------------------------------------------------------------------------

    def send(self, address: int, count: int, dtype: DType, peer: int, timeout_s: float | None = None) -> None:
        """Send an array to ``peer``; returns when the array may be used again."""
        self.exchange([(address, count, dtype, peer)], [], timeout_s)

    def recv(self, address: int, count: int, dtype: DType, peer: int, timeout_s: float | None = None) -> None:
        """Receive an array from ``peer``, which must send as many elements of the same type."""
        self.exchange([], [(address, count, dtype, peer)], timeout_s)

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message], timeout_s: float | None = None) -> None:
        """Carry out sends and receives that progress together.

        Parameters
        ----------
        sends, receives : sequence of (address, count, dtype, peer)
            Several between the same two ranks match in the order given.
        timeout_s : float, optional
        """
        self.check()
        operations = [(1, *m) for m in sends] + [(0, *m) for m in receives]
        if not operations:
            return
        records: NDArray[np.int64] = np.zeros((len(operations), CALL_WORDS), dtype=np.int64)
        near, far = [], []
        for record, (is_send, address, count, dtype, peer) in zip(records, operations, strict=True):
            record[CALL_CONTEXT] = self._context.address
            record[CALL_PHASE] = PHASE_MAIL
            record[CALL_TIMEOUT_NS] = int((self.timeout_s if timeout_s is None else timeout_s) * 1e9)
            record[CALL_X] = address
            record[CALL_X_BYTES] = count * dtype.itemsize
            record[CALL_COUNT] = count * dtype.itemsize
            record[CALL_SIGNATURE] = dtype.code
            record[MAIL_SENDS] = is_send
            if self._nodes.node_of[peer] == self.node:
                record[MAIL_PEER] = self._context.member_of[peer]
                near.append(record)
            else:
                record[MAIL_PEER] = peer
                far.append(record)
        with self._abort_on_interrupt():
            self._deliver(near, self._far.begin_mail(far) if far and self._far is not None else None)

    def _deliver(self, near: list[NDArray[np.int64]], mail: FarMail | None) -> None:
        """Carry out messages inside the node, and those that are under way to others and from them."""
        addresses: NDArray[np.int64] = np.array([r.ctypes.data for r in near], dtype=np.int64)
        code = WAIT if near else DONE
        while code != DONE or (mail is not None and mail.first is not None):
            if mail is not None and self._far is not None:
                self._far.attend_mail(mail)
            elif self._far is not None:
                self._far.listen()
            if code != DONE:
                code = self._entries.deliver(addresses.ctypes.data, len(addresses))
            if code == ATTACH:
                self._attach(near[0])
            elif code not in (WAIT, DONE) or self._context.abort_word:
                self._fail(ABORTED, 0, None)

    # --- memory ------------------------------------------------------------------------------------------------------

    def empty(self, shape: int | tuple[int, ...], dtype: DType) -> NDArray[Any]:
        """Return an array in symmetric memory, its contents undefined.

        Raises
        ------
        SharedMemoryError
            If the heap may not grow that far.
        """
        whole = (shape,) if isinstance(shape, int) else tuple(shape)
        count = int(np.prod(whole, dtype=np.int64))
        buffer = self._driver.heap.allocate(max(count * dtype.itemsize, 1))
        # numpy knows no buffer format for bfloat16, so the bytes get their type by a view.
        flat = np.frombuffer(buffer, dtype=np.uint8)[: count * dtype.itemsize]
        return flat.view(numpy_dtype(dtype)).reshape(whole)

    def is_symmetric(self, address: int, nbytes: int) -> bool:
        """Whether a range lies in this process's symmetric memory."""
        return self._driver.heap.holds(address, nbytes)

    # --- life --------------------------------------------------------------------------------------------------------

    def gather_bytes(self, payload: bytes) -> list[bytes]:
        """Give every rank the bytes of all, by two calls of this communicator."""
        int64, uint8 = dtype_of("int64"), dtype_of("uint8")
        sizes = np.zeros(self.size, dtype=np.int64)
        mine = np.array([len(payload)], dtype=np.int64)
        self.prepare(Request("all_gather", int64), self.size).run(mine.ctypes.data, sizes.ctypes.data)
        counts = tuple(int(s) for s in sizes)
        data = np.frombuffer(payload or b"\0", dtype=np.uint8)
        everything = np.zeros(max(sum(counts), 1), dtype=np.uint8)
        gather = self.prepare(Request("all_gather", uint8), sum(counts), counts)
        gather.run(data.ctypes.data, everything.ctypes.data)
        ends = np.cumsum(sizes)
        return [everything[e - n : e].tobytes() for e, n in zip(ends.tolist(), counts, strict=True)]

    def split(self, color: int | None, key: int) -> Executor | None:
        """Return the communicator of the ranks with this rank's color, in the order of (key, rank).

        Parameters
        ----------
        color : int or None
            None: this rank takes part in the call, and in no new communicator.
        key : int
        """
        rows = [json.loads(b) for b in self.gather_bytes(json.dumps([color, key]).encode())]
        colors = sorted({c for c, _ in rows if c is not None})
        mine: Executor | None = None
        # All ranks walk through all colors, since each exchange is a call of the parent.
        members = {c: sorted((k, r) for r, (other, k) in enumerate(rows) if other == c) for c in colors}
        if color is not None:
            ranks = [r for _, r in members[color]]
            nodes = self._nodes.of_some(ranks)

            n_exchanges = 0

            def exchange(payload: bytes) -> list[bytes]:
                nonlocal n_exchanges
                n_exchanges += 1
                answers = self.gather_bytes(payload)
                return [answers[r] for r in ranks]

            try:
                network = self._far.network.split(ranks) if self._far is not None and nodes.count > 1 else None
                mine = self._child(ranks.index(self.rank), len(ranks), exchange, nodes, network)
            except (SharedMemoryError, LaunchError):
                # The other colors go on, in step.
                for _ in range(self.n_exchanges - n_exchanges):
                    self.gather_bytes(b"")
                raise
        else:
            for _ in range(self.n_exchanges):
                self.gather_bytes(b"")
        return mine

    n_exchanges = 4
    """Exchanges of a new communicator: its settings, the facts, and two agreements."""

    def _child(self, rank: int, size: int, exchange: Exchange, nodes: Nodes, network: Network | None) -> Executor:
        """Return a communicator of some of the ranks, like this one."""
        return Executor(
            rank, size, exchange, timeout_s=self.timeout_s, waiting=self._waiting, nodes=nodes, network=network
        )

    def check(self) -> None:
        """Raise the error that closed this communicator, or that a peer has found meanwhile.

        Raises
        ------
        MultiringError
        """
        if self._error is not None:
            raise _again(self._error)
        if self._far is not None:
            self._far.listen()
        if self._context.abort_word:
            self._fail(ABORTED, 0, None)

    def abort(self, reason: str) -> None:
        """Close the communicator for all ranks, without waiting for any.

        Parameters
        ----------
        reason : str
            What the others' errors say.
        """
        if self.closed:
            return
        self._closing.set_text(reason, ABORT_USER)
        self._abandon(abort_error(self._context, self.rank, self._nodes.hosts, None))

    def close(self) -> None:
        """Leave the communicator; a peer that still calls gets CommunicatorClosed. Closing twice is nothing."""
        if self.closed:
            self._driver.close()
            return
        with contextlib.suppress(MultiringError):
            # Peers that never come to a call that was refused here must not keep this rank; those that come late see
            # the refusal.
            self._announce(SIGNATURE_CLOSED, CLOSE_PATIENCE_S)
            if self._far is not None:
                self._far.leave()
        if self._error is None:
            self._left = True
            self._end(CommunicatorClosed(f"rank {self.rank} has closed this communicator; make a new one"))
        self._driver.close()

    def disown(self) -> None:
        """Give up a communicator that belongs to the process that this one was forked from."""
        self._left = True
        self._end(
            CommunicatorClosed(
                f"process {os.getppid()} made this communicator as rank {self.rank}; process {os.getpid()} is its"
                " forked child and has no part in it; make a new one in the child"
            )
        )


def _again(error: MultiringError) -> MultiringError:
    """Return a fresh error of the same kind and text: a traceback belongs to one raise."""
    return type(error)(*error.args)


def _settings() -> dict[str, str | None]:
    from multiring import __version__

    return {
        "version": __version__,
        "algorithm": os.environ.get("MULTIRING_ALGORITHM"),
        "topology": os.environ.get("MULTIRING_TOPOLOGY"),
        "tuning": agreed_text(),
        "communicator": secrets.token_hex(8),
    }
