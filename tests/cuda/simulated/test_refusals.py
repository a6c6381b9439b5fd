"""What a launch does not accept, by the text of the refusal; and that the simulator's checker sees a bad access."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multiring.errors import ArgumentError, ArgumentTypeError
from multiring.kernels.cuda import calls
from multiring.kernels.cuda.arguments import View, view_of
from multiring.kernels.cuda.catalog import copy_kernel
from multiring.kernels.cuda.launch import Simulator
from multiring.kernels.dtypes import DTYPES
from multiring.kernels.operations import premul_sum

pytestmark = pytest.mark.sim

F = np.zeros(64, np.float32)


def view(first: int, count: int, name: str = "float32") -> View:
    return View(0x1000 + first, count, DTYPES[name])


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: calls.reduce([F, F.astype(np.float16)], [F]), ArgumentTypeError,
         r"sources\[1\]: got float16, wanted float32, the type of sources\[0\]"),
        (lambda: calls.reduce([F], [np.zeros(64, np.int32)]), ArgumentTypeError,
         r"destination: got int32 for a reduction of float32, wanted the same type, or two floating-point"),
        (lambda: calls.reduce([F, F[:5]], [F]), ArgumentError, r"sources\[1\]: got 5 elements, wanted 64, as many as"),
        (lambda: calls.reduce([F], [np.zeros(3, np.float32)]), ArgumentError,
         r"destinations\[0\]: got 3 elements, wanted 64, as many as sources\[0\]"),
        (lambda: calls.reduce([], [F]), ArgumentError, r"got 0 sources and 1 destinations, wanted at least one"),
        (lambda: calls.reduce([F], [F], "sums"), ArgumentError, r"op: got 'sums', wanted one of sum"),
        (lambda: calls.reduce([F.view(np.int32)], [F.view(np.int32)], "avg"), ArgumentTypeError,
         r"op='avg' is not defined for dtype int32"),
        (lambda: calls.reduce([F], [F.copy()], premul_sum(2.0)), ArgumentError,
         r"operation: got premul_sum\(2.0\), wanted op='sum'; pass scale= for the sum"),
        (lambda: calls.reduce([F.view(np.int32)], [F.view(np.int32)], scale=2.0), ArgumentTypeError,
         r"scale: got a scale for dtype int32, wanted a floating-point dtype"),
        (lambda: calls.cast(F[::2], F[32:]), ArgumentError,
         r"source: got strides \(8,\) for shape \(32,\), wanted a C-contiguous array; use cupy.ascontiguousarray"),
        (lambda: calls.cast(F, np.zeros(64, np.int32)), ArgumentTypeError, r"cast: got float32 to int32, wanted"),
        (lambda: calls.copy(F, np.zeros(64, np.float16)), ArgumentTypeError,
         r"destination: got float16, wanted float32, the type of source"),
        (lambda: calls.cast([1.0], F), ArgumentTypeError,
         r"source: got builtins.list, which is not in device memory, wanted an array with __cuda_array_interface__"),
        (lambda: view_of(View(0x1002, 4, DTYPES["float32"]), "x"), ArgumentError,
         r"x: got address 0x1002, wanted a multiple of 4 for float32; copy the array"),
        (lambda: calls.pack([F, F[:4]], np.zeros(70, np.float32)), ArgumentError,
         r"buffer: got 70 elements, wanted 68, those of all arrays together"),
        (lambda: calls.pack([F, F.view(np.int32)], np.zeros(128, np.float32)), ArgumentTypeError,
         r"arrays\[1\]: got int32, wanted float32"),
        (lambda: calls.pack([], F), ArgumentError, r"arrays: got none, wanted at least one"),
        (lambda: calls.update("adm", []), ArgumentError, r"rule: got 'adm', wanted one of sgd"),
        (lambda: calls.update("sgd", [calls.Tensor(F, [F, F], {})]), ArgumentError,
         r"tensors\[0\].arrays: got 2, wanted 1: master"),
        (lambda: calls.update("sgd", [calls.Tensor(F, [F.copy()], {"rate": 1.0})]), ArgumentError,
         r"tensors\[0\].parameters: got rate, wanted scale, rate, decay for rule sgd"),
        (lambda: calls.update("sgd", [calls.Tensor(F, [F.astype(np.float64)], {})]), ArgumentTypeError,
         r"tensors\[0\].master: got float64, wanted float32"),
    ],
)  # fmt: skip
def test_refused(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()


def test_a_read_only_destination() -> None:
    frozen = np.zeros(64, np.float32)
    frozen.setflags(write=False)
    with pytest.raises(ArgumentError, match=r"destination: got a read-only array, wanted one that may be written"):
        calls.copy(F, frozen)


@pytest.mark.parametrize(
    ("sources", "destinations", "text"),
    [
        ([view(0, 10)], [view(4, 10)], r"destinations\[0\] and sources\[0\]: got 36 bytes in common from 0x1004"),
        (
            [view(40, 10)],
            [view(8, 10)],
            r"sources\[0\] and destinations\[0\]: got 8 bytes in common .* wanted the very",
        ),
        ([view(0, 10)], [view(100, 10), view(100, 10)], r"destinations\[1\] and destinations\[0\]: got 40 bytes"),
        ([view(0, 10), view(20, 10)], [view(0, 10)], r"sources\[1\] and destinations\[0\]: got 20 bytes"),
    ],
)
def test_overlaps(sources: list[View], destinations: list[View], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        calls.reduce(sources, destinations)


def test_what_may_share_memory() -> None:
    calls.reduce([view(0, 10), view(0, 10), view(20, 10)], [view(200, 10), view(240, 10)])
    calls.reduce([view(0, 10), view(40, 10)], [view(0, 10), view(40, 10)])
    calls.cast(view(0, 8, "bfloat16"), view(0, 8, "float16"))
    with pytest.raises(ArgumentError, match=r"destination and source: got 16 bytes in common"):
        calls.cast(view(0, 8, "bfloat16"), view(0, 8, "float32"))


def test_the_checker_sees_an_access_outside_every_buffer() -> None:
    where = Simulator()
    x, y = where.allocate(64), where.allocate(64)
    where.prepare(copy_kernel(4), [x, y, 16, 0], 1)()
    with pytest.raises(MemoryError, match=r"lie outside every buffer"):
        where.prepare(copy_kernel(4), [x, y, 17, 0], 1)()
    with pytest.raises(MemoryError, match=r"misaligned 4-byte access"):
        where.prepare(copy_kernel(4), [x + 1, y, 3, 0], 1)()
