"""Inputs whose result is known exactly, whatever the order of the additions.

Every element is a small whole number, so that every partial sum is exact in the narrowest type it passes through and
any order gives one answer. The values repeat with a period that is a prime, so that no chunk boundary falls on it and a
part that lies in the wrong place is seen; what is expected is worked out for one period in float64 and compared with
every element, without tolerance.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from multiring.bench.cases import Case
from multiring.kernels.dtypes import DType, numpy_dtype

__all__ = ["Inputs", "count_wrong", "poison", "write_periodic"]

Template = NDArray[Any]

_PRIMES = (113, 61, 31, 17, 7, 5, 3, 2)
# Sums stay inside 8-bit integers too: Open MPI 5 saturates there, where others wrap.
_EXACT_WHOLE = {"bfloat16": 256, "float16": 2048, "int8": 127, "uint8": 255}
_BLOCK_ELEMENTS = 1 << 16
_MOST_FACTORS = 6


class Inputs:
    """The inputs of every rank in one case, and the results that they must give.

    Parameters
    ----------
    case : Case
    seed : int
        Moves the pattern, so that a result left over from another call is not right by chance.
    constant : bool
        One value for each part instead of a pattern: for the rewriting between timed calls, which then only writes.
    """

    def __init__(self, case: Case, seed: int = 0, constant: bool = False) -> None:
        self.case = case
        self.seed = seed
        self.constant = constant
        self.dtype = numpy_dtype(case.dtype)
        self.period = _period(case)

    def source(self, rank: int, part: int) -> Template:
        """Return one period of what ``rank`` contributes to ``part``, in the case's dtype."""
        return self._cut(self._exact(rank, part)).astype(self.dtype)

    def sent(self, rank: int) -> list[Template]:
        """Return the templates of the parts of the rank's send buffer; empty where it sends nothing."""
        case = self.case
        if case.collective in ("broadcast", "scatter") and rank != case.root:
            return []
        if case.shape.send_parts:
            return [self.source(rank, part) for part in range(case.n_ranks)]
        return [self.source(rank, rank if not case.shape.reduces else 0)]

    def received(self, rank: int) -> list[Template]:
        """Return the templates of the parts of the rank's receive buffer; empty where it receives nothing."""
        case, ranks = self.case, range(self.case.n_ranks)
        match case.collective:
            case "all_reduce":
                return [self._combined(0)]
            case "reduce":
                return [self._combined(0)] if rank == case.root else []
            case "reduce_scatter":
                return [self._combined(rank)]
            case "broadcast":
                return [self.source(case.root, case.root)]
            case "all_gather":
                return [self.source(other, other) for other in ranks]
            case "gather":
                return [self.source(other, other) for other in ranks] if rank == case.root else []
            case "scatter":
                return [self.source(case.root, rank)]
            case "all_to_all":
                return [self.source(other, rank) for other in ranks]
            case _:
                before = (rank - 1) % case.n_ranks
                return [self.source(before, before)]

    def _cut(self, template: Template) -> Template:
        return template[self.seed % self.period :][:1] if self.constant else template

    def _exact(self, rank: int, part: int) -> Template:
        case = self.case
        index = np.arange(self.period, dtype=np.int64) + 7 * part + 11 * self.seed
        name = case.operation.name if case.operation is not None else "none"
        if name == "prod":
            # Powers of two: exact in every order, and in range because only a few ranks have a 2.
            value = np.where((index + rank) % 3 == 0, 2, 1) if rank < _MOST_FACTORS else np.ones_like(index)
        elif name == "avg":
            # One whole number for all ranks, and offsets that cancel: the mean is that number.
            offset = 0 if case.n_ranks % 2 and rank == case.n_ranks - 1 else 1 - 2 * (rank % 2)
            value = 1 + index % self.period + offset
        else:
            value = (index + 3 * rank) % self.period
            if name in ("max", "min") and case.dtype.kind in ("int", "float"):
                value = value - self.period // 2
        if case.dtype.kind == "bool":
            return value % 2
        if case.dtype.kind == "complex":
            return value + 1j * ((value + 1 + rank) % self.period)
        return value.astype(np.float64) if case.dtype.kind == "float" else value

    def _combined(self, part: int) -> Template:
        operation = self.case.operation
        if operation is None:
            raise TypeError(f"{self.case.collective} does not reduce")
        all_ranks = np.stack([self._exact(rank, part) for rank in range(self.case.n_ranks)])
        result: Template
        match operation.name:
            case "sum":
                result = all_ranks.sum(axis=0)
            case "premul_sum":
                result = all_ranks.sum(axis=0) * operation.scale
            case "avg":
                result = all_ranks.sum(axis=0) / self.case.n_ranks
            case "prod":
                result = all_ranks.prod(axis=0)
            case "max":
                result = all_ranks.max(axis=0)
            case "min":
                result = all_ranks.min(axis=0)
            case "band":
                result = np.bitwise_and.reduce(all_ranks, axis=0)
            case "bor":
                result = np.bitwise_or.reduce(all_ranks, axis=0)
            case "bxor":
                result = np.bitwise_xor.reduce(all_ranks, axis=0)
            case other:
                raise TypeError(f"no exact inputs for the operation {other!r}")
        return self._cut(result).astype(self.dtype)


