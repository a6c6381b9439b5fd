"""From the words of the protocol to an error that says what happened, where, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.drivers.control import Context
from multiring.collectives.plan import Plan
from multiring.collectives.schedules.algorithms import algorithms_for, build
from multiring.collectives.schedules.choose import Choice
from multiring.collectives.schedules.collective import COLLECTIVES
from multiring.errors import (
    ArgumentError,
    CollectiveTimeout,
    CommunicatorClosed,
    MismatchError,
    MultiringError,
    PeerLostError,
)
from multiring.kernels.dtypes import DTYPES
from multiring.kernels.operations import CUSTOM_CODE, OPERATIONS, PREMUL_SUM_CODE
from multiring.kernels.records import (
    ABORT_CLOSED,
    ABORT_CULPRIT_SHIFT,
    ABORT_MISMATCH,
    ABORT_PEER_LOST,
    ABORT_RANK_MASK,
    ABORT_REASON_SHIFT,
    ABORT_REPORTER_SHIFT,
    ABORT_TIMEOUT,
    ABORT_TOLD,
    ARRIVAL_COUNT,
    ARRIVAL_SEQUENCE,
    ARRIVAL_SIGNATURE,
    PHASE_ARRIVE,
    PHASE_BIND,
    PHASE_EXIT,
    PHASE_MAIL,
    PHASE_RUN,
    PHASE_START,
    REPORT_CHUNK,
    REPORT_COUNT,
    REPORT_GOT_BYTES,
    REPORT_GOT_SIGNATURE,
    REPORT_N_STEPS,
    REPORT_PEER,
    REPORT_PHASE,
    REPORT_SIGNATURE,
    REPORT_SLICE,
    REPORT_STEP,
    REPORT_TIMEOUT_NS,
    SIGNATURE_CLOSED,
    SIGNATURE_REFUSED,
)

__all__ = [
    "DEVICE_MARK",
    "abort_error",
    "describe_signature",
    "disagreement",
    "far_mismatch_error",
    "mismatch_error",
    "signature_of",
]

_COLLECTIVE_NAMES = {p.code: name for name, p in COLLECTIVES.items()}
_DTYPE_NAMES = {d.code: d.name for d in DTYPES.values()}
_OPERATION_NAMES = {
    **{o.code: name for name, o in OPERATIONS.items()},
    PREMUL_SUM_CODE: "premul_sum",
    CUSTOM_CODE: "a custom reduction",
}
_NO_OPERATION = 31
_KINDS: dict[str, type[MultiringError]] = {
    kind.__name__: kind for kind in (MismatchError, PeerLostError, CollectiveTimeout, CommunicatorClosed)
}
"""Errors that nodes tell each other of."""

DEVICE_MARK = 0xA5A5A5
"""Changes the plan's bits of a signature: a call on the device is none on the host, whatever else is equal."""

# A signature from its lowest bits: what it compares, and how many bits it takes.
_FIELDS = (
    ("plan", 24),
    ("order", 1),
    ("accumulate", 5),
    ("wire", 5),
    ("root", 14),
    ("op", 5),
    ("dtype", 5),
    ("collective", 4),
)


def signature_of(plan: Plan, counts: tuple[int, ...] | None) -> int:
    """Return the word that all ranks of a call must agree on."""
    request = plan.request
    values = {
        "plan": plan.hash(counts),
        "order": int(request.order is not None),
        "accumulate": request.accumulate_type.code,
        "wire": request.wire_type.code,
        "root": request.root,
        "op": request.operation.code if request.operation is not None else _NO_OPERATION,
        "dtype": request.dtype.code,
        "collective": COLLECTIVES[request.collective].code,
    }
    word = 0
    for name, bits in reversed(_FIELDS):
        word = (word << bits) | values[name]
    return word


def _unpack(signature: int) -> dict[str, str]:
    values = {}
    for name, bits in _FIELDS:
        values[name] = signature & ((1 << bits) - 1)
        signature >>= bits
    return {
        "collective": _COLLECTIVE_NAMES.get(values["collective"], "?"),
        "dtype": _DTYPE_NAMES.get(values["dtype"], "?"),
        "op": _OPERATION_NAMES.get(values["op"], "none"),
        "root": str(values["root"]),
        "wire": _DTYPE_NAMES.get(values["wire"], "?"),
        "accumulate": _DTYPE_NAMES.get(values["accumulate"], "?"),
        "order": "rank" if values["order"] else "None",
        "plan": f"{values['plan']:06x}",
    }


def describe_signature(signature: int, count: int) -> str:
    """Return a call as a person would write it."""
    if signature == SIGNATURE_REFUSED:
        return "a call that was refused for a bad argument"
    if signature == SIGNATURE_CLOSED:
        return "close()"
    values = _unpack(signature)
    reduction = f", op={values['op']!r}" if values["op"] != "none" else ""
    pattern = COLLECTIVES.get(values["collective"])
    root = f", root={values['root']}" if pattern is not None and pattern.rooted else ""
    return f"{values['collective']}({count} x {values['dtype']}{reduction}{root})"


