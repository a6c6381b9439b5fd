"""One block's part of one instruction: where its operands lie, and which loop runs over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from multiring.kernels.cuda.arithmetic import (
    Arithmetic,
    cast_arithmetic,
    copy_arithmetic,
    parameter_function,
    reduce_arithmetic,
)
from multiring.kernels.cuda.fold import Shape, make_fold
from multiring.kernels.cuda.homes import device, device_function
from multiring.kernels.cuda.ptx import barrier
from multiring.kernels.cuda.records import (
    CALL_CHUNKS,
    CALL_RANKS,
    CALL_SCALE,
    DEVICE_SIZE,
    DEVICE_SLOT_BYTES,
    DEVICE_SLOT_MASK,
    DEVICE_SLOTS,
    VARIANT_PLACE_BYTES,
    VARIANT_PROGRAM,
    VARIANT_SLICE,
)
from multiring.kernels.cuda.signals import get
from multiring.kernels.dtypes import DType
from multiring.kernels.operations import Reduction
from multiring.kernels.primitives import load_word, store_word
from multiring.kernels.records import (
    INSTRUCTION_CHUNK,
    INSTRUCTION_DESTINATION_END,
    INSTRUCTION_KIND,
    INSTRUCTION_SOURCE_BEGIN,
    INSTRUCTION_SOURCE_END,
    INSTRUCTION_WORDS,
    KIND_CAST_IN,
    KIND_CAST_OUT,
    KIND_COPY,
    KIND_FORWARD,
    KIND_REDUCE,
    KIND_REDUCE_FINAL,
    OPERAND_PLACE,
    OPERAND_RANK,
    OPERAND_SPACE,
    OPERAND_WORDS,
    PROGRAM_INSTRUCTIONS,
    PROGRAM_OPERANDS,
    SPACE_OUT,
    SPACE_SLOT,
)

__all__ = ["StepSpec", "instruction_address", "make_part"]

PART_ELEMENTS = 64
"""Parts are cut at multiples of it, so that vectors are not."""


@dataclass(frozen=True, slots=True)
class StepSpec:
    """What decides a step kernel.

    Attributes
    ----------
    dtype, wire : DType
        Of the arrays, and of the slots.
    operation : Reduction or None
        None where nothing is reduced.
    accumulate : DType or None
        See :func:`multiring.kernels.kinds.accumulate_of`.
    staged : bool
        Whether everything passes through slots though the types do not ask for it: slots that a network reaches.
    """

    dtype: DType
    wire: DType
    operation: Reduction | None = None
    accumulate: DType | None = None
    staged: bool = False

    @property
    def scaled(self) -> bool:
        """Whether contributions are multiplied on their way in."""
        return self.operation is not None and self.operation.name == "premul_sum"

    @property
    def through_slots(self) -> bool:
        """Whether every value passes through a slot in the wire type."""
        return self.scaled or self.staged or self.wire != self.dtype

    def arithmetic(self) -> dict[int, Arithmetic]:
        """Return the arithmetic of each kind of instruction that programs of this kind have."""
        found: dict[int, Arithmetic] = {KIND_COPY: copy_arithmetic(self.dtype.itemsize)}
        if self.operation is not None:
            for kind, final in ((KIND_REDUCE, False), (KIND_REDUCE_FINAL, True)):
                found[kind] = reduce_arithmetic(
                    dtype=self.wire, operation=self.operation, accumulate=self.accumulate, final=final
                )
        if self.through_slots:
            found[KIND_FORWARD] = copy_arithmetic(self.wire.itemsize)
            found[KIND_CAST_IN] = cast_arithmetic(self.dtype, self.wire, self.scaled)
            found[KIND_CAST_OUT] = cast_arithmetic(self.wire, self.dtype)
        return found


@device
def instruction_address(program: int, index: int) -> int:
    """Return the address of an instruction."""
    return program + 8 * (get(program, PROGRAM_INSTRUCTIONS) + index * INSTRUCTION_WORDS)


@device
def operand_address(
    context: int,
    bases: int,
    variant: int,
    operand: int,
    chunk: int,
    piece: int,
    begin: int,
    item_bytes: int,
    wire_bytes: int,
) -> int:
    """Return the address of element ``begin`` of a slice of a chunk in one rank's input, output or slot."""
    space = get(operand, OPERAND_SPACE)
    rank = get(operand, OPERAND_RANK)
    if space == SPACE_SLOT:
        slot = (piece & get(context, DEVICE_SLOT_MASK)) * get(context, DEVICE_SLOT_BYTES)
        place = get(operand, OPERAND_PLACE) * get(variant, VARIANT_PLACE_BYTES)
        return load_word(get(context, DEVICE_SLOTS) + 8 * rank) + slot + place + begin * wire_bytes
    if space == SPACE_OUT:
        rank += get(context, DEVICE_SIZE)
    element = load_word(chunk + 8 * space) + piece * get(variant, VARIANT_SLICE) + begin
    return load_word(bases + 8 * rank) + element * item_bytes


