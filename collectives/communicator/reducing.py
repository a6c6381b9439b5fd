"""Collectives that reduce."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np

from multiring.collectives.arrays import DIRECT_WRITABLE, MEMORY, START, unpack_fields
from multiring.collectives.communicator import build, build_variable
from multiring.collectives.communicator.action import CollectiveAction
from multiring.collectives.communicator.base import Base
from multiring.collectives.communicator.options import ReduceOptions

__all__ = ["Reducing"]

_unpack, _ndarray = unpack_fields, np.ndarray


def _apart(x: np.ndarray[Any, Any], address: int, descr: int, out: Any) -> int:
    """Return the address of an output that is like ``x``, and ``x`` or apart from it; else 0: look closer."""
    if type(out) is not _ndarray:
        return 0
    target, out_descr, flags = _unpack(MEMORY, id(out) + START)
    if out_descr != descr or flags & DIRECT_WRITABLE != DIRECT_WRITABLE or out.shape != x.shape:
        return 0
    return target if target == address or abs(target - address) >= x.nbytes else 0


class Reducing(Base):
    """all_reduce, reduce, reduce_scatter and their kin."""

    def all_reduce(self, x: Any, out: Any = None, **options: Unpack[ReduceOptions]) -> Any:
        """Reduce an array over all ranks; every rank gets the same bits.

        Parameters
        ----------
        x : array
            Of the same shape and dtype on every rank; any layout.
        out : array, optional
            Of the same shape and dtype. None, or ``x`` itself: in place. Any other overlap with ``x`` is refused.
        **options
            ``op="sum"``, ``wire``, ``accumulate``, ``algorithm``, ``order``, ``schedule``, ``timeout``, ``check``,
            ``async_op``: see :class:`~multiring.collectives.communicator.options.ReduceOptions`. Integers wrap as
            numpy's do.

        Returns
        -------
        array or Work
            The array that holds the result.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            At once, before anything is sent.
        MismatchError, PeerLostError, CollectiveTimeout, CommunicatorClosed
            If the ranks cannot complete it; the communicator is closed then.
        """
        # A sum of contiguous numpy arrays of a size that was seen before: 0.3 us of Python. The rest goes longer ways.
        if not options and type(x) is _ndarray:
            address, descr, flags = _unpack(MEMORY, id(x) + START)
            target = address if out is None else _apart(x, address, descr, out)
            if target and flags & DIRECT_WRITABLE == DIRECT_WRITABLE:
                try:
                    run = self._hot[descr][x.size]
                except KeyError:
                    pass
                else:
                    gate = self._engine.gate
                    taken, gate.idle = gate.idle, False
                    if taken:
                        try:
                            run(address, target)
                        finally:
                            gate.idle = True
                            if gate.waiting:
                                gate.wake()
                        return x if out is None else out
        if options:
            return self._pair(build.all_reduce, "all_reduce", x, out, options)
        action = self._build(build.all_reduce, x, out)
        result = self._engine.launch(action)
        if type(x) is _ndarray and isinstance(action, CollectiveAction):
            self._remember(x, action)
        return result

    def _remember(self, x: np.ndarray[Any, Any], action: CollectiveAction) -> None:
        """Let the next call like this one go the short way."""
        _, descr, flags = _unpack(MEMORY, id(x) + START)
        if not flags:
            return  # array objects cannot be read here: the portable form has no short way
        by_size = self._hot.get(descr)
        if by_size is None:
            if len(self._hot_dtypes) >= 64:
                self._hot.clear()
                self._hot_dtypes.clear()
            # The dtype object is kept: its address, the key, must not be used again for another.
            self._hot_dtypes.append(x.dtype)
            by_size = self._hot[descr] = {}
        elif len(by_size) >= 256:
            by_size.clear()
        by_size[x.size] = action.call

    def all_reduce_many(self, arrays: Any, **options: Unpack[ReduceOptions]) -> Any:
        """Reduce many arrays in place, the small ones packed into one collective for each dtype.

        Parameters
        ----------
        arrays : list of array
            The same shapes and dtypes, in the same order, on every rank. They must not overlap.
        **options
            As for :meth:`all_reduce`.

        Returns
        -------
        list of array, or Work

        Raises
        ------
        MismatchError
            If the ranks' lists differ, even if their sums do not.

        Notes
        -----
        Arrays of 256 KiB or more are reduced where they lie; smaller ones travel in buckets of at most 32 MiB of
        symmetric memory. With ``order="rank"`` the result has the bits of reducing each array alone.
        """

        def built(executor: Any, listed: Any, **rest: Any) -> Any:
            return self._buckets.build(listed, **rest)

        return self._collective(built, arrays, **options)

    def reduce(self, x: Any, out: Any = None, root: int = 0, **options: Unpack[ReduceOptions]) -> Any:
        """Reduce an array over all ranks to the root.

        Parameters
        ----------
        x : array
            Of the same shape and dtype on every rank.
        out : array, optional
            On the root, of the same shape and dtype; None, or ``x`` itself: in place. Not used elsewhere.
        root : int
        **options
            As for :meth:`all_reduce`.

        Returns
        -------
        array, None or Work
            The result on the root, None elsewhere.
        """
        return self._pair(build.reduce, "reduce", x, out, options, root=root)

    def reduce_scatter(self, x: Any, out: Any = None, **options: Unpack[ReduceOptions]) -> Any:
        """Reduce an array over all ranks and leave each rank one share of it.

        Parameters
        ----------
        x : array
            Of the same shape and dtype on every rank. Its N elements, in C order, are cut as ``numpy.array_split``
            does: the first ``N % size`` ranks have one more (10 on 4 ranks: 3, 3, 2, 2).
        out : array, optional
            Of this rank's number of elements, any shape; or this rank's place in ``x`` (NCCL's in place), and then
            nothing else of ``x`` is changed. None: a new C-ordered array of shape ``(x.shape[0] / size, ...)``, flat if
            that does not divide; in symmetric memory if ``x`` is.
        **options
            As for :meth:`all_reduce`.

        Returns
        -------
        array or Work
        """
        return self._pair(build.reduce_scatter, "reduce_scatter", x, out, options)

    def reduce_scatter_v(self, x: Any, counts: Any, out: Any = None, **options: Unpack[ReduceOptions]) -> Any:
        """Reduce an array over all ranks and leave each rank ``counts[rank]`` elements of it.

        Parameters
        ----------
        x : array
            Of ``sum(counts)`` elements.
        counts : sequence of int
            Elements for each rank; the same on every rank; 0 is legal.
        out : array, optional
            As for :meth:`reduce_scatter`. None: a new array, in rows like those of ``x`` where ``counts[rank]`` is
            whole rows.
        **options
            As for :meth:`all_reduce`.

        Returns
        -------
        array or Work
        """
        return self._collective(build_variable.reduce_scatter_v, x, counts, out, **options)