def mismatch_error(context: Context, epoch: int, rank: int, plan: Plan | None = None) -> MultiringError:
    """Return the error of a call whose lines differ: the same on all ranks of a node but for "this rank"."""
    size = context.layout.n_ranks
    lines = [context.arrival(epoch, member) for member in range(size)]
    calls = {
        r: (int(line[ARRIVAL_SIGNATURE]), int(line[ARRIVAL_COUNT]))
        for r, line in zip(context.ranks, lines, strict=False)
    }
    return disagreement(calls, epoch, rank, plan, among_all=len(context.ranks) == size)


def disagreement(
    calls: dict[int, tuple[int, int]], epoch: int, rank: int, plan: Plan | None = None, *, among_all: bool = True
) -> MultiringError:
    """Return the error of calls that differ.

    Parameters
    ----------
    calls : dict of int to (int, int)
        By rank: signature and count.
    epoch : int
        The call's number.
    rank : int
        This rank.
    plan : Plan, optional
        Of its call.
    among_all : bool
        Whether these are all ranks of the communicator; others may have gone further.
    """
    closed = [r for r, (s, _) in calls.items() if s == SIGNATURE_CLOSED]
    if closed:
        return CommunicatorClosed(
            f"{_ranks(closed)} closed the communicator or exited while rank {rank} called"
            f" {describe_signature(*calls[rank])} (call {epoch}); all ranks must make the same calls before close()"
        )
    all_calls = list(calls.values())
    most = max(set(all_calls), key=lambda c: (all_calls.count(c), -all_calls.index(c)))
    odd = [r for r, c in calls.items() if c != most]
    groups: dict[tuple[int, int], list[int]] = {}
    for r in odd:
        groups.setdefault(calls[r], []).append(r)
    differences = "; ".join(
        f"{_ranks(members)}: {describe_signature(*call)} where {_ranks([r for r, c in calls.items() if c == most])}"
        f" {'have' if all_calls.count(most) > 1 else 'has'} {describe_signature(*most)}{_detail(call, most, plan)}"
        for call, members in groups.items()
    )
    unwritten = "nothing was written" if among_all else "nothing was written on their node"
    return MismatchError(
        f"the ranks disagree on call {epoch} of the communicator: {differences}; {unwritten}, the communicator"
        " is closed; make the same calls, with the same arguments, in the same order on all ranks"
    )


def far_mismatch_error(
    rank: int, peer: int, mine: tuple[int, int, int], theirs: tuple[int, int, int], plan: Plan
) -> MismatchError:
    """Return the error of two ranks of different nodes that make different calls.

    Parameters
    ----------
    rank, peer : int
        This rank, and the other.
    mine, theirs : (epoch, signature, count)
    plan : Plan
        Of this rank's call.
    """
    calls = f"{describe_signature(*theirs[1:])} where rank {rank} has {describe_signature(*mine[1:])}"
    if mine[1:] == theirs[1:]:
        detail = f" (their call {theirs[0]} of the communicator against call {mine[0]})"
    else:
        detail = _detail(theirs[1:], mine[1:], plan)
    return MismatchError(
        f"the ranks disagree on call {mine[0]} of the communicator: rank {peer}: {calls}{detail}; they are on different"
        " nodes, so outputs may have been written; the communicator is closed; make the same calls, with the same"
        " arguments, in the same order on all ranks"
    )


def _algorithms_by_hash(plan: Plan | None) -> dict[str, str]:
    """Return which algorithm a hash in a signature means, for the call that this rank made."""
    names: dict[str, str] = {}
    if plan is None:
        return names
    schedule = plan.schedule
    for name in algorithms_for(schedule.collective.name):
        try:
            other = Choice(build(name, schedule.collective, schedule.n_ranks), name, "", ())
        except ArgumentError:
            continue  # It cannot be built for this many ranks, so no rank has it.
        hashed = Plan(plan.request, other, plan.rank, plan.n_slots, plan.nodes).hash(None)
        names[f"{hashed:06x}"] = names[f"{hashed ^ DEVICE_MARK:06x}"] = name
    return names


def _detail(call: tuple[int, int], most: tuple[int, int], plan: Plan | None) -> str:
    if call[0] < 0 or most[0] < 0:
        return ""
    ours, theirs = _unpack(call[0]), _unpack(most[0])
    names = [n for n in ours if ours[n] != theirs[n]]
    parts = [f"count {call[1]} against {most[1]}"] if call[1] != most[1] else []
    # The plan follows from the rest: say it only where nothing else differs.
    shown = [n for n in names if n != "plan"]
    if not shown and not parts and names:
        algorithms = _algorithms_by_hash(plan)
        if ours["plan"] in algorithms and theirs["plan"] in algorithms:
            return f" (algorithm {algorithms[ours['plan']]} against {algorithms[theirs['plan']]})"
        return " (differing in the algorithm, the schedule, the counts of each rank, or the custom reduction)"
    parts += [f"{n} {ours[n]} against {theirs[n]}" for n in shown]
    return f" ({', '.join(parts)})" if parts else ""


