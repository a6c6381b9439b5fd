"""multiring: collective communication as schedules that are verified, priced, explained and executed.

``comm = multiring.init()`` gives a :class:`Communicator`. Everything but the errors is loaded at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from multiring.errors import (
    ArgumentError,
    ArgumentTypeError,
    CheckpointError,
    CollectiveTimeout,
    CommunicatorClosed,
    DeviceError,
    LaunchError,
    MismatchError,
    MultiringError,
    PeerLostError,
    ScheduleError,
    SharedMemoryError,
    TopologyError,
)

if TYPE_CHECKING:
    from multiring import optim, sharded
    from multiring.collectives.communicator import Communicator, PreparedCall, Work
    from multiring.collectives.schedules.schedule import Schedule
    from multiring.collectives.sharded import ShardedOptimizer
    from multiring.kernels.operations import Reduction, premul_sum, reduction

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "CheckpointError",
    "CollectiveTimeout",
    "Communicator",
    "CommunicatorClosed",
    "DeviceError",
    "LaunchError",
    "MismatchError",
    "MultiringError",
    "PeerLostError",
    "PreparedCall",
    "Reduction",
    "Schedule",
    "ScheduleError",
    "ShardedOptimizer",
    "SharedMemoryError",
    "TopologyError",
    "Work",
    "__version__",
    "init",
    "optim",
    "premul_sum",
    "reduction",
    "sharded",
]
__version__ = "0.1.0"

_LATE = {
    "Communicator": "multiring.collectives.communicator",
    "PreparedCall": "multiring.collectives.communicator",
    "Work": "multiring.collectives.communicator",
    "Schedule": "multiring.collectives.schedules.schedule",
    "ShardedOptimizer": "multiring.collectives.sharded",
    "Reduction": "multiring.kernels.operations",
    "premul_sum": "multiring.kernels.operations",
    "reduction": "multiring.kernels.operations",
}
_MODULES = ("optim", "sharded")


def init(device: str = "auto", timeout: float = 300.0) -> Communicator:
    """Find the other ranks and return the communicator of all of them.

    Under mpiexec or srun through MPI, under ``multiring launch`` or torchrun through their environment, else one rank
    alone.

    Parameters
    ----------
    device : str
        Where the arrays of calls are: ``"host"``, ``"cuda"``, or ``"auto"``: on GPUs if every rank has one and CuPy.
    timeout : float
        Seconds that a call waits for its peers; above 0 and at most 1e9.

    Raises
    ------
    ArgumentError
        If an argument is wrong.
    LaunchError
        If the ranks cannot find each other.
    """
    from multiring.collectives.communicator.communicator import Communicator
    from multiring.collectives.communicator.start import start_executor

    return Communicator(start_executor(device, timeout))


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"multiring.{name}")
    module = _LATE.get(name)
    if module is None:
        raise AttributeError(f"module 'multiring' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
