"""Every kernel by what it does: the one place that chooses block sizes and names.

A reduction of a user's function is made once for each function object and is not kept on disk.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import lru_cache

from multiring.errors import ArgumentTypeError
from multiring.kernels.cuda.arithmetic import Arithmetic, cast_arithmetic, copy_arithmetic, reduce_arithmetic
from multiring.kernels.cuda.cast import make_cast
from multiring.kernels.cuda.compile import Kernel
from multiring.kernels.cuda.fold import Shape
from multiring.kernels.cuda.homes import SIMULATED
from multiring.kernels.cuda.pack import make_pack
from multiring.kernels.cuda.parts import StepSpec
from multiring.kernels.cuda.reduce import make_reduce
from multiring.kernels.cuda.step import make_fused, make_stepped
from multiring.kernels.cuda.update import make_update, update_units
from multiring.kernels.dtypes import DTYPES, DType
from multiring.kernels.kinds import accumulate_of, canonical, span_name
from multiring.kernels.operations import OPERATIONS, Reduction, premul_sum
from multiring.kernels.rules import RULES, Rule

__all__ = [
    "THREADS",
    "cast_kernel",
    "cast_shape",
    "copy_kernel",
    "every_kernel",
    "few_kernels",
    "fused_kernel",
    "pack_kernel",
    "reduce_kernel",
    "stepped_kernel",
    "update_kernel",
]

THREADS = 4 if SIMULATED else 256
"""Threads of a block; the simulator starts an operating system's thread for each."""

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64")
_CACHED = lru_cache(maxsize=1024)


