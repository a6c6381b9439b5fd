"""CUDA streams and arrays of any library, by what their objects say; no library is imported."""

from __future__ import annotations

import ctypes
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from multiring.collectives.device_view import device_view_of, is_on_device
from multiring.collectives.streams import stream_handle
from multiring.errors import ArgumentError, ArgumentTypeError


class Protocol:
    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def __cuda_stream__(self) -> Any:
        return self._answer


@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        (0, 0),
        (2, 2),
        (np.int64(77), 77),
        ((1 << 64) - 1, (1 << 64) - 1),
        (SimpleNamespace(ptr=140), 140),  # CuPy
        (SimpleNamespace(cuda_stream=141), 141),  # torch
        (SimpleNamespace(handle=ctypes.c_void_p(142)), 142),  # Numba
        (SimpleNamespace(handle=143), 143),  # cuda-python
        (Protocol((0, 144)), 144),
        (SimpleNamespace(__cuda_stream__=(0, 145), ptr=1), 145),
    ],
)
def test_handles(stream: Any, handle: int) -> None:
    assert stream_handle(stream) == handle


@pytest.mark.parametrize(
    ("stream", "kind", "text"),
    [
        (True, ArgumentTypeError, "stream: got bool, wanted a CUDA stream"),
        ("3", ArgumentTypeError, "stream: got str, wanted a CUDA stream: a handle as int"),
        (object(), ArgumentTypeError, "stream: got object, wanted a CUDA stream"),
        (-1, ArgumentError, "stream: got -0x1, wanted a CUDA stream's handle"),
        (1 << 64, ArgumentError, "wanted a CUDA stream's handle"),
        (Protocol((1, 5)), ArgumentTypeError, r"__cuda_stream__ that says \(1, 5\), wanted \(0, handle\)"),
        (Protocol(5), ArgumentTypeError, "__cuda_stream__ that says 5"),
    ],
)
def test_what_is_no_stream(stream: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        stream_handle(stream)


class Array:
    """An array in CUDA memory that is none: nothing may read it."""

    def __init__(self, shape: tuple[int, ...], typestr: str = "<f4", **more: Any) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": typestr,
            "data": (0x7F0000000100, False),
            "version": 3,
        } | more


def test_the_arrays_own_stream() -> None:
    assert device_view_of(Array((3,), stream=1)).streams == (1,)
    assert device_view_of(Array((3,), stream=99)).streams == (99,)
    assert device_view_of(Array((3,), stream=None)).streams == ()
    assert device_view_of(Array((3,))).streams == ()
    with pytest.raises(ArgumentError, match="x: got stream 0 in __cuda_array_interface__, wanted None, 1, 2"):
        device_view_of(Array((3,), stream=0))


def test_layouts_are_read_and_elements_are_not() -> None:
    view = device_view_of(Array((2, 3), strides=None))
    assert (view.address, view.shape, view.nbytes, view.direct) == (0x7F0000000100, (2, 3), 24, True)
    view = device_view_of(Array((2, 3), strides=(4, 8)))
    assert not view.direct
    view = device_view_of(Array((3,), strides=(-4,)))
    assert (view.address, view.contiguous) == (0x7F0000000100, False)
    assert not device_view_of(Array((3,), data=(0x7F0000000100, True))).writable
    assert device_view_of(Array((0, 5))).size == 0
    assert is_on_device(Array((3,)))
    assert not is_on_device(np.zeros(3))


def test_element_types() -> None:
    assert device_view_of(Array((3,), "<f2")).dtype.name == "float16"
    bfloat16 = Array((3,), "<f2")
    bfloat16.dtype = np.dtype(ml_dtypes.bfloat16)  # type: ignore[attr-defined]
    assert device_view_of(bfloat16).dtype.name == "bfloat16", "the object's own dtype knows"
    with pytest.raises(ArgumentTypeError, match="x: dtype: got '>f4' in the other byte order"):
        device_view_of(Array((3,), ">f4"))
    with pytest.raises(ArgumentTypeError, match="x: got a masked Array"):
        device_view_of(Array((3,), mask=object()))


def test_torch_says_its_stream_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = ModuleType("torch")
    seen: list[Any] = []

    def current_stream(device: Any) -> Any:
        seen.append(device)
        return SimpleNamespace(cuda_stream=31)

    torch.cuda = SimpleNamespace(current_stream=current_stream)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    memory = np.arange(4, dtype=np.float32)

    class Tensor:
        device = "cuda:1"

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 1

        def __dlpack__(self, **options: Any) -> Any:
            seen.append(options.get("stream"))
            return memory.__dlpack__()

    Tensor.__module__ = "torch"
    view = device_view_of(Tensor())
    assert (view.streams, view.dtype.name, view.address) == ((31,), "float32", memory.ctypes.data)
    assert seen == [-1, "cuda:1"], "torch is not asked to wait"
    Tensor.__module__ = "another"
    seen.clear()
    assert device_view_of(Tensor()).streams == (0,)
    assert seen == [1], "ready in the legacy default stream"
