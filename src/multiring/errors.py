"""Every error that multiring raises on purpose.

All derive from :class:`MultiringError` and from the built-in that a caller without multiring's names would expect.
"""

from __future__ import annotations

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "CheckpointError",
    "CollectiveTimeout",
    "CommunicatorClosed",
    "DeviceError",
    "LaunchError",
    "MismatchError",
    "MultiringError",
    "PeerLostError",
    "ScheduleError",
    "SharedMemoryError",
    "TopologyError",
]


class MultiringError(Exception):
    """Base of every error that multiring raises on purpose."""


class ArgumentError(MultiringError, ValueError):
    """An argument has a wrong value: raised at once, before anything is sent."""


class ArgumentTypeError(MultiringError, TypeError):
    """An argument has a wrong type or dtype: raised at once, before anything is sent."""


class ScheduleError(MultiringError, ValueError):
    """A schedule does not do what its collective promises."""


class TopologyError(MultiringError, ValueError):
    """A description of a machine is missing, strange, or not whole."""


class CheckpointError(MultiringError, ValueError):
    """A checkpoint is missing, damaged, or cannot be written."""


class LaunchError(MultiringError, RuntimeError):
    """The ranks of a job could not find each other."""


class SharedMemoryError(MultiringError, MemoryError):
    """Shared memory of the wanted size cannot be had."""


class DeviceError(MultiringError, RuntimeError):
    """A GPU or its driver refused a call."""


class MismatchError(MultiringError, ValueError):
    """The ranks disagree on the call: nothing was written, the communicator is closed."""


class PeerLostError(MultiringError, ConnectionError):
    """A peer process ended while a call needed it."""


class CollectiveTimeout(MultiringError, TimeoutError):
    """A peer did not do its part within the time limit."""


class CommunicatorClosed(MultiringError, RuntimeError):
    """The communicator was closed, by this rank, by a peer, or by an earlier error."""
