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
from multiring.collectives.executor import Executor
from multiring.collectives.living import living
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
    over_mpi = "mpi4py.MPI" in sys.modules
    return _join(connect(os.environ, min(limit_s, JOIN_TIMEOUT_S)), device, limit_s, over_mpi=over_mpi)


def from_mpi(comm: Any, device: str, timeout_s: float) -> Executor:
    """Join the ranks of an mpi4py communicator, which is duplicated."""
    limit_s = _timeout(timeout_s)
    _check_mpi(comm)
    from multiring.collectives.bootstrap.mpi import MpiBootstrap

    return _join(MpiBootstrap(comm, min(limit_s, JOIN_TIMEOUT_S)), device, limit_s, over_mpi=True)


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


def _join(bootstrap: Bootstrap, device: str, timeout_s: float, *, over_mpi: bool) -> Executor:
    try:
        _require_one_node(bootstrap)
        executor = _executor(bootstrap, agree_on_device(device, bootstrap.all_gather), timeout_s)
    finally:
        bootstrap.close()
    executor.over_mpi = over_mpi
    # Last registered, first run: before what MPI and the user registered earlier.
    atexit.unregister(_close_all)
    atexit.register(_close_all)
    return executor


def _executor(bootstrap: Bootstrap, device: str, timeout_s: float) -> Executor:
    if device == "host":
        return Executor(bootstrap.rank, bootstrap.size, bootstrap.all_gather, timeout_s=timeout_s)
    from multiring.collectives.cuda_executor import CudaExecutor

    return CudaExecutor(bootstrap.rank, bootstrap.size, bootstrap.all_gather, timeout_s=timeout_s)


def _node_identity() -> str:
    """Return what ranks of one node have in common."""
    forced = os.environ.get("MULTIRING_HOST_ID")
    if forced:
        return forced
    # Two containers on one machine may have one host name or two: the boot tells machines apart, and whether memory
    # can be shared is then tried for real.
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()


def _require_one_node(bootstrap: Bootstrap) -> None:
    nodes = [json.loads(b) for b in bootstrap.all_gather(json.dumps([_node_identity(), platform.node()]).encode())]
    names: dict[str, str] = dict(nodes)
    if len(names) > 1:
        raise LaunchError(
            f"the {bootstrap.size} ranks are on {len(names)} nodes ({', '.join(sorted(names.values()))}), wanted one:"
            " collectives between nodes are not built yet; start all ranks on one host"
        )


def _close_all() -> None:
    """Tell the peers of every open communicator that this process leaves."""
    failed = False
    for executor in living():
        failed = failed or (executor.over_mpi and executor.failed)
        executor.close()
    if failed:
        # A peer is gone: MPI_Finalize would wait for it for ever, so the process ends without it.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1 if getattr(sys, "last_value", None) is not None else 0)