@_CACHED
def reduce_kernel(
    dtype: DType,
    operation: Reduction,
    accumulate: DType | None = None,
    final: bool = True,
    destination: DType | None = None,
    scale: bool = False,
) -> Kernel:
    """Return the kernel that folds n sources of ``dtype`` into m destinations.

    Parameters
    ----------
    dtype, operation, accumulate, final
        See :func:`multiring.kernels.kinds.span_function`.
    destination : DType, optional
        Of the result, where it is not ``dtype``.
    scale : bool
        Whether the result is multiplied by a parameter.
    """
    spec = canonical("reduce", {"dtype": dtype, "operation": operation, "accumulate": accumulate, "final": final})
    del spec["stream"]
    arithmetic = reduce_arithmetic(destination, scale, **spec)
    shape = Shape(arithmetic, THREADS)
    if destination is not None and destination != dtype:
        spec["destination"] = destination
    if scale:
        spec["scale"] = True
    kept = operation.function is None
    name = span_name("reduce", **spec)

    def make() -> object:
        return make_reduce(reduce_arithmetic(destination, scale, **_without(spec)), shape)

    return Kernel(name, make, 6, THREADS, shape.tile // arithmetic.parts, kept=kept)  # type: ignore[arg-type]


def _without(spec: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in spec.items() if key not in ("destination", "scale")}


def cast_shape(arithmetic: Arithmetic) -> Shape:
    """Return how a block cuts a span of a cast, copy or packing."""
    return Shape(arithmetic, THREADS)


@_CACHED
def cast_kernel(source: DType, destination: DType, scale: bool = False) -> Kernel:
    """Return the kernel that casts one array to another."""
    if source == destination and not scale:
        return copy_kernel(source.itemsize)
    arithmetic = cast_arithmetic(source, destination, scale)
    shape = cast_shape(arithmetic)
    name = span_name("cast", source=source, destination=destination, scale=scale)
    return Kernel(name, lambda: make_cast(arithmetic, shape), 4, THREADS, shape.tile)


@_CACHED
def copy_kernel(itemsize: int) -> Kernel:
    """Return the kernel that copies elements of a size, in bytes."""
    arithmetic = copy_arithmetic(itemsize)
    shape = cast_shape(arithmetic)
    name = span_name("copy", itemsize=itemsize)
    return Kernel(name, lambda: make_cast(arithmetic, shape), 4, THREADS, shape.tile // arithmetic.parts)


@_CACHED
def pack_kernel(source: DType, destination: DType, scale: bool = False) -> Kernel:
    """Return the kernel that casts or copies the rows of a table."""
    arithmetic = cast_arithmetic(source, destination, scale)
    shape = cast_shape(arithmetic)
    if source == destination and not scale:
        name = span_name("pack", itemsize=source.itemsize)
    else:
        name = span_name("pack", source=source, destination=destination, scale=scale)
    return Kernel(name, lambda: make_pack(arithmetic, shape), 4, THREADS, shape.tile)


@_CACHED
def update_kernel(rule: Rule, gradient: DType, weight: DType | None = None) -> Kernel:
    """Return the kernel that updates the rows of a table by a rule.

    Raises
    ------
    ArgumentTypeError
        If the gradient or the weight has a type that no update is made for.
    """
    for what, dtype in (("gradient", gradient), ("weight", weight)):
        if dtype is not None and dtype.name not in ("float16", "bfloat16", "float32"):
            raise ArgumentTypeError(f"{what}: got {dtype.name}, wanted float16, bfloat16 or float32")
    if weight is not None and rule.weight is None:
        raise ArgumentTypeError(f"weight: got {weight.name} for rule {rule.name}, wanted None: it makes no weight")
    unit, n_units = update_units(gradient, weight)
    name = span_name("update", rule=rule.name, gradient=gradient, weight=weight or "none")
    return Kernel(
        name,
        lambda: make_update(rule, gradient, weight, THREADS),
        3,
        THREADS,
        THREADS * unit * n_units,
        kept=not rule.custom,
    )


def fused_kernel(spec: StepSpec) -> Kernel:
    """Return the kernel that runs a whole call of a rank."""
    return _step_kernel("fused", spec, make_fused, 1)


def stepped_kernel(spec: StepSpec) -> Kernel:
    """Return the kernel that runs one instruction on one slice."""
    return _step_kernel("stepped", spec, make_stepped, 4)


@_CACHED
def _step_kernel(kind: str, spec: StepSpec, make: Callable[..., Callable[..., None]], n_arguments: int) -> Kernel:
    operation = spec.operation
    if operation is not None and operation.name == "premul_sum":
        operation = premul_sum(1.0)  # The scale is a parameter.
    parts = {"dtype": spec.dtype, "wire": spec.wire, "operation": operation or "none"}
    if spec.operation is not None:
        parts["accumulate"] = accumulate_of(spec.wire, spec.accumulate)
    if spec.staged:
        parts["staged"] = "all"
    tile = max(Shape(what, THREADS).tile for what in spec.arithmetic().values())
    kept = operation is None or operation.function is None
    # One block for each processor: the loops of all kinds side by side take more registers than one of them.
    return Kernel(span_name(kind, **parts), lambda: make(spec, THREADS), n_arguments, THREADS, tile, 1, kept)


def _reductions() -> Iterator[Kernel]:
    for dtype in INTEGERS:
        for op in ("sum", "prod", "max", "min", "band", "bor", "bxor"):
            yield reduce_kernel(DTYPES[dtype], OPERATIONS[op])
    for dtype in FLOATS:
        for op in ("sum", "prod", "max", "min", "avg"):
            yield reduce_kernel(DTYPES[dtype], OPERATIONS[op])
        if dtype != "float64":
            yield reduce_kernel(DTYPES[dtype], OPERATIONS["avg"], DTYPES["float64"])
        yield reduce_kernel(DTYPES[dtype], premul_sum(2.0), scale=True)
    for source, destination in itertools.permutations(FLOATS[:3], 2):
        yield reduce_kernel(DTYPES[source], OPERATIONS["sum"], destination=DTYPES[destination])
        yield reduce_kernel(DTYPES[source], OPERATIONS["sum"], destination=DTYPES[destination], scale=True)
    for dtype in ("complex64", "complex128"):
        yield reduce_kernel(DTYPES[dtype], OPERATIONS["sum"])
    for op in ("max", "min"):
        yield reduce_kernel(DTYPES["bool"], OPERATIONS[op])


def _moves() -> Iterator[Kernel]:
    for itemsize in (1, 2, 4, 8, 16):
        yield copy_kernel(itemsize)
    for dtype in ("uint8", "float16", "float32", "float64", "complex128"):
        yield pack_kernel(DTYPES[dtype], DTYPES[dtype])
    for source, destination, scale in itertools.product(FLOATS, FLOATS, (False, True)):
        if source != destination or scale:
            yield cast_kernel(DTYPES[source], DTYPES[destination], scale)
            yield pack_kernel(DTYPES[source], DTYPES[destination], scale)


def _updates() -> Iterator[Kernel]:
    for rule, gradient in itertools.product(RULES.values(), FLOATS[:3]):
        yield update_kernel(rule, DTYPES[gradient])
        if rule.weight is not None:
            yield update_kernel(rule, DTYPES[gradient], DTYPES["bfloat16"])
    for gradient, weight in itertools.product(FLOATS[:3], ("float16", "float32")):
        yield update_kernel(RULES["adamw"], DTYPES[gradient], DTYPES[weight])


def _steps() -> Iterator[Kernel]:
    plain = [
        StepSpec(DTYPES[dtype], DTYPES[dtype]) for dtype in ("uint8", "float16", "float32", "float64", "complex128")
    ]
    sums = [StepSpec(DTYPES[dtype], DTYPES[dtype], OPERATIONS["sum"]) for dtype in DTYPES if dtype != "bool"]
    others = [StepSpec(DTYPES[dtype], DTYPES[dtype], OPERATIONS[op]) for dtype in FLOATS for op in ("max", "avg")]
    others.append(StepSpec(DTYPES["bool"], DTYPES["bool"], OPERATIONS["max"]))
    wired = [
        StepSpec(DTYPES[dtype], DTYPES[wire], operation)
        for dtype, wire in (("float32", "bfloat16"), ("float32", "float16"), ("bfloat16", "float32"))
        for operation in (OPERATIONS["sum"], premul_sum(1.0))
    ]
    for spec in (*plain, *sums, *others, *wired):
        yield fused_kernel(spec)
    staged = StepSpec(DTYPES["float32"], DTYPES["float32"], OPERATIONS["sum"], staged=True)
    for spec in (plain[0], *sums, *wired[:2], staged):
        yield stepped_kernel(spec)


def every_kernel() -> list[Kernel]:
    """Return every kernel that has no user's function in it."""
    found = {kernel.name: kernel for kernel in (*_reductions(), *_moves(), *_updates(), *_steps())}
    return list(found.values())


def few_kernels() -> list[Kernel]:
    """Return one kernel of each kind and of each way to load, to combine and to store: what is compiled often."""
    d, op = DTYPES, OPERATIONS
    return [
        reduce_kernel(d["float32"], op["sum"]),
        reduce_kernel(d["bfloat16"], op["sum"]),
        reduce_kernel(d["float16"], op["avg"]),
        reduce_kernel(d["int8"], op["sum"]),
        reduce_kernel(d["float64"], op["max"]),
        reduce_kernel(d["bfloat16"], op["sum"], destination=d["float32"], scale=True),
        cast_kernel(d["float32"], d["bfloat16"]),
        cast_kernel(d["float16"], d["float32"], True),
        copy_kernel(4),
        pack_kernel(d["float32"], d["bfloat16"], True),
        pack_kernel(d["uint8"], d["uint8"]),
        update_kernel(RULES["adamw"], d["bfloat16"], d["bfloat16"]),
        update_kernel(RULES["lamb_direction"], d["float32"]),
        fused_kernel(StepSpec(d["bfloat16"], d["bfloat16"], op["sum"])),
        fused_kernel(StepSpec(d["float32"], d["bfloat16"], op["avg"])),
        stepped_kernel(StepSpec(d["float32"], d["float32"], op["sum"])),
    ]
