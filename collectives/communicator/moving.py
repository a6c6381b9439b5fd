"""Collectives that move data without reducing it."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np

from multiring.collectives.arrays import address_of
from multiring.collectives.communicator import build, build_variable
from multiring.collectives.communicator.action import Action, CollectiveAction, FunctionAction
from multiring.collectives.communicator.base import Base
from multiring.collectives.communicator.check import counts_of, input_view, matrix_of
from multiring.collectives.communicator.contract import Executor
from multiring.collectives.communicator.options import MoveOptions, check_names, timeout_of
from multiring.collectives.communicator.prepared import prepared
from multiring.collectives.request import Request
from multiring.errors import ArgumentError
from multiring.kernels.dtypes import DTYPES

__all__ = ["Moving"]


class Moving(Base):
    """broadcast, all_gather, all_to_all, gather, scatter and their kin, and the barrier."""

    def broadcast(self, x: Any, root: int = 0, out: Any = None, **options: Unpack[MoveOptions]) -> Any:
        """Copy the root's array to every rank.

        Parameters
        ----------
        x : array
            Of the same shape and dtype on every rank; only read on the root.
        root : int
        out : array, optional
            Where the result goes; None: into ``x``. On other ranks than the root ``x`` is not used then.
        **options
            ``wire``, ``algorithm``, ``schedule``, ``timeout``, ``check``, ``async_op``: see
            :class:`~multiring.collectives.communicator.options.MoveOptions`.

        Returns
        -------
        array or Work
            The array that holds the result.
        """
        if out is not None:
            return self._collective(build.broadcast, x, root, out, **options)
        return self._pair(build.broadcast, "broadcast", x, None, options, root=root)

    def all_gather(self, x: Any, out: Any = None, **options: Unpack[MoveOptions]) -> Any:
        """Gather every rank's array on every rank, in order of rank along axis 0.

        Parameters
        ----------
        x : array
            Of the same number of elements on every rank; or uneven shares of ``out``, cut as ``numpy.array_split``
            does.
        out : array, optional
            Any shape of the right number of elements, filled in C order; ``x`` may lie at its own place in it (NCCL's
            in place). None: a new C-ordered array of shape ``(size * x.shape[0], ...)``, in symmetric memory if ``x``
            is.
        **options
            As for :meth:`broadcast`.

        Returns
        -------
        array or Work
        """
        return self._pair(build.all_gather, "all_gather", x, out, options)

    def all_gather_v(self, x: Any, counts: Any = None, out: Any = None, **options: Unpack[MoveOptions]) -> Any:
        """Gather arrays of different lengths on every rank.

        Parameters
        ----------
        x : array
        counts : sequence of int, optional
            Elements of each rank's array, the same on every rank. None, on every rank: the ranks tell each other first,
            which is one more small all_gather, done before this method returns also with ``async_op``.
        out : array, optional
            Of ``sum(counts)`` elements. None: a new array, in rows like those of ``x``: first extents 1, 0, 3, 2 of
            ``(n, 3, 2)`` give ``(6, 3, 2)``.
        **options
            As for :meth:`broadcast`.

        Returns
        -------
        array or Work
        """
        if counts is None:
            view = self._build(_checked_input, "all_gather_v", x).result
            counts = self._tell("all_gather_v", [view.size], options.get("timeout"))
        return self._collective(build_variable.all_gather_v, x, counts, out, **options)

    def all_to_all(self, x: Any, out: Any = None, **options: Unpack[MoveOptions]) -> Any:
        """Send block j of every rank's array to rank j.

        Parameters
        ----------
        x : array
            Of ``size`` equal blocks, in C order.
        out : array, optional
            Of as many elements, apart from ``x``: there is no in place form. None: a new array of the shape of ``x``.
        **options
            As for :meth:`broadcast`.

        Returns
        -------
        array or Work
            Block i came from rank i.
        """
        return self._pair(build.all_to_all, "all_to_all", x, out, options)

    def all_to_all_v(
        self, x: Any, send_counts: Any, recv_counts: Any = None, out: Any = None, **options: Unpack[MoveOptions]
    ) -> Any:
        """Send a block of any length to every rank.

        Parameters
        ----------
        x : array
            The blocks for rank 0, 1, ..., without gaps.
        send_counts : sequence of int, or of sequences
            Elements for each rank; the ranks tell each other theirs first, as for :meth:`all_gather_v`. Or, on every
            rank, the whole table ``[source][destination]``, and nothing needs to be told.
        recv_counts : sequence of int, optional
            Elements from each rank; refused if they are not what the others send.
        out : array, optional
            Apart from ``x``. None: a new array, in rows like those of ``x`` where that fits.
        **options
            As for :meth:`broadcast`.

        Returns
        -------
        array or Work
            The blocks from rank 0, 1, ..., without gaps.
        """

        def row(executor: Executor) -> Action:
            name, size = "all_to_all_v", executor.size
            table = matrix_of(name, "send_counts", send_counts, size)
            view = input_view(name, "x", x)
            if table is None:
                table = counts_of(name, "send_counts", send_counts, size)
                if sum(table) != view.size:
                    raise ArgumentError(
                        f"{name}: x: got {view.size} elements (shape {view.shape}), wanted {sum(table)}, the sum of "
                        f"send_counts {table}"
                    )
                return _holding((table, True))
            return _holding((table, False))

        size = self._engine.executor.size
        told, only_mine = self._build(row).result
        if only_mine:
            told = self._tell("all_to_all_v", list(told), options.get("timeout"))
        table = [told[i * size : (i + 1) * size] for i in range(size)]
        return self._collective(build_variable.all_to_all_v, x, table, recv_counts, out, **options)

    def gather(
        self, x: Any, out: Any = None, root: int = 0, count: int | None = None, **options: Unpack[MoveOptions]
    ) -> Any:
        """Gather every rank's array on the root.

        Parameters
        ----------
        x : array
            Of the same number of elements on every rank; or uneven shares of ``count``.
        out : array, optional
            On the root: as for :meth:`all_gather`. Not used elsewhere.
        root : int
        count : int, optional
            Elements of all ranks, cut as ``numpy.array_split`` does; needed on every rank where the shares are uneven.
        **options
            As for :meth:`broadcast`.

        Returns
        -------
        array, None or Work
            The result on the root, None elsewhere.
        """
        return self._pair(build.gather, "gather", x, out, options, root=root, count=count)

    def scatter(
        self, x: Any, out: Any = None, root: int = 0, count: int | None = None, **options: Unpack[MoveOptions]
    ) -> Any:
        """Leave each rank one share of the root's array.

        Parameters
        ----------
        x : array
            On the root; not used elsewhere (None).
        out : array
            This rank's share, any shape; on the root it may lie at its own place in ``x``, or be None as for
            :meth:`reduce_scatter`.
        root : int
        count : int, optional
            Elements of all shares, cut as ``numpy.array_split`` does; needed on every rank where they are uneven.
        **options
            As for :meth:`broadcast`.

        Returns
        -------
        array or Work
        """
        return self._pair(build.scatter, "scatter", x, out, options, root=root, count=count)

    def barrier(self, *, timeout: float | None = None, async_op: bool = False) -> Any:
        """Wait until every rank has come here.

        Parameters
        ----------
        timeout : float, optional
            Seconds.
        async_op : bool
            Return a :class:`~multiring.Work` at once.
        """
        if self._barrier is not None and timeout is None and async_op is False:
            return self._barrier()

        def built(executor: Executor, **options: Any) -> Action:
            check_names("barrier", options, frozenset(("async_op",)))
            limit_s = timeout_of("barrier", timeout)
            invocation = executor.prepare(Request("barrier", DTYPES["uint8"]), 0)
            return CollectiveAction("barrier", None, (), invocation, limit_s)

        action = self._build(built, async_op=async_op)
        if timeout is None and not async_op:
            self._barrier = prepared(self._engine, action)
        return self._engine.launch(action, async_op)

    def _tell(self, name: str, mine: list[int], timeout: float | None) -> tuple[int, ...]:
        """Gather a few whole numbers of every rank."""

        def built(executor: Executor) -> Action:
            if self._engine.own_group() is not None:
                raise ArgumentError(
                    f"{name}: got no counts of the other ranks inside a group, wanted all of them: the ranks cannot "
                    "tell each other before the group's end"
                )
            limit_s = timeout_of(name, timeout)
            sent = np.array(mine, np.int64)
            told = np.empty(sent.size * executor.size, np.int64)
            invocation = executor.prepare(Request("all_gather", DTYPES["int64"]), told.size)
            action = CollectiveAction(f"{name} counts", told, (sent, told), invocation, limit_s)
            action.x_address, action.out_address = address_of(sent), address_of(told)
            return action

        return tuple(self._engine.launch(self._build(built)).tolist())


def _holding(value: Any) -> Action:
    action = FunctionAction("check", lambda: None)
    action.result = value
    return action


def _checked_input(executor: Executor, name: str, x: Any) -> Action:
    return _holding(input_view(name, "x", x))
