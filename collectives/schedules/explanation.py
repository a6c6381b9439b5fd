"""A plan as people and programs read it: what moves when, over which wire, what it takes, and why it was chosen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from multiring.collectives.schedules import draw
from multiring.collectives.schedules.choose import Alternative, Choice
from multiring.collectives.schedules.cost import Cost, cost
from multiring.collectives.schedules.explore import built
from multiring.collectives.schedules.measured_cost import SYMMETRIC, Manner
from multiring.collectives.schedules.messages import Message, messages_of
from multiring.collectives.schedules.schedule import Schedule
from multiring.collectives.schedules.volume import bytes_sent
from multiring.errors import ScheduleError
from multiring.topology.model import Topology

__all__ = ["Explanation", "explain"]

MAX_MESSAGES = 6
"""Messages of a step that its line of text names."""


@dataclass(frozen=True)
class Explanation:
    """What a plan says about itself; ``print`` it.

    Attributes
    ----------
    schedule : Schedule
        What is executed: pass it to a collective as ``schedule=`` to run it elsewhere.
    algorithm : str
        As the user would write it.
    nbytes : int
        Bytes of the whole vector, as in :func:`~multiring.collectives.schedules.volume.chunk_bytes`.
    dtype : str
        Of its elements.
    wire : str
        The element type that travels; prices and bytes sent are for it.
    wire_nbytes : int
        Bytes of the whole vector in that type.
    topology : str or None
        The name of the machine that prices are for; None where there are none.
    nodes : tuple of int
        The node of each rank; empty without a topology.
    cost : Cost or None
        What each step takes.
    messages : tuple of tuple of Message
        What moves in each step.
    reason : str
        Why this algorithm was chosen.
    alternatives : tuple of Alternative
        The others; the cheapest first where prices are known.
    """

    schedule: Schedule
    algorithm: str
    nbytes: int
    dtype: str
    wire: str
    wire_nbytes: int
    topology: str | None
    nodes: tuple[int, ...]
    cost: Cost | None
    messages: tuple[tuple[Message, ...], ...]
    reason: str
    alternatives: tuple[Alternative, ...]

    @property
    def predicted_us(self) -> float | None:
        """What it should take; None without a topology."""
        return None if self.cost is None else self.cost.total_us

    @property
    def bytes_sent_per_rank(self) -> int:
        """The most that one rank sends."""
        return int(bytes_sent(self.schedule, self.wire_nbytes).max())

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data for :func:`json.dumps`.

        Returns
        -------
        dict
            ``collective``, ``root``, ``algorithm``, ``n_ranks``, ``n_chunks``, ``nbytes``, ``dtype``, ``wire``,
            ``topology``, ``n_nodes``, ``n_steps``, ``bytes_sent_per_rank``, ``predicted_us``, ``steps``,
            ``alternatives`` and ``reason``. A step has ``step``, ``predicted_us``, its parts ``latency_us``,
            ``transfer_us`` and ``reduction_us``, its fullest wire (``link``, ``link_gbs``, ``link_bytes``), and
            ``transfers``: each ``src``, ``dst``, ``op`` (``"copy"`` or ``"reduce"``), ``chunks``, ``bytes``, ``link``
            (the fullest wire on its way) and ``predicted_us``. Times are in microseconds; what is not known is null.
        """
        schedule = self.schedule
        return {
            "collective": schedule.collective.name,
            "root": schedule.collective.root,
            "algorithm": self.algorithm,
            "n_ranks": schedule.n_ranks,
            "n_chunks": schedule.n_chunks,
            "nbytes": self.nbytes,
            "dtype": self.dtype,
            "wire": self.wire,
            "wire_nbytes": self.wire_nbytes,
            "topology": self.topology,
            "n_nodes": max(self.nodes, default=0) + 1,
            "n_steps": schedule.n_steps,
            "bytes_sent_per_rank": self.bytes_sent_per_rank,
            "predicted_us": self.predicted_us,
            "reason": self.reason,
            "alternatives": [
                {"algorithm": other.algorithm, "predicted_us": other.predicted_us, "reason": self._why_not(other)}
                for other in self.alternatives
            ],
            "steps": [self._step(index) for index in range(schedule.n_steps)],
        }

    def trace(self) -> str:
        """Return the predicted times in the Trace Event Format, for Perfetto: a track for each rank.

        Raises
        ------
        ScheduleError
            If the plan has no prices.
        """
        if self.cost is None:
            raise ScheduleError(f"trace: {self.algorithm} has no predicted times, wanted a plan made on a topology")
        return draw.trace(self.schedule, self.cost)

    def svg(self) -> str:
        """Return a picture: ranks as lanes, transfers as arrows."""
        return draw.svg(self.schedule, self.cost)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        schedule, collective = self.schedule, self.schedule.collective
        root = f" root {collective.root}" if collective.pattern.rooted else ""
        travels = f", {self.wire} on the way" if self.wire != self.dtype else ""
        where = "" if self.topology is None else f" on {self.topology}"
        what = f"{collective.name}{root}"
        if collective.name != "barrier":  # which moves nothing of any type
            what += f" of {draw.number(self.nbytes, 'byte')} of {self.dtype}{travels}"
        steps = draw.number(schedule.n_steps, "step")
        yield f"{what}, {draw.number(schedule.n_ranks, 'rank')}{where}: {self.algorithm}, {steps}"
        yield f"  because {self.reason}"
        if self.cost is not None:
            parts = [
                f"{what} {sum(getattr(step, f'{what}_us') for step in self.cost.steps):.1f}"
                for what in ("latency", "transfer", "reduction")
            ]
            yield f"  predicted {self.cost.total_us:.1f} us: {', '.join(parts)}"
        sent = draw.number(self.bytes_sent_per_rank, "byte")
        yield f"  {draw.number(schedule.n_chunks, 'chunk')}; a rank sends {sent} at most"
        for index, messages in enumerate(self.messages):
            yield f"  step {index}: {self._price(index)}{_named(messages)}"
        for other in self.alternatives:
            price = "" if other.predicted_us is None else f" ({other.predicted_us:.1f} us)"
            yield f"  not {other.algorithm}{price}: {self._why_not(other)}"

    def _why_not(self, other: Alternative) -> str:
        mine = self.predicted_us
        if mine is None or other.predicted_us is None:
            return other.reason
        if not mine:
            return f"takes time where this takes none; {other.reason}" if other.predicted_us else other.reason
        return f"{other.predicted_us / mine:.2f} times as long; {other.reason}"

    def _price(self, index: int) -> str:
        if self.cost is None:
            return ""
        step = self.cost.steps[index]
        over = (
            "" if step.bottleneck is None else f", {draw.number(step.load_bytes, 'byte')} over {step.bottleneck.name}"
        )
        return f"{step.total_us:.2f} us{over};  "

    def _step(self, index: int) -> dict[str, Any]:
        price = None if self.cost is None else self.cost.steps[index]
        link = None if price is None else price.bottleneck
        return {
            "step": index,
            "predicted_us": None if price is None else price.total_us,
            "latency_us": None if price is None else price.latency_us,
            "transfer_us": None if price is None else price.transfer_us,
            "reduction_us": None if price is None else price.reduction_us,
            "link": None if link is None else link.name,
            "link_gbs": None if link is None else link.bandwidth_gbs,
            "link_bytes": None if price is None else price.load_bytes,
            "transfers": [message.to_json() for message in self.messages[index]],
        }


