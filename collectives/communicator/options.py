"""The keyword arguments that calls share, and their checks."""

from __future__ import annotations

import operator as _operator
import weakref
from typing import Any, TypedDict

from multiring.collectives.communicator.contract import Executor
from multiring.collectives.request import Request
from multiring.collectives.schedules.algorithms import check_algorithm
from multiring.collectives.schedules.ordering import is_rank_ordered, same_on_every_rank
from multiring.collectives.schedules.schedule import Schedule
from multiring.collectives.schedules.verify import verify
from multiring.collectives.time_limit import seconds_of
from multiring.errors import ArgumentError, ArgumentTypeError, ScheduleError
from multiring.kernels.dtypes import DType, dtype_of
from multiring.kernels.operations import Reduction, check_operation, operation_of

__all__ = ["MoveOptions", "PeerOptions", "ReduceOptions", "index_of", "request_of", "root_of", "timeout_of"]


class PeerOptions(TypedDict, total=False):
    """Keyword arguments of sends and receives."""

    timeout: float | None
    """Seconds until :class:`~multiring.CollectiveTimeout`, above 0 and at most 1e9; None: the communicator's."""
    async_op: bool
    """Return a :class:`~multiring.Work` at once."""
    stream: Any
    """The CUDA stream that the arrays are ready in and the result is wanted in: a handle, or an object of CuPy, torch
    or another library. None: the arrays' own stream, as far as they say. Only for arrays in CUDA memory."""


class MoveOptions(PeerOptions, total=False):
    """Keyword arguments of collectives that do not reduce."""

    wire: Any
    """Element type on the way, for floating-point arrays; None: the array's."""
    algorithm: str | None
    """Name of the algorithm; None: the cheapest."""
    schedule: Schedule | None
    """A schedule of your own, in place of an algorithm."""
    check: bool | None
    """True: ask the device for errors after the call, which matters where calls are asynchronous by themselves (CUDA).
    The ranks' calls are compared always."""


class ReduceOptions(MoveOptions, total=False):
    """Keyword arguments of collectives that reduce."""

    op: str | Reduction
    """``"sum"`` (the default), ``"prod"``, ``"min"``, ``"max"``, ``"avg"``, ``"band"``, ``"bor"``, ``"bxor"``,
    :func:`multiring.premul_sum` or :func:`multiring.reduction`."""
    accumulate: Any
    """Element type of the sums; None: float32 for 16-bit floats, else the array's."""
    order: str | None
    """``"rank"``: reduce in ascending rank, whatever the algorithm."""


_verified: weakref.WeakValueDictionary[int, Schedule] = weakref.WeakValueDictionary()
"""Schedules of users that keep their promise, by address."""

_MOVE = frozenset(MoveOptions.__annotations__)
_REDUCE = frozenset(ReduceOptions.__annotations__)


def request_of(
    executor: Executor,
    collective: str,
    dtype: DType,
    options: dict[str, Any],
    *,
    reduces: bool,
    root: int = 0,
    method: str | None = None,
) -> Request:
    """Check a call's keyword arguments and return its request.

    Parameters
    ----------
    executor, collective, dtype, options, reduces, root
        The call.
    method : str, optional
        What errors call it, where that is another name than the collective's.

    Raises
    ------
    ArgumentTypeError
        If the element type does not have the operation, or a keyword is unknown.
    ArgumentError
        If a value is wrong.
    ScheduleError
        If a schedule does not keep its promise.
    """
    name = method or collective
    given = dict(options)
    check_names(name, given, _REDUCE if reduces else _MOVE)
    operation = None
    if reduces:
        operation = operation_of(given.get("op", "sum"), f"{name}: op")
        check_operation(operation, dtype, f"{name}: ")
    order = given.get("order")
    if order not in (None, "rank"):
        raise ArgumentError(f"{name}: order: got {order!r}, wanted None or 'rank'")
    algorithm, schedule = given.get("algorithm"), given.get("schedule")
    if algorithm is not None and not isinstance(algorithm, str):
        raise ArgumentTypeError(
            f"{name}: algorithm: got {type(algorithm).__name__}, wanted a name; pass a Schedule as schedule="
        )
    if algorithm is not None:
        try:
            check_algorithm(algorithm.replace("box:auto", "box:1", 1), collective)
        except ArgumentError as error:
            raise ArgumentError(f"{name}: {error}") from None
    if schedule is not None:
        _check_schedule(executor, name, collective, schedule, algorithm, root)
        if order == "rank" and not is_rank_ordered(schedule):
            raise ArgumentError(
                f"{name}: got order='rank' and a schedule ({schedule.algorithm}) that does not add in ascending "
                "rank, wanted one that does, or leave order out"
            )
    return Request(
        collective,
        dtype,
        operation,
        root,
        _float_type(name, "wire", given.get("wire"), dtype),
        _float_type(name, "accumulate", given.get("accumulate"), dtype),
        order,
        algorithm,
        schedule,
    )