def make_part(spec: StepSpec, threads: int) -> Callable[..., None]:
    """Return the device function that runs one instruction on one slice, or on one block's part of it.

    ::

        part(context, call, variant, bases, operands, index, piece, part_index, part_shift, first, step, thread)

    The slice is cut into ``1 << part_shift`` parts, and blocks ``first``, ``first + step`` and so on share the one of
    number ``part_index``. ``variant`` is the address of the variant's words, ``operands`` of room for addresses. All
    threads of the block call it; it ends before a barrier that the caller owes.
    """
    arithmetic = spec.arithmetic()
    item_bytes, wire_bytes = spec.dtype.itemsize, spec.wire.itemsize
    # Kinds with equal arithmetic are one loop.
    folds: list[Any] = []
    of_kind: dict[int, int] = {}
    distinct: list[Arithmetic] = []
    for kind, what in arithmetic.items():
        if what not in distinct:
            distinct.append(what)
            folds.append((make_fold(what, Shape(what, threads)), parameter_function(what)))
        of_kind[kind] = distinct.index(what)
    run = _dispatch(folds, of_kind)

    def part(
        context: int,
        call: int,
        variant: int,
        bases: int,
        operands: int,
        index: int,
        piece: int,
        part_index: int,
        part_shift: int,
        first: int,
        step: int,
        thread: int,
    ) -> None:
        program = get(variant, VARIANT_PROGRAM)
        instruction = instruction_address(program, index)
        chunk = get(call, CALL_CHUNKS) + 24 * get(instruction, INSTRUCTION_CHUNK)
        length = min(get(variant, VARIANT_SLICE), load_word(chunk + 16) - piece * get(variant, VARIANT_SLICE))
        share = ((length + (1 << part_shift) - 1) >> part_shift) + (PART_ELEMENTS - 1) & ~(PART_ELEMENTS - 1)
        begin = part_index * share
        count = min(share, length - begin)
        if count > 0:
            source_begin = get(instruction, INSTRUCTION_SOURCE_BEGIN)
            n_sources = get(instruction, INSTRUCTION_SOURCE_END) - source_begin
            n_operands = get(instruction, INSTRUCTION_DESTINATION_END) - source_begin
            table = program + 8 * (get(program, PROGRAM_OPERANDS) + source_begin * OPERAND_WORDS)
            k = thread
            while k < n_operands:
                address = operand_address(
                    context,
                    bases,
                    variant,
                    table + 8 * OPERAND_WORDS * k,
                    chunk,
                    piece,
                    begin,
                    item_bytes,
                    wire_bytes,
                )
                store_word(operands + 8 * k, address)
                k += threads
            barrier()
            kind = get(instruction, INSTRUCTION_KIND)
            destinations = operands + 8 * n_sources
            n_destinations = n_operands - n_sources
            run(call, kind, first, step, thread, operands, n_sources, destinations, n_destinations, count)

    return device_function(part)


def _dispatch(folds: list[Any], of_kind: dict[int, int]) -> Callable[..., None]:
    """Return the device function that runs the loop of a kind."""

    def nothing(
        call: int, kind: int, first: int, step: int, thread: int, s: int, n_s: int, d: int, n_d: int, count: int
    ) -> None:
        return

    run = device_function(nothing)
    for number, (fold, parameter_of) in enumerate(folds):
        run = device_function(_branch(number, fold, parameter_of, of_kind, run))
    return run


def _branch(
    number: int, fold: Callable[..., None], parameter_of: Any, of_kind: dict[int, int], otherwise: Callable[..., None]
) -> Callable[..., None]:
    mask = sum(1 << kind for kind, fold_number in of_kind.items() if fold_number == number)
    word = CALL_SCALE if of_kind.get(KIND_CAST_IN) == number else CALL_RANKS

    def run(
        call: int, kind: int, first: int, step: int, thread: int, s: int, n_s: int, d: int, n_d: int, count: int
    ) -> None:
        if (mask >> kind) & 1:
            fold(first, step, thread, s, n_s, d, n_d, count, parameter_of(get(call, word)))
        else:
            otherwise(call, kind, first, step, thread, s, n_s, d, n_d, count)

    return run