def explain(
    choice: Choice,
    nbytes: int,
    topology: Topology | None = None,
    dtype: str = "float32",
    wire: str | None = None,
    wire_nbytes: int | None = None,
    manner: Manner = SYMMETRIC,
) -> Explanation:
    """Price a choice and its alternatives, and lay out what moves when.

    Parameters
    ----------
    choice : Choice
        What was chosen; the price says nothing about who chose.
    nbytes : int
        Bytes of the whole vector.
    topology : Topology, optional
        Where; there are no prices without it.
    dtype : str
        Of the elements.
    wire : str, optional
        The type that travels, if it is another one.
    wire_nbytes : int, optional
        Bytes of the whole vector in that type.
    manner : Manner
        How the call is made, on a host that was measured.
    """
    moved = nbytes if wire_nbytes is None else wire_nbytes
    schedule = choice.schedule
    price = None if topology is None else cost(schedule, topology, moved, manner=manner)
    others = choice.alternatives
    if topology is not None:
        others = tuple(sorted((_priced(other, schedule, topology, moved, manner) for other in others), key=_by_price))
    return Explanation(
        schedule,
        choice.algorithm,
        nbytes,
        dtype,
        wire or dtype,
        moved,
        None if topology is None else topology.name,
        () if topology is None else topology.nodes,
        price,
        messages_of(schedule, moved, topology),
        choice.reason,
        others,
    )


def _priced(other: Alternative, schedule: Schedule, topology: Topology, nbytes: int, manner: Manner) -> Alternative:
    if other.predicted_us is not None and topology.rates is None:
        return other
    try:
        rival = built(other.algorithm, schedule.collective, schedule.n_ranks, topology)
    except ScheduleError as error:
        return replace(other, reason=str(error))
    return replace(other, predicted_us=cost(rival, topology, nbytes, manner=manner).total_us)


def _by_price(other: Alternative) -> float:
    return float("inf") if other.predicted_us is None else other.predicted_us


def _named(messages: tuple[Message, ...]) -> str:
    shown = "  ".join(map(str, messages[:MAX_MESSAGES]))
    more = len(messages) - MAX_MESSAGES
    return f"{shown}  … {more} more" if more > 0 else shown
