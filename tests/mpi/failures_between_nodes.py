"""A rank's program: what goes wrong between nodes, and what every rank is told. Run under mpiexec.

``failures_between_nodes.py LAYOUT SCENARIO...``: each rank writes ``SCENARIO RANK KIND TEXT`` for each scenario.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

import multiring as mr

LIMIT_S = 2.0
BIG = 1 << 20
VICTIM = 3


def ones(count: int, dtype: str = "float32") -> np.ndarray:
    return np.ones(count, dtype)


def counts_differ(comm: mr.Communicator) -> None:
    comm.all_reduce(ones(100 if comm.node == 0 else 200))


def large_counts_differ(comm: mr.Communicator) -> None:
    comm.all_reduce(ones(BIG if comm.node == 0 else 2 * BIG))


def collectives_differ(comm: mr.Communicator) -> None:
    if comm.node == 0:
        comm.all_reduce(ones(100), algorithm="ring")
    else:
        comm.broadcast(ones(100), algorithm="ring")


def ops_differ(comm: mr.Communicator) -> None:
    comm.all_reduce(ones(100), op="sum" if comm.node == 0 else "max", algorithm="recursive_doubling")


def algorithms_differ(comm: mr.Communicator) -> None:
    comm.all_reduce(ones(5000), algorithm="direct" if comm.node == 0 else "one_shot")


def one_call_more(comm: mr.Communicator) -> None:
    if comm.node == 0:
        comm.broadcast(ones(100), root=0)
    comm.all_reduce(ones(100))
    comm.all_reduce(ones(100))


def a_node_disagrees_inside(comm: mr.Communicator) -> None:
    comm.all_reduce(ones(100 if comm.rank else 101))


def refused_on_one_rank(comm: mr.Communicator) -> None:
    comm.all_reduce(ones(100), op="no such thing" if comm.rank == 0 else "sum")


def never_comes(comm: mr.Communicator) -> None:
    if comm.rank == VICTIM:
        time.sleep(LIMIT_S + 1.5)
    comm.all_reduce(ones(100))


def leaves_early(comm: mr.Communicator) -> None:
    if comm.rank == VICTIM:
        comm.close()
        time.sleep(1)
        raise mr.CommunicatorClosed("it closed")
    comm.all_reduce(ones(100))


def aborted(comm: mr.Communicator) -> None:
    if comm.rank == 0:
        time.sleep(0.3)
        comm.abort("had enough")
    comm.all_reduce(ones(100))


def messages_differ(comm: mr.Communicator) -> None:
    if comm.rank == 0:
        comm.send(ones(100), VICTIM)
    if comm.rank == VICTIM:
        comm.recv(ones(200), 0)
    comm.barrier()


def large_messages_differ(comm: mr.Communicator) -> None:
    if comm.rank == 0:
        comm.send(ones(BIG), VICTIM)
    if comm.rank == VICTIM:
        comm.recv(ones(BIG, "int32"), 0)
    comm.barrier()


def message_never_comes(comm: mr.Communicator) -> None:
    if comm.rank == VICTIM:
        comm.recv(ones(200), 0)
    elif comm.rank == 0:
        time.sleep(LIMIT_S + 1)
    comm.barrier()


def killed_in_a_call(comm: mr.Communicator) -> None:
    x = ones(BIG)
    for number in range(1_000_000):
        if number == 5 and comm.rank == VICTIM:
            os.kill(os.getpid(), signal.SIGKILL)
        comm.all_reduce(x)


def killed_between_calls(comm: mr.Communicator) -> None:
    comm.all_reduce(ones(10))
    if comm.rank == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.all_reduce(ones(10))
    comm.all_reduce(ones(10))


def killed_while_all_others_wait_elsewhere(comm: mr.Communicator) -> None:
    """Nobody of the victim's node waits for it: they wait for other nodes."""
    if comm.rank == VICTIM:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    if comm.rank == 2:
        comm.recv(ones(10), 0)
    if comm.rank == 0:
        comm.recv(ones(10), VICTIM)
        comm.send(ones(10), 2)
    comm.barrier()


SCENARIOS: dict[str, Callable[[mr.Communicator], None]] = {
    found.__name__: found
    for found in (
        counts_differ,
        large_counts_differ,
        collectives_differ,
        ops_differ,
        algorithms_differ,
        one_call_more,
        a_node_disagrees_inside,
        refused_on_one_rank,
        never_comes,
        leaves_early,
        aborted,
        messages_differ,
        large_messages_differ,
        message_never_comes,
        killed_in_a_call,
        killed_between_calls,
        killed_while_all_others_wait_elsewhere,
    )
}


def main() -> None:
    """Run the scenarios, each on a communicator of its own."""
    layout, names = sys.argv[1], sys.argv[2:]
    rank = MPI.COMM_WORLD.rank
    os.environ["MULTIRING_HOST_ID"] = layout[rank]
    for name in names:
        comm = mr.Communicator.from_mpi(MPI.COMM_WORLD, timeout=LIMIT_S)
        begin = time.monotonic()
        answers = []
        try:
            SCENARIOS[name](comm)
            answers.append("none")
        except (mr.MultiringError, ValueError) as error:
            answers.append(f"{type(error).__name__} {error}")
        took_s = time.monotonic() - begin
        try:
            comm.barrier()
            answers.append("none")
        except mr.MultiringError as error:
            answers.append(f"{type(error).__name__} {error}")
        slow = "slow" if took_s > LIMIT_S + 3 and "never_comes" not in name else "soon"
        sys.stdout.write("".join(f"{name}|{rank}|{slow}|{answer}\n" for answer in answers))
        sys.stdout.flush()
        if not name.startswith("killed"):
            MPI.COMM_WORLD.Barrier()


if __name__ == "__main__":
    main()
