"""What a launch accepts: arrays of the right type and layout, apart from each other. The rest is refused here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multiring.errors import ArgumentError, ArgumentTypeError
from multiring.kernels.cuda.homes import SIMULATED
from multiring.kernels.dtypes import DType, dtype_of

__all__ = ["View", "check_apart", "check_same", "view_of"]


@dataclass(frozen=True, slots=True)
class View:
    """A span of device memory.

    Attributes
    ----------
    address : int
        A multiple of the element's size.
    count : int
        Elements.
    dtype : DType
    writable : bool
    """

    address: int
    count: int
    dtype: DType
    writable: bool = True

    @property
    def n_bytes(self) -> int:
        """Bytes of the span."""
        return self.count * self.dtype.itemsize


def _element(array: Any, what: str) -> DType:
    kind = getattr(array, "dtype", None)
    if kind is None:
        raise ArgumentTypeError(f"{what}: got {type(array).__name__} without dtype, wanted a CUDA array")
    if not isinstance(kind, (np.dtype, DType, str)):
        kind = str(kind).removeprefix("torch.")  # torch.float32
    try:
        return dtype_of(kind)
    except ArgumentTypeError as error:
        raise ArgumentTypeError(f"{what}: {error}") from None


def view_of(array: Any, what: str, *, written: bool = False) -> View:
    """Return where an array lies.

    Parameters
    ----------
    array : View, or anything with ``__cuda_array_interface__``
        In the simulator a numpy array as well.
    what : str
        Its name in errors.
    written : bool
        Whether it is a destination.

    Raises
    ------
    ArgumentTypeError
        If it is not a CUDA array, or of a type that multiring does not know.
    ArgumentError
        If it is not C-contiguous, not aligned, or is to be written and is read-only.
    """
    if isinstance(array, View):
        view = array
    else:
        interface = getattr(array, "__cuda_array_interface__", None)
        if interface is None and SIMULATED:
            interface = getattr(array, "__array_interface__", None)
        if interface is None:
            raise ArgumentTypeError(
                f"{what}: got {type(array).__module__}.{type(array).__name__}, which is not in device memory, wanted "
                "an array with __cuda_array_interface__; copy it with cupy.asarray"
            )
        dtype = _element(array, what)
        address, read_only = interface["data"]
        count = 1
        for length in interface["shape"]:
            count *= int(length)
        strides = interface.get("strides")
        if strides is not None and count > 1 and not _contiguous(interface["shape"], strides, dtype.itemsize):
            raise ArgumentError(
                f"{what}: got strides {tuple(strides)} for shape {tuple(interface['shape'])}, "
                "wanted a C-contiguous array; use cupy.ascontiguousarray"
            )
        view = View(int(address or 0), count, dtype, not read_only)
    if view.count < 0:
        raise ArgumentError(f"{what}: got {view.count} elements, wanted 0 or more")
    # Neither half of a complex number needs more than its own alignment.
    alignment = min(view.dtype.itemsize, 8)
    if view.dtype.name == "complex64":
        alignment = 4
    if view.address % alignment:
        raise ArgumentError(
            f"{what}: got address {view.address:#x}, wanted a multiple of {alignment} for {view.dtype.name}; "
            "copy the array"
        )
    if written and not view.writable:
        raise ArgumentError(f"{what}: got a read-only array, wanted one that may be written")
    return view


def _contiguous(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    expected = itemsize
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length > 1 and stride != expected:
            return False
        expected *= int(length)
    return True


def check_same(views: Sequence[View], names: Sequence[str], *, dtype: DType | None = None) -> None:
    """Refuse arrays whose types or counts differ from the first's, or from ``dtype``."""
    wanted = dtype or views[0].dtype
    for view, name in zip(views, names, strict=True):
        if view.dtype != wanted:
            of = "" if dtype else f", the type of {names[0]}"
            raise ArgumentTypeError(f"{name}: got {view.dtype.name}, wanted {wanted.name}{of}")
        if view.count != views[0].count:
            raise ArgumentError(f"{name}: got {view.count} elements, wanted {views[0].count}, as many as {names[0]}")


def check_apart(
    read: Sequence[tuple[str, View]], written: Sequence[tuple[str, View]], *, in_place: bool = False
) -> None:
    """Refuse destinations that share bytes with a source or with each other.

    Parameters
    ----------
    read, written : sequence of (name, View)
    in_place : bool
        Whether a destination may be exactly a source of the same element size.

    Raises
    ------
    ArgumentError
        Naming both and the bytes they share.
    """
    spans = [(v.address, v.address + v.n_bytes, False, name, v) for name, v in read if v.count]
    spans += [(v.address, v.address + v.n_bytes, True, name, v) for name, v in written if v.count]
    spans.sort(key=lambda span: span[:2])
    open_spans: list[tuple[int, int, bool, str, View]] = []
    for span in spans:
        begin, end, writes, name, view = span
        open_spans = [other for other in open_spans if other[1] > begin]
        for _, other_end, other_writes, other_name, other in open_spans:
            if not (writes or other_writes):
                continue
            same = (view.address, view.n_bytes, view.dtype.itemsize) == (
                other.address,
                other.n_bytes,
                other.dtype.itemsize,
            )
            if in_place and same and writes != other_writes:
                continue
            shared = min(end, other_end) - begin
            allowed = (
                "the very same array, or arrays apart from each other" if in_place else "arrays apart from each other"
            )
            raise ArgumentError(
                f"{name} and {other_name}: got {shared} bytes in common from {begin:#x}, wanted {allowed}"
            )
        open_spans.append(span)
