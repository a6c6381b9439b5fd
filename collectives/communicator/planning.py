"""Calls that are bound ahead, and calls that are explained."""

from __future__ import annotations

from typing import Any

from multiring.collectives.communicator import build, build_transfer, build_variable
from multiring.collectives.communicator.action import Action, CollectiveAction
from multiring.collectives.communicator.base import Base
from multiring.collectives.communicator.options import check_names, index_of, request_of, root_of, timeout_of
from multiring.collectives.communicator.prepared import PreparedCall, prepared
from multiring.collectives.request import Request
from multiring.collectives.schedules.collective import COLLECTIVES
from multiring.collectives.schedules.explanation import Explanation
from multiring.errors import ArgumentError
from multiring.kernels.dtypes import DTYPES, dtype_of

__all__ = ["Planning"]

_BUILDERS: dict[str, Any] = {
    "all_reduce": build.all_reduce,
    "reduce": build.reduce,
    "broadcast": build.broadcast,
    "reduce_scatter": build.reduce_scatter,
    "all_gather": build.all_gather,
    "all_to_all": build.all_to_all,
    "gather": build.gather,
    "scatter": build.scatter,
    "reduce_scatter_v": build_variable.reduce_scatter_v,
    "all_gather_v": build_variable.all_gather_v,
    "all_to_all_v": build_variable.all_to_all_v,
    "send": build_transfer.send,
    "recv": build_transfer.recv,
    "send_recv": build_transfer.send_recv,
}


class Planning(Base):
    """prepare, explain and plan."""

    def prepare(self, collective: str, *args: Any, **options: Any) -> PreparedCall:
        """Check and bind a call once, to call it often: the lowest latency.

        Parameters
        ----------
        collective : str
            The name of a method: ``"all_reduce"``, ``"all_reduce_many"``, ``"send_recv"``, ``"barrier"``, ...
        *args, **options
            Its arguments, but ``async_op``. Counts must be given in full.

        Returns
        -------
        callable
            Without arguments; returns the output array. It keeps its arrays alive, and packs and writes back at every
            call where a layout needs that. Preparing is local; calling is a collective.
        """
        self._engine.require_open()
        if options.get("async_op"):
            raise ArgumentError(
                f"prepare: got async_op for {collective!r}, wanted a synchronous call; call the method for a Work"
            )
        executor = self._engine.executor
        if collective == "barrier":
            check_names("barrier", options, frozenset(("timeout",)))
            invocation = executor.prepare(Request("barrier", DTYPES["uint8"]), 0)
            limit_s = timeout_of("barrier", options.get("timeout"))
            return prepared(self._engine, CollectiveAction("barrier", None, (), invocation, limit_s))
        if collective == "all_reduce_many":
            return prepared(self._engine, self._buckets.build(*args, **options))
        builder = _BUILDERS.get(collective)
        if builder is None:
            names = ", ".join([*_BUILDERS, "all_reduce_many", "barrier"])
            raise ArgumentError(f"prepare: got {collective!r}, wanted one of {names}")
        action: Action = builder(executor, *args, **options)
        return prepared(self._engine, action)

    def explain(
        self,
        collective: str,
        nbytes: int | None = None,
        dtype: Any = "float32",
        *,
        count: int | None = None,
        root: int = 0,
        **options: Any,
    ) -> str:
        """Return the plan of a call as text: the steps, the reason for the choice, and the alternatives.

        Parameters
        ----------
        collective : str
        nbytes : int, optional
            Bytes of the whole array; or give ``count``.
        dtype : dtype
        count : int, optional
            Elements of the whole array.
        root : int
        **options
            ``op``, ``wire``, ``accumulate``, ``algorithm``, ``order``, ``schedule``, as for the call.
        """
        request, elements = self._explained(collective, nbytes, dtype, count, root, options)
        return self._engine.executor.describe(request, elements)

    def plan(
        self,
        collective: str,
        nbytes: int | None = None,
        dtype: Any = "float32",
        *,
        count: int | None = None,
        root: int = 0,
        symmetric: bool = True,
        in_place: bool = False,
        **options: Any,
    ) -> Explanation:
        """Return what :meth:`explain` prints as an object: its price, its steps, and ways to save and draw it.

        The price is for arrays in symmetric memory, or not, and for input and output in one array, or not. Its
        ``schedule`` is the one that runs: save it, change it, and pass it to a call as ``schedule=``.
        """
        request, elements = self._explained(collective, nbytes, dtype, count, root, options)
        return self._engine.executor.explain(request, elements, symmetric=symmetric, in_place=in_place)

    def _explained(
        self, collective: str, nbytes: int | None, dtype: Any, count: int | None, root: int, options: dict[str, Any]
    ) -> tuple[Request, int]:
        self._engine.require_open()
        pattern = COLLECTIVES.get(collective)
        if pattern is None:
            raise ArgumentError(f"explain: got {collective!r}, wanted one of {', '.join(COLLECTIVES)}")
        executor, element = self._engine.executor, dtype_of(dtype, "explain: dtype")
        if (nbytes is None) == (count is None) and collective != "barrier":
            raise ArgumentError(f"explain: got nbytes={nbytes} and count={count}, wanted one of them")
        what, given = ("nbytes", nbytes or 0) if count is None else ("count", count)
        elements = index_of("explain", what, given)
        if elements < 0:
            raise ArgumentError(f"explain: got {what}={given}, wanted 0 or more")
        if what == "nbytes":
            elements //= element.itemsize
        place = root_of(executor, "explain", root)
        return request_of(executor, collective, element, options, reduces=pattern.reduces, root=place), elements
