"""From a request and a size to a plan: the choice, and a bounded cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from multiring.collectives.plan import Plan
from multiring.collectives.request import Request
from multiring.collectives.schedules.choose import Choice, choose
from multiring.collectives.schedules.collective import Collective
from multiring.collectives.schedules.explanation import Explanation, explain
from multiring.collectives.schedules.measured_cost import SYMMETRIC, Manner
from multiring.collectives.schedules.ordering import n_roundings
from multiring.collectives.schedules.schedule import Schedule
from multiring.kernels.dtypes import DTYPES
from multiring.topology.model import Topology

__all__ = ["Planner"]

CACHED_PLANS = 256


class Planner:
    """Chooses and lowers the plans of one communicator.

    Parameters
    ----------
    rank : int
        Whose programs.
    topology : Topology
        What connects the ranks.
    wish : str or None
        ``MULTIRING_ALGORITHM`` as all ranks agreed on it.
    n_slots : int
        Slots of each rank.
    nodes : sequence of int, optional
        The node of each rank; by default all are on one.
    staged : bool
        Whether every value passes through slots: what a network cannot reach is in no message then.
    by_price : bool
        Whether the topology's prices choose, as for one that a user gave; else the rule for ranks that share memory.
    """

    def __init__(
        self,
        rank: int,
        topology: Topology,
        wish: str | None,
        n_slots: int,
        *,
        nodes: Sequence[int] | None = None,
        staged: bool = False,
        by_price: bool = False,
    ) -> None:
        self._rank = rank
        self._topology = topology
        self._wish = wish
        self._n_slots = n_slots
        self._staged = staged
        self._nodes = tuple(nodes or (0,) * topology.n_ranks)
        self._by_price = by_price
        self._plans: OrderedDict[tuple[Request, str, int], Plan] = OrderedDict()

    def choose(self, request: Request, count: int) -> Choice:
        """Return the schedule that a call gets."""
        collective = Collective(request.collective, request.root)
        if request.schedule is not None:
            return Choice(request.schedule, request.schedule.algorithm, "the caller gave this schedule", ())
        if request.collective == "barrier" and len(set(self._nodes)) > 1:
            # On one node the arrival alone holds the ranks together; nothing else reaches other nodes.
            return choose(Collective("all_reduce"), self._topology.n_ranks, 0, topology=self._topology)
        wire = request.wire_type
        return choose(
            collective,
            self._topology.n_ranks,
            count * request.dtype.itemsize,
            order=request.order,
            algorithm=request.algorithm,
            environment_choice=self._wish,
            reduces16=wire.kind == "float" and wire.itemsize == 2 and request.algorithm is None,
            topology=self._topology if self._by_price else None,
        )

    def plan(self, request: Request, count: int) -> Plan:
        """Return the plan of a call, lowered for this rank."""
        choice = self.choose(request, count)
        key = (request, choice.algorithm, id(choice.schedule))
        plan = self._plans.get(key)
        if plan is None:
            plan = Plan(
                _with_wire(request, choice.schedule),
                choice,
                self._rank,
                self._n_slots,
                self._nodes,
                staged=self._staged,
            )
            self._plans[key] = plan
            if len(self._plans) > CACHED_PLANS:
                self._plans.popitem(last=False)
        return plan

    def explain(self, request: Request, count: int, manner: Manner = SYMMETRIC) -> Explanation:
        """Return the plan of a call with its price on the topology, the reason for it, and the alternatives.

        ``manner`` is how it is made: it changes the price on hosts that were measured, never the choice.
        """
        choice = self.choose(request, count)
        manner = replace(manner, named=request.algorithm is not None)
        wire = _with_wire(request, choice.schedule).wire_type
        if wire != request.dtype:
            manner = replace(manner, symmetric=False)  # what is cast on its way passes through slots
        return explain(
            choice,
            count * request.dtype.itemsize,
            self._topology,
            request.dtype.name,
            wire.name,
            count * wire.itemsize,
            manner,
        )


def _with_wire(request: Request, schedule: Schedule) -> Request:
    """Let a mean of float16 that fits travel as float32 where it would travel as a sum that does not fit."""
    operation = request.operation
    if (
        operation is not None
        and operation.name == "avg"
        and request.wire is None
        and request.dtype.name == "float16"
        and n_roundings(schedule) > 1
    ):
        return replace(request, wire=DTYPES["float32"])
    return request
