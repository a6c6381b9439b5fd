"""Messages between two ranks, and groups of calls."""

from __future__ import annotations

from typing import Any, Unpack

from multiring.collectives.communicator import build_transfer
from multiring.collectives.communicator.base import Base
from multiring.collectives.communicator.group import Group
from multiring.collectives.communicator.options import PeerOptions

__all__ = ["Transferring"]


class Transferring(Base):
    """send, recv, send_recv and group."""

    def send(self, x: Any, peer: int, **options: Unpack[PeerOptions]) -> Any:
        """Send an array to another rank.

        Parameters
        ----------
        x : array
        peer : int
            The rank that receives it, with an array of the same number of elements and dtype.
        **options
            ``timeout``, ``async_op``. Asynchronous sends and receives start together, when the first of them is waited
            for or asked, or another call is made.

        Returns
        -------
        None or Work

        Notes
        -----
        Two ranks that both send first may wait for each other: use :meth:`send_recv` or :meth:`group`.
        """
        return self._transfer(build_transfer.send, x, peer, grouped=self._together(options), **options)

    def recv(self, x: Any, peer: int, **options: Unpack[PeerOptions]) -> Any:
        """Receive an array from another rank.

        Parameters
        ----------
        x : array
            Where it goes: of the number of elements and dtype that are sent.
        peer : int
            The rank that sends it.
        **options
            As for :meth:`send`.

        Returns
        -------
        array or Work
            ``x``.
        """
        return self._transfer(build_transfer.recv, x, peer, grouped=self._together(options), **options)

    def send_recv(
        self, send_array: Any, destination: int, receive_array: Any, source: int, **options: Unpack[PeerOptions]
    ) -> Any:
        """Send one array and receive another at once; a rank may send to itself.

        Parameters
        ----------
        send_array : array
        destination : int
            The rank that ``send_array`` goes to.
        receive_array : array
            Apart from ``send_array``.
        source : int
            The rank that ``receive_array`` comes from.
        **options
            As for :meth:`send`.

        Returns
        -------
        array or Work
            ``receive_array``.
        """
        return self._transfer(build_transfer.send_recv, send_array, destination, receive_array, source, **options)

    def group(self) -> Group:
        """Return a context that launches several calls as one.

        ``with comm.group():`` collects this thread's calls and launches them at the end of the block: sends and
        receives together, then collectives in their order. The calls must not depend on each other's results.
        """
        return Group(self._engine)

    def _together(self, options: PeerOptions) -> bool:
        """Whether a message may go to this rank itself: where another call can still receive it."""
        return bool(options.get("async_op")) or self._engine.own_group() is not None

    def _transfer(self, build: Any, *args: Any, **options: Any) -> Any:
        engine = self._engine
        engine.require_open()
        # A bad argument here is not published: only a pair of ranks is concerned, and their peer's call is compared.
        return engine.launch(build(engine.executor, *args, **options), options.get("async_op", False))
