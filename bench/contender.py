"""What is timed: our communicator and each peer, as the same kind of thing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from multiring.bench.cases import Case
from multiring.errors import MultiringError

__all__ = ["Call", "Contender", "Ours"]

Call = Callable[[], object]


class Contender(Protocol):
    """A library that can do a case."""

    @property
    def name(self) -> str:
        """Short name, as in ``--peer``."""
        ...

    def bind(self, case: Case, send: Any, receive: Any, in_place: bool) -> Call | None:
        """Return a call that does the case on these arrays.

        Parameters
        ----------
        case : Case
        send, receive : ndarray
            One-dimensional; in place, at NCCL's positions in one buffer.
        in_place : bool

        Returns
        -------
        callable or None
            None where the library has no such call.
        """

    def how(self, case: Case, in_place: bool) -> str:
        """Say in a few words what the call does, for the JSON report."""
        ...


class Ours:
    """multiring's own communicator.

    Parameters
    ----------
    comm : multiring.Communicator
    algorithm : str or None
        By name; None leaves the choice to it.
    wire, order : str or None
        Passed on where they mean something.
    prepared : bool
        Whether to time persistent calls.
    registered : bool
        Whether arrays lie in symmetric memory, for the predicted times.
    """

    name = "multiring"

    def __init__(
        self,
        comm: Any,
        algorithm: str | None = None,
        wire: str | None = None,
        order: str | None = None,
        prepared: bool = False,
        registered: bool = True,
    ) -> None:
        self._comm = comm
        self._registered = registered
        self.algorithm = algorithm
        self._wire = wire
        self._order = order
        self._prepared = prepared
        self._plans: dict[tuple[Case, bool], Any] = {}

    def bind(self, case: Case, send: Any, receive: Any, in_place: bool) -> Call | None:
        """Return our call, plain or prepared."""
        comm, shape = self._comm, case.shape
        if in_place and shape.in_place == "none":
            return None
        if case.collective == "sendrecv":
            following, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
            arguments = (send, following, receive, before)
            return comm.prepare("send_recv", *arguments) if self._prepared else partial(comm.send_recv, *arguments)
        options: dict[str, Any] = {}
        if shape.rooted and case.root:
            options["root"] = case.root
        if shape.reduces:
            if case.operation_name != "sum":  # as users write it: what is the default is left out
                options["op"] = case.operation
            wanted = {"wire": self._wire, "order": self._order}
            options |= {key: value for key, value in wanted.items() if value is not None}
        if self.algorithm is not None:
            options["algorithm"] = self.algorithm
        arrays: list[Any] = [send] if in_place and shape.in_place == "same" else [send, receive]
        if case.collective == "broadcast" and len(arrays) == 2:
            options["out"] = arrays.pop()
        if case.collective == "gather" and comm.rank != case.root:
            arrays[1] = None
        if case.collective == "scatter" and comm.rank != case.root:
            arrays[0] = None
        if self._prepared:
            prepared: Call = comm.prepare(case.collective, *arrays, **options)
            return prepared
        return partial(getattr(comm, case.collective), *arrays, **options)

    def algorithm_name(self, case: Case) -> str:
        """Return the algorithm that does a case, as the plan names it."""
        plan = self._plan(case, in_place=False)
        return (self.algorithm or "-") if plan is None else plan.algorithm

    def predicted_us(self, case: Case, in_place: bool = False) -> float | None:
        """Return what the plan of a case should take on the communicator's topology; None where there is no plan."""
        plan = self._plan(case, in_place)
        return None if plan is None else plan.predicted_us

    def _plan(self, case: Case, in_place: bool) -> Any:
        """Return the plan of a case; None for sends and receives, and where it cannot be planned."""
        if case.collective == "sendrecv":
            return None
        key = case, in_place
        if key not in self._plans:
            options: dict[str, Any] = {"algorithm": self.algorithm}
            if case.shape.reduces:
                options |= {"op": case.operation, "wire": self._wire, "order": self._order}
            parts = case.n_ranks if case.shape.send_parts != case.shape.receive_parts else 1
            count = case.send_count if parts == 1 else case.count * parts
            arguments = {"dtype": case.dtype.name, "count": count, "root": max(case.root, 0)}
            options |= {"symmetric": self._registered, "in_place": in_place}
            try:
                plan = self._comm.plan(case.collective, **arguments, **options)
            except MultiringError:
                plan = None
            # The halves of a line ask one after another; more than that would only fill memory.
            self._plans = {key: plan}
        return self._plans[key]

    def how(self, case: Case, in_place: bool) -> str:
        """Say whether calls are prepared."""
        return "prepared calls" if self._prepared else "plain calls"
