"""Whether all ranks describe the same parameters, before anything depends on it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, TypeVar

import numpy as np

from multiring.errors import ArgumentError, MismatchError

__all__ = ["agree", "all_succeed"]

DIGEST_BYTES = 32
Result = TypeVar("Result")


def agree(comm: Any, lines: Sequence[str], what: str) -> None:
    """Compare a description among the ranks; all ranks must call.

    Parameters
    ----------
    comm : Communicator
    lines : sequence of str
        One for each thing that must be equal.
    what : str
        What errors call the caller.

    Raises
    ------
    MismatchError
        On every rank, naming the ranks that differ from rank 0 and the first difference. The communicator stays open.
    """
    text = "\n".join(lines).encode()
    mine = np.frombuffer(hashlib.blake2b(text, digest_size=DIGEST_BYTES).digest(), np.uint8)
    digests = comm.all_gather(mine).reshape(comm.size, DIGEST_BYTES)
    odd = [rank for rank in range(comm.size) if (digests[rank] != digests[0]).any()]
    if not odd:
        return
    # All ranks have seen the same digests, so all come here.
    data = np.frombuffer(text or b"\0", np.uint8)
    sizes = comm.all_gather(np.array([data.size], np.int64))
    everything = comm.all_gather_v(data, sizes.tolist()).tobytes()
    ends = np.cumsum(sizes).tolist()
    texts = [everything[end - int(n) : end].decode() for end, n in zip(ends, sizes, strict=True)]
    first, other = texts[0].split("\n"), texts[odd[0]].split("\n")
    here, there = next(
        ((a, b) for a, b in zip_longest(first, other, fillvalue="nothing more") if a != b), ("nothing", "nothing")
    )
    raise MismatchError(
        f"{what}: the ranks' descriptions differ: rank 0 has {here!r}, rank {odd[0]} has {there!r}"
        f"{f', and ranks {odd[1:]} differ from rank 0 too' if len(odd) > 1 else ''}; wanted the same parameters, "
        "in the same order, and the same settings on every rank"
    )


def all_succeed(comm: Any, function: Callable[[], Result], what: str) -> Result:
    """Do something local on every rank and return its result, if no rank failed; all ranks must call.

    Raises
    ------
    ArgumentError
        Where another rank failed and this one did not. The rank that failed raises its own error.
    """
    error: Exception | None = None
    result: Any = None
    try:
        result = function()
    except Exception as failure:
        error = failure
    failed = comm.all_gather(np.array([error is not None], np.uint8))
    if error is not None:
        raise error
    if failed.any():
        ranks = np.flatnonzero(failed).tolist()
        raise ArgumentError(
            f"{what}: rank{'s' if len(ranks) > 1 else ''} {str(ranks)[1:-1]} could not: nothing was changed"
        )
    return result  # type: ignore[no-any-return]