def abort_error(context: Context, rank: int, hosts: Sequence[str], plan: Plan | None) -> MultiringError:
    """Return the error that the ABORT word stands for: every later call of every survivor raises it."""
    record = context.abort_word
    reason = (record >> ABORT_REASON_SHIFT) & 0xFF
    culprit = (record >> ABORT_CULPRIT_SHIFT) & ABORT_RANK_MASK
    reporter = (record >> ABORT_REPORTER_SHIFT) & ABORT_RANK_MASK
    if reason == ABORT_TOLD:
        kind, _, text = context.abort_text.partition("\n")
        return _KINDS.get(kind, MultiringError)(text)
    report = context.report(context.member_of[reporter])
    where = _position(report, reporter, plan, context)
    host = f" on {hosts[culprit]}" if culprit < len(hosts) else ""
    if reason == ABORT_PEER_LOST:
        return PeerLostError(
            f"rank {culprit}{host} ended{_or_was_cut(context, culprit)} while it was needed: {where}; the communicator"
            " is closed; look for the cause in that rank's output"
        )
    if reason == ABORT_TIMEOUT:
        late = _late_ranks(context, report, culprit)
        return CollectiveTimeout(
            f"{_ranks(late)} did not come within the time limit of {int(report[REPORT_TIMEOUT_NS]) / 1e9:g} s: {where};"
            " look what keeps them, or raise timeout= or MULTIRING_TIMEOUT_S; the communicator is closed"
        )
    if reason == ABORT_MISMATCH:
        return MismatchError(
            f"rank {reporter} got another message from rank {culprit} than it expected:"
            f" {_message(report[REPORT_GOT_BYTES], report[REPORT_GOT_SIGNATURE])} came, and {where}; make send and recv"
            " agree in size and dtype; the communicator is closed"
        )
    if reason == ABORT_CLOSED:
        return CommunicatorClosed(
            f"rank {culprit} closed the communicator or exited: {where}; it must do its part before close()"
        )
    return CommunicatorClosed(f"rank {reporter} aborted the communicator: {context.abort_text or 'no reason given'}")


def _late_ranks(context: Context, report: NDArray[np.int64], culprit: int) -> list[int]:
    size = context.layout.n_ranks
    if int(report[REPORT_PHASE]) != PHASE_ARRIVE:
        return [culprit]
    # The epoch of the call that timed out is the highest that anybody announced.
    newest = max(int(context.arrival(e, r)[ARRIVAL_SEQUENCE]) for e in (0, 1) for r in range(size))
    late = [context.ranks[m] for m in range(size) if int(context.arrival(newest, m)[ARRIVAL_SEQUENCE]) < newest]
    return late or [culprit]


def _is_here(context: Context, rank: int) -> bool:
    return context.member_of.get(rank, 0) < context.layout.n_ranks


def _or_was_cut(context: Context, rank: int) -> str:
    return "" if _is_here(context, rank) else " or cannot be reached over MPI"


def _position(report: NDArray[np.int64], reporter: int, plan: Plan | None, context: Context) -> str:
    phase = int(report[REPORT_PHASE])
    peer = int(report[REPORT_PEER])
    signature, count = int(report[REPORT_SIGNATURE]), int(report[REPORT_COUNT])
    if phase == PHASE_MAIL:
        return f"rank {reporter} waits for rank {peer} in send or recv of {_message(count, signature)}"
    call = describe_signature(signature, count)
    if phase == PHASE_RUN:
        step, steps = int(report[REPORT_STEP]), int(report[REPORT_N_STEPS])
        chunk, piece = int(report[REPORT_CHUNK]), int(report[REPORT_SLICE])
        stage = f"step {step + 1}/{steps}" if step >= 0 else "copying its input"
        algorithm = f" ({plan.choice.algorithm})" if plan is not None else ""
        return (
            f"rank {reporter} waits in {call}{algorithm} at {stage} for chunk {chunk}, slice {piece}, from rank {peer}"
            f" over {context.link if _is_here(context, peer) else 'MPI'}"
        )
    if phase == PHASE_EXIT:
        return f"rank {reporter} waits at the end of {call} for rank {peer} to be done with its arrays"
    if phase == PHASE_BIND:
        return f"rank {reporter} looks for rank {peer}'s array for {call}"
    if phase in (PHASE_START, PHASE_ARRIVE):
        return f"rank {reporter} waits for rank {peer} to call {call}"
    return f"rank {reporter} waits for rank {peer}"


def _message(n_bytes: int, dtype_code: int) -> str:
    return f"{n_bytes} bytes of {_DTYPE_NAMES.get(int(dtype_code), '?')}"


def _ranks(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return "ranks " + ", ".join(map(str, ranks[:-1])) + f" and {ranks[-1]}"
