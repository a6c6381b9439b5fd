"""Host memory behind a DLPack capsule, without a copy and without the library that made it."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multiring.errors import ArgumentError, ArgumentTypeError
from multiring.kernels.dtypes import DTYPES, DType, numpy_dtype

__all__ = ["cuda_array", "from_dlpack", "strided_array"]

CPU, CUDA, CUDA_PINNED, CUDA_MANAGED = 1, 2, 3, 13
"""DLDeviceType of dlpack.h."""

READ_ONLY, IS_COPIED = 1, 2
"""Flags of a versioned capsule (dlpack.h, version 1.0)."""

ELEMENT_TYPES: dict[tuple[int, int], str] = {
    **{(0, bits): f"int{bits}" for bits in (8, 16, 32, 64)},
    **{(1, bits): f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{(2, bits): f"float{bits}" for bits in (16, 32, 64)},
    (4, 16): "bfloat16",
    (5, 64): "complex64",
    (5, 128): "complex128",
    (6, 8): "bool",
}
"""(DLDataTypeCode, bits) to an element type's name."""


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_capsule_name = ctypes.pythonapi.PyCapsule_GetName
_capsule_name.restype, _capsule_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def strided_array(
    address: int,
    shape: tuple[int, ...],
    strides_bytes: tuple[int, ...] | None,
    dtype: DType,
    *,
    writable: bool,
    owner: Any,
) -> NDArray[Any]:
    """Return a numpy array over memory that something else owns.

    Parameters
    ----------
    address : int
        Of the element with all indices 0.
    shape : tuple of int
    strides_bytes : tuple of int or None
        None: C order. Negative strides reach below ``address``.
    dtype : DType
    writable : bool
        Whether the array may be written.
    owner : object
        Kept alive as long as the array.
    """
    wanted = numpy_dtype(dtype)
    if 0 in shape or address == 0:
        nothing = np.empty(shape, wanted)
        nothing.setflags(write=writable)
        return nothing
    if strides_bytes is None:
        strides_bytes = tuple(int(np.prod(shape[i + 1 :], dtype=np.int64)) * dtype.itemsize for i in range(len(shape)))
    spans = [(n - 1) * s for n, s in zip(shape, strides_bytes, strict=True)]
    below = -sum(s for s in spans if s < 0)
    nbytes = below + sum(s for s in spans if s > 0) + dtype.itemsize
    block: Any = (ctypes.c_ubyte * nbytes).from_address(address - below)
    block.multiring_owner = owner
    array: NDArray[Any] = np.ndarray(shape, wanted, buffer=block, offset=below, strides=strides_bytes)
    array.setflags(write=writable)
    return array


def from_dlpack(x: Any, name: str = "x") -> NDArray[Any]:
    """Return a numpy array over the host memory of an object with ``__dlpack__``.

    Parameters
    ----------
    x : object
        With ``__dlpack__`` and ``__dlpack_device__``.
    name : str
        What errors call it.

    Returns
    -------
    ndarray
        Zero-copy; read-only where the capsule says so, or where it holds a copy. Keeps the capsule, and so the memory,
        alive.

    Raises
    ------
    ArgumentTypeError
        If the memory is not the host's, or its element type is none of multiring's.
    ArgumentError
        If the exporter refuses, or speaks a later DLPack.

    Notes
    -----
    The capsule is read and not consumed: its own destructor frees the tensor with the capsule. Layouts are dlpack.h's
    of versions 0.8 and 1.0.
    """
    kind = int(x.__dlpack_device__()[0])
    if kind in (CUDA, CUDA_MANAGED):
        raise ArgumentTypeError(
            f"{name}: got {type(x).__name__} in CUDA memory, wanted host memory; copy the array to the host, or use a"
            " communicator of multiring.init(device='cuda')"
        )
    if kind not in (CPU, CUDA_PINNED):
        raise ArgumentTypeError(
            f"{name}: got {type(x).__name__} on DLPack device type {kind}, wanted host memory (type {CPU}); copy it "
            "to the host"
        )
    return _exported(x, name, {})[0]


def cuda_array(x: Any, name: str, stream: int) -> tuple[NDArray[Any], DType]:
    """Return where the elements of an object in CUDA memory lie, and their type.

    Parameters
    ----------
    x : object
        With ``__dlpack__``, in CUDA memory.
    name : str
        What errors call it.
    stream : int
        In which the exporter makes the array ready; -1: it does nothing.

    Returns
    -------
    ndarray
        Shape, strides and address; its elements must not be touched. Keeps the memory alive.
    DType
    """
    return _exported(x, name, {"stream": stream})


def _exported(x: Any, name: str, options: dict[str, Any]) -> tuple[NDArray[Any], DType]:
    try:
        try:
            capsule = x.__dlpack__(max_version=(1, 0), **options)
        except TypeError:  # an exporter from before version 1.0 knows no max_version
            capsule = x.__dlpack__(**options)
    except (BufferError, RuntimeError) as error:
        raise ArgumentError(f"{name}: {type(x).__name__} refused to share its memory: {error}") from error
    label = _capsule_name(capsule)
    writable = True
    if label == b"dltensor_versioned":
        managed = _Versioned.from_address(_capsule_pointer(capsule, label))
        if managed.major > 1:
            raise ArgumentError(f"{name}: got DLPack version {managed.major}.{managed.minor}, wanted 1.x")
        writable = not managed.flags & (READ_ONLY | IS_COPIED)
        tensor = managed.tensor
    elif label == b"dltensor":
        tensor = _Tensor.from_address(_capsule_pointer(capsule, label))
    else:
        raise ArgumentError(f"{name}: got a DLPack capsule called {label!r}, wanted an unused 'dltensor'")
    element = ELEMENT_TYPES.get((tensor.code, tensor.bits))
    if element is None or tensor.lanes != 1:
        raise ArgumentTypeError(
            f"{name}: got DLPack element type (code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes), "
            f"wanted one of {', '.join(DTYPES)}"
        )
    dtype = DTYPES[element]
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] * dtype.itemsize for i in range(tensor.ndim)) if tensor.strides else None
    # JAX arrays never change, and not every version of JAX says so in the capsule.
    writable = writable and type(x).__module__.partition(".")[0] not in ("jax", "jaxlib")
    address = (tensor.data or 0) + tensor.byte_offset
    return strided_array(address, shape, strides, dtype, writable=writable, owner=capsule), dtype
