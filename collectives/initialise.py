"""From a started process to an executor: find the ranks, group them by node, join them."""

from __future__ import annotations

import atexit
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

from multiring.collectives.bootstrap import Bootstrap, connect
from multiring.collectives.choose_device import agree_on_device
from multiring.collectives.drivers.network import Network
from multiring.collectives.executor import Executor
from multiring.collectives.farewell import expect, say_farewell
from multiring.collectives.living import living
from multiring.collectives.nodes import Nodes
from multiring.collectives.time_limit import seconds_of
from multiring.errors import ArgumentError, ArgumentTypeError, LaunchError

__all__ = ["from_mpi", "init"]

JOIN_TIMEOUT_S = 60.0


def init(device: str, timeout_s: float) -> Executor:
    """Join the ranks that the launcher started.

    Parameters
    ----------
    device : str
        ``"auto"``, ``"host"`` or ``"cuda"``.
    timeout_s : float
        How long a call waits for its peers; ``MULTIRING_TIMEOUT_S`` wins.

    Raises
    ------
    LaunchError, SharedMemoryError, ArgumentError
    """
    limit_s = _timeout(timeout_s)
    return _join(connect(os.environ, min(limit_s, JOIN_TIMEOUT_S)), device, limit_s)


def from_mpi(comm: Any, device: str, timeout_s: float) -> Executor:
    """Join the ranks of an mpi4py communicator, which is duplicated."""
    limit_s = _timeout(timeout_s)
    _check_mpi(comm)
    from multiring.collectives.bootstrap.mpi import MpiBootstrap

    return _join(MpiBootstrap(comm, min(limit_s, JOIN_TIMEOUT_S)), device, limit_s)


def _check_mpi(comm: Any) -> None:
    """Refuse what is no mpi4py communicator of one group; MPI is not loaded for that."""
    mpi = sys.modules.get("mpi4py.MPI")
    text = f"from_mpi: comm: got {comm!r}, wanted a communicator of mpi4py, such as mpi4py.MPI.COMM_WORLD"
    if mpi is None or not isinstance(comm, mpi.Comm):
        raise ArgumentTypeError(text)
    if not isinstance(comm, mpi.Intracomm) or comm == mpi.COMM_NULL:
        raise ArgumentError(f"{text}; neither COMM_NULL nor an intercommunicator has ranks that could join")


def _timeout(timeout_s: float) -> float:
    text = os.environ.get("MULTIRING_TIMEOUT_S")
    if text is None:
        return timeout_s
    try:
        return seconds_of("MULTIRING_TIMEOUT_S", float(text))
    except (ValueError, ArgumentError):
        raise ArgumentError(
            f"MULTIRING_TIMEOUT_S: got {text!r}, wanted a finite number of seconds above 0 and at most 1e9"
        ) from None


def _join(bootstrap: Bootstrap, device: str, timeout_s: float) -> Executor:
    try:
        nodes = _nodes(bootstrap)
        where = agree_on_device(device, bootstrap.all_gather)
        network = _network(bootstrap, nodes) if nodes.count > 1 else None
        executor = _executor(bootstrap, where, timeout_s, nodes, network)
        if comm := _mpi_of(bootstrap):
            expect(comm, bootstrap.all_gather)
    finally:
        bootstrap.close()
    # Last registered, first run: before what MPI and the user registered earlier.
    atexit.unregister(_close_all)
    atexit.register(_close_all)
    return executor


def _executor(bootstrap: Bootstrap, device: str, timeout_s: float, nodes: Nodes, network: Network | None) -> Executor:
    rank, size, exchange = bootstrap.rank, bootstrap.size, bootstrap.all_gather
    if device == "host":
        return Executor(rank, size, exchange, timeout_s=timeout_s, nodes=nodes, network=network)
    from multiring.collectives.cuda_executor import CudaExecutor

    return CudaExecutor(rank, size, exchange, timeout_s=timeout_s, nodes=nodes, network=network)


def _nodes(bootstrap: Bootstrap) -> Nodes:
    """Find out which ranks are on one node: those with equal identities, whatever their hosts are called."""
    facts = [json.loads(b) for b in bootstrap.all_gather(json.dumps([_node_identity(), platform.node()]).encode())]
    return Nodes.of([tuple(identity) for identity, _ in facts], [host for _, host in facts])


def _node_identity() -> list[str]:
    """Return what ranks of one node have in common."""
    forced = os.environ.get("MULTIRING_HOST_ID")
    if forced:
        return ["MULTIRING_HOST_ID", forced]
    # Two containers on one machine may have one host name or two: the boot tells machines apart, and whether memory
    # can be shared is then tried for real.
    try:
        return ["boot", Path("/proc/sys/kernel/random/boot_id").read_text().strip()]
    except OSError:
        return ["host", platform.node()]


def _mpi_of(bootstrap: Bootstrap) -> Any:
    """Return the MPI communicator that the ranks met over, or None."""
    if "mpi4py.MPI" not in sys.modules:
        return None
    from multiring.collectives.bootstrap.mpi import MpiBootstrap

    return bootstrap.comm if isinstance(bootstrap, MpiBootstrap) else None


def _network(bootstrap: Bootstrap, nodes: Nodes) -> Network:
    comm = _mpi_of(bootstrap)
    if comm is not None:
        from multiring.collectives.drivers.mpi import Mpi

        return Mpi(comm.Dup())
    hosts = sorted(set(nodes.hosts))
    raise LaunchError(
        f"the {bootstrap.size} ranks are on {nodes.count} nodes ({', '.join(hosts)}), and were started without MPI;"
        " between nodes multiring needs it: start the program with mpiexec, or with srun and an MPI plug-in"
        " (srun --mpi=pmix)"
    )


def _close_all() -> None:
    """Tell the peers of every open communicator that this process leaves."""
    for executor in living():
        executor.close()
    say_farewell()