def check_names(collective: str, given: dict[str, Any], known: frozenset[str]) -> None:
    """Refuse keywords that a method does not have, and values of the wrong kind of those that all have."""
    for name in given:
        if name not in known:
            raise ArgumentTypeError(f"{collective}: got keyword {name!r}, wanted one of {', '.join(sorted(known))}")
    for name in ("async_op", "check"):
        value = given.get(name)
        if value is not None and not isinstance(value, bool):
            raise ArgumentTypeError(f"{collective}: {name}: got {value!r}, wanted True or False")


def _float_type(collective: str, name: str, value: Any, dtype: DType) -> DType | None:
    if value is None:
        return None
    wanted = dtype_of(value, f"{collective}: {name}")
    if wanted == dtype:
        return None if name == "wire" else wanted
    if wanted.kind != "float" or dtype.kind != "float":
        raise ArgumentTypeError(
            f"{collective}: {name}: got {wanted.name} for an array of {dtype.name}, wanted two floating-point "
            "types, or leave it out"
        )
    return wanted


def _check_schedule(
    executor: Executor, name: str, collective: str, schedule: Any, algorithm: str | None, root: int
) -> None:
    if not isinstance(schedule, Schedule):
        raise ArgumentTypeError(f"{name}: schedule: got {type(schedule).__name__}, wanted a Schedule")
    if algorithm is not None:
        raise ArgumentError(f"{name}: got algorithm={algorithm!r} and a schedule, wanted one of them")
    if schedule.n_ranks != executor.size:
        raise ArgumentError(f"{name}: schedule: got one for {schedule.n_ranks} ranks, wanted {executor.size}")
    if schedule.collective.name != collective or schedule.collective.root != root:
        raise ArgumentError(
            f"{name}: schedule: got one for {schedule.collective.name} with root {schedule.collective.root}, "
            f"wanted {collective} with root {root}"
        )
    _verify_once(schedule)


def _verify_once(schedule: Schedule) -> None:
    """Verify a user's schedule at its first use; it never changes."""
    # By identity: its value is hashed and compared transfer by transfer.
    if _verified.get(id(schedule)) is schedule:
        return
    verify(schedule)
    if not same_on_every_rank(schedule):
        raise ScheduleError(
            f"{schedule.algorithm} {schedule.collective.name} of {schedule.n_ranks} ranks adds in another order on "
            "another rank, so that their results could differ in the last bit, wanted one sum that is copied"
        )
    _verified[id(schedule)] = schedule


def index_of(collective: str, name: str, value: Any) -> int:
    """Return a whole number given as Python's or numpy's integer; a bool is refused."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return _operator.index(value)
    except TypeError:
        raise ArgumentTypeError(f"{collective}: {name}: got {value!r}, wanted a whole number") from None


def root_of(executor: Executor, collective: str, value: Any, name: str = "root") -> int:
    """Return a rank given as argument.

    Raises
    ------
    ArgumentError
        If there is no such rank.
    """
    rank = index_of(collective, name, value)
    if not 0 <= rank < executor.size:
        raise ArgumentError(f"{collective}: {name}: got {rank}, wanted a rank from 0 to {executor.size - 1}")
    return rank


def timeout_of(collective: str, value: Any) -> float | None:
    """Return a time limit in seconds, or None.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        See :func:`~multiring.collectives.time_limit.seconds_of`.
    """
    return None if value is None else seconds_of(f"{collective}: timeout", value, or_none=True)
