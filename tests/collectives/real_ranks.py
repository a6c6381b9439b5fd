"""Test bodies on real ranks: forked processes that meet in shared memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.ranks import results, run_ranks

TIMEOUT_S = 20.0


def on_ranks(size: int, function: Callable[[Any], Any]) -> list[Any]:
    """Call ``function(communicator)`` in ``size`` processes and return the results."""
    from multiring import Communicator
    from multiring.collectives.entries import entries
    from multiring.collectives.executor import Executor

    entries()  # compiled once, here, for all the children

    def body(rank: int, exchange: Callable[[bytes], list[bytes]]) -> Any:
        comm = Communicator(Executor(rank, size, exchange, timeout_s=TIMEOUT_S))
        result = function(comm)
        comm.close()
        return [result]  # to run_ranks, None would be a rank that did not end

    return [answer[0] for answer in results(run_ranks(size, body, timeout_s=90.0))]
