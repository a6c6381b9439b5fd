"""Which scalar functions make the span kernel of an element type and a reduction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from multiring.errors import ArgumentTypeError
from multiring.kernels import scalars, spans
from multiring.kernels.dtypes import DTYPES, DType
from multiring.kernels.operations import OPERATIONS, Reduction, check_operation

__all__ = [
    "accumulate_of",
    "canonical",
    "combine_of",
    "load_of",
    "span_function",
    "span_name",
    "store_of",
    "stored_type",
]

Scalar = Callable[..., Any]

# What an element is in memory, where numpy's own type of that name will not do.
_STORED: dict[str, type[Any]] = {"bfloat16": np.uint16, "float16": np.uint16, "bool": np.uint8}

_LOAD: dict[tuple[str, str], Scalar] = {
    ("bfloat16", "float32"): scalars.widen_bfloat16,
    ("float16", "float32"): scalars.widen_float16,
    ("bfloat16", "float64"): scalars.widen_bfloat16_twice,
    ("float16", "float64"): scalars.widen_float16_twice,
    ("float32", "float64"): scalars.widen_float32,
    ("bool", "bool"): scalars.truth,
}

_STORE: dict[tuple[str, str], Scalar] = {
    ("float32", "bfloat16"): scalars.narrow_bfloat16,
    ("float32", "float16"): scalars.narrow_float16,
    ("float32", "float32"): scalars.narrow_float32,
    ("float64", "bfloat16"): scalars.narrow_float64_to_bfloat16,
    ("float64", "float16"): scalars.narrow_float64_to_float16,
    ("float64", "float32"): scalars.narrow_float64_to_float32,
    ("float64", "float64"): scalars.narrow_float64,
    ("bool", "bool"): scalars.truth,
}

_COMBINE: dict[str, Scalar] = {
    "sum": scalars.add,
    "avg": scalars.add,
    "premul_sum": scalars.add,
    "prod": scalars.multiply,
    "max": scalars.larger,
    "min": scalars.smaller,
    "band": scalars.bits_and,
    "bor": scalars.bits_or,
    "bxor": scalars.bits_xor,
}

_COMBINE_FLOAT: dict[tuple[str, str], Scalar] = {
    ("max", "float32"): scalars.larger_float32,
    ("min", "float32"): scalars.smaller_float32,
    ("max", "float64"): scalars.larger_float64,
    ("min", "float64"): scalars.smaller_float64,
}


def accumulate_of(dtype: DType, accumulate: DType | None = None) -> DType:
    """Return the type that a reduction of ``dtype`` is computed in.

    Parameters
    ----------
    dtype : DType
        Of the elements.
    accumulate : DType or None
        What the caller asked for. None: float32 for 16-bit floats, else ``dtype``.

    Raises
    ------
    ArgumentTypeError
        If ``dtype`` cannot be accumulated in it.
    """
    default = DTYPES["float32"] if dtype.kind == "float" and dtype.itemsize == 2 else dtype
    if accumulate is None or accumulate == default:
        return default
    if dtype.kind == "float" and accumulate.kind == "float" and accumulate.itemsize >= default.itemsize:
        return accumulate
    wanted = " or ".join(dict.fromkeys([default.name, *(["float64"] if dtype.kind == "float" else [])]))
    raise ArgumentTypeError(
        f"accumulate: got {accumulate.name!r} for dtype {dtype.name}, wanted {wanted}; "
        "leave accumulate=None for the default"
    )


def span_name(kind: str, **spec: Any) -> str:
    """Return a name for the kernel of a specification, fit for a file name and unique in one version."""
    parts = [kind]
    for key, value in sorted(spec.items()):
        text = value.name if isinstance(value, (DType, Reduction)) else str(value)
        parts.append(f"{key}={text}")
    return ",".join(parts)


def canonical(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Return the specification without what makes no difference, so that equal kernels are built once."""
    stream = bool(spec.get("stream", False))
    if kind == "copy":
        return {"itemsize": spec["itemsize"], "stream": stream}
    if kind == "cast":
        source, destination, scale = spec["source"], spec["destination"], bool(spec.get("scale", False))
        return {"source": source, "destination": destination, "scale": scale, "stream": stream}
    dtype, operation = spec["dtype"], spec["operation"]
    check_operation(operation, dtype)
    final = bool(spec.get("final", True)) and operation.name == "avg"
    if operation.name == "premul_sum" or (operation.name == "avg" and not final):
        operation = OPERATIONS["sum"]
    return {
        "dtype": dtype,
        "operation": operation,
        "accumulate": accumulate_of(dtype, spec.get("accumulate")),
        "final": final,
        "stream": stream,
    }


def span_function(kind: str, **spec: Any) -> spans.Span:
    """Return the span kernel of a specification as a plain Python function.

    Parameters
    ----------
    kind : {"reduce", "cast", "copy"}
        ``reduce`` takes ``dtype``, ``operation``, ``accumulate=None``, ``final=True``; ``cast`` takes ``source``,
        ``destination``, ``scale=False``; ``copy`` takes ``itemsize``; all take ``stream=False``.
    """
    factories: dict[str, Callable[..., spans.Span]] = {"reduce": _reduce, "cast": _cast, "copy": spans.make_copy}
    return factories[kind](**canonical(kind, spec))


def stored_type(dtype: DType) -> type[Any]:
    """Return the numpy scalar type that an element is in memory."""
    return _STORED.get(dtype.name) or np.dtype(dtype.name).type


def _reduce(dtype: DType, operation: Reduction, accumulate: DType, final: bool, stream: bool) -> spans.Span:
    wide = accumulate
    parts = 1
    if dtype.kind == "complex" and operation.function is None:
        dtype = wide = DTYPES["float32" if dtype.itemsize == 8 else "float64"]  # A sum is two sums.
        parts = 2
    if operation.function is not None:
        combine = operation.function
    else:
        combine = combine_of(operation, wide)
    return spans.make_reduce(
        load_of(dtype, wide),
        combine,
        scalars.divide if final else scalars.keep,
        store_of(wide, dtype),
        stored_type(dtype),
        stored_type(wide),
        dtype.itemsize,
        wide.itemsize,
        parts,
        stream,
    )


def load_of(dtype: DType, wide: DType) -> Scalar:
    """Return the function from an element to the type that it is computed in."""
    return _LOAD.get((dtype.name, wide.name), scalars.same)


def store_of(wide: DType, dtype: DType) -> Scalar:
    """Return the function from the type that a value is computed in to an element."""
    return _STORE.get((wide.name, dtype.name), scalars.same)


def combine_of(operation: Reduction, wide: DType) -> Scalar:
    """Return the function of two values that a named operation is, in the type that it is computed in."""
    return _COMBINE_FLOAT.get((operation.name, wide.name)) or _COMBINE[operation.name]


def _cast(source: DType, destination: DType, scale: bool, stream: bool) -> spans.Span:
    if source == destination and not scale:
        return spans.make_copy(source.itemsize, stream)
    if source.kind != "float" or destination.kind != "float":
        raise ArgumentTypeError(
            f"cast: got {source.name} to {destination.name}{' with a scale' if scale else ''}, "
            f"wanted floating-point types (float16, bfloat16, float32, float64); convert with x.astype first"
        )
    wide = DTYPES["float64" if "float64" in (source.name, destination.name) else "float32"]
    return spans.make_cast(
        _LOAD.get((source.name, wide.name), scalars.same),
        scalars.scale if scale else scalars.keep,
        _STORE[wide.name, destination.name],
        stored_type(source),
        stored_type(destination),
        stored_type(wide),
        source.itemsize,
        destination.itemsize,
        stream,
    )