def _exact_whole(dtype: DType) -> int:
    """Return how far whole numbers are exact."""
    return _EXACT_WHOLE.get(dtype.name, 1 << 24)


def _period(case: Case) -> int:
    most = min(_exact_whole(case.dtype), _exact_whole(case.wire or case.dtype))
    if case.operation is None or case.operation.name in ("max", "min", "band", "bor", "bxor"):
        largest = _PRIMES[0]
    else:
        # The sum of all ranks' largest values, with a scale of up to 2 and avg's offset, stays exact.
        largest = most // (case.n_ranks * max(1, int(abs(case.operation.scale)))) - 1
    return next((prime for prime in _PRIMES if prime <= largest), 2)


def write_periodic(array: Template, templates: list[Template]) -> None:
    """Fill an array with equal parts, each the repetition of its template.

    Parameters
    ----------
    array : ndarray
        One-dimensional.
    templates : list of ndarray
        One for each part, in order; a template of one element is a plain fill.
    """
    if not templates:
        return
    length = array.size // len(templates)
    for part, template in enumerate(templates):
        view = array[part * length : (part + 1) * length]
        if template.size == 1:
            view.fill(template[0])
            continue
        tile = _tile(template, view.size)
        for start in range(0, view.size, max(1, tile.size)):
            block = view[start : start + tile.size]
            block[...] = tile[: block.size]


def count_wrong(array: Template, templates: list[Template]) -> tuple[int, int]:
    """Compare every element with what it must be.

    Returns
    -------
    n_wrong, first : int
        How many elements differ (NaN always does), and the index of the first, -1 if none.
    """
    n_wrong, first = 0, -1
    if not templates:
        return n_wrong, first
    length = array.size // len(templates)
    for part, template in enumerate(templates):
        view = array[part * length : (part + 1) * length]
        tile = _tile(template, view.size)
        for start in range(0, view.size, max(1, tile.size)):
            block = view[start : start + tile.size]
            wrong = np.flatnonzero(block != tile[: block.size])
            if wrong.size:
                if first < 0:
                    first = part * length + start + int(wrong[0])
                n_wrong += int(wrong.size)
    return n_wrong, first


def poison(array: Template) -> None:
    """Overwrite with what no right result holds: all bytes 0xFF, which is NaN in floats."""
    if array.dtype.kind == "b":
        array.fill(False)
        return
    array.view(np.uint8).fill(0xFF)


def _tile(template: Template, length: int) -> Template:
    """Repeat a template to whole periods of about a block, not longer than needed."""
    repeats = max(1, min(_BLOCK_ELEMENTS, length + template.size - 1) // template.size)
    return np.tile(template, repeats)
