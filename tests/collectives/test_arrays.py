"""Any array to address, element type and layout."""

from __future__ import annotations

import ctypes
import gc
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from multiring.collectives import arrays
from multiring.collectives.arrays import address_of, fields_of, may_overlap_itself, view_of
from multiring.errors import ArgumentError, ArgumentTypeError
from tests.collectives.cases import LAYOUTS


class Interface:
    """An array of another library, with ``__array_interface__`` only."""

    def __init__(self, array: Any, **changes: Any) -> None:
        self.array = array
        self.__array_interface__ = {**array.__array_interface__, **changes}


class Exporter:
    """An array of another library, with DLPack only."""

    def __init__(self, array: Any, device: tuple[int, int] = (1, 0)) -> None:
        self.array = array
        self.device = device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)


class OldExporter(Exporter):
    """From before DLPack 1.0."""

    def __dlpack__(self) -> Any:  # type: ignore[override]
        return self.array.__dlpack__()


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Versioned(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    )


class Handmade:
    """A DLPack exporter that says whatever it is told to."""

    def __init__(self, array: Any, code: int, bits: int, **more: Any) -> None:
        self.array = array
        self.shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        steps = more.get("strides")
        self.strides = (ctypes.c_int64 * array.ndim)(*steps) if steps else None
        tensor = Tensor(array.ctypes.data, (1, 0), array.ndim, code, bits, more.get("lanes", 1))
        tensor.shape = ctypes.cast(self.shape, ctypes.POINTER(ctypes.c_int64))
        if self.strides is not None:
            tensor.strides = ctypes.cast(self.strides, ctypes.POINTER(ctypes.c_int64))
        tensor.byte_offset = more.get("byte_offset", 0)
        self.name = b"dltensor"
        self.managed: Any = tensor
        if "version" in more:
            self.name = b"dltensor_versioned"
            self.managed = Versioned(more["version"], None, None, more.get("flags", 0), tensor)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **options: Any) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.managed), self.name, None)


@given(
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
    st.sampled_from(["i1", "u2", "f4", "f8", "c16", "?"]),
    st.data(),
)
def test_fields_are_numpys_own(shape: tuple[int, ...], code: str, data: st.DataObject) -> None:
    code = "i2" if code == "u2" else code
    x: Any = np.zeros(shape, code)
    if shape:
        x = x[data.draw(hnp.basic_indices(shape, allow_ellipsis=False))]
    if not isinstance(x, np.ndarray):
        return
    assert fields_of(x) == (x.ctypes.data, id(x.dtype), x.flags.num)
    view = view_of(x)
    assert (view.address, view.shape, view.size, view.nbytes) == (x.ctypes.data, x.shape, x.size, x.nbytes)
    assert (view.contiguous, view.writable) == (x.flags.c_contiguous, x.flags.writeable)
    assert view.object is x


def test_the_portable_form_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.zeros((3, 4), np.float32)[:, 1]
    quick = fields_of(x)
    monkeypatch.setattr(arrays, "unpack_fields", arrays._unpack_nothing)
    assert fields_of(x) == quick


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str) -> None:
    x = LAYOUTS[layout](np.arange(12, dtype=np.float32).reshape(3, 4))
    view = view_of(x)
    assert view.address == x.ctypes.data
    assert view.direct == (layout == "plain")
    assert np.array_equal(view.array, np.arange(12).reshape(3, 4))


def test_bfloat16_is_ml_dtypes_own_type() -> None:
    view = view_of(np.zeros(5, ml_dtypes.bfloat16))
    assert view.dtype.name == "bfloat16"
    assert view.nbytes == 10


@pytest.mark.parametrize("start", [0, 2])
def test_b28_array_interface_pointer_is_used_as_it_is(start: int) -> None:
    base = np.arange(10.0)
    for x in (Interface(base[start:5]), Interface(base[start:5], strides=None), Interface(base[start:8:2])):
        view = view_of(x)
        assert view.address == base.ctypes.data + 8 * start
        assert np.array_equal(view.array, x.array)
        view.array[0] = -1.0
        assert base[start] == -1.0
        base[start] = start


def test_array_interface_keeps_its_owner_alive() -> None:
    x = Interface(np.arange(4.0))
    owner = weakref.ref(x)
    view = view_of(x)
    view.object = None  # what a caller dropped
    del x
    gc.collect()
    assert owner() is not None
    assert view.array[3] == 3.0


def test_array_interface_read_only_and_negative_strides() -> None:
    base = np.arange(6, dtype=np.int32)
    frozen = view_of(Interface(base, data=(base.ctypes.data, True)))
    assert not frozen.writable
    assert np.array_equal(view_of(Interface(base[::-2])).array, base[::-2])


def test_b45_bfloat16_is_never_guessed() -> None:
    base = np.ones(4, ml_dtypes.bfloat16)
    assert view_of(Interface(base.view(np.float16))).dtype.name == "float16"
    with pytest.raises(ArgumentTypeError, match=r"if it holds bfloat16, say so with x\.view\(ml_dtypes\.bfloat16\)"):
        view_of(Interface(base.view("V2")))
    for typestr in ("<f2", "|V2"):
        said = view_of(Interface(base.view("V2"), typestr=typestr, descr=[("", typestr)]), dtype="bfloat16")
        assert said.dtype.name == "bfloat16"
        assert said.address == base.ctypes.data
        assert np.array_equal(said.array, base)
    with pytest.raises(ArgumentTypeError, match=r"got elements of 2 bytes .*wanted 4 for dtype=float32"):
        view_of(Interface(base.view("V2")), dtype="float32")


@pytest.mark.parametrize("kind", [Exporter, OldExporter])
def test_dlpack_is_zero_copy_in_every_layout(kind: Any) -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    for x in (base, base[1:], base[:, 2], base.T, base[::-1, ::2], base[:0], base[1, 2]):
        if not isinstance(x, np.ndarray):
            continue
        view = view_of(kind(x))
        assert np.array_equal(view.array, x)
        assert view.array.strides == x.strides or 0 in x.shape
        assert view.address == x.ctypes.data or 0 in x.shape
        assert view.writable


def test_dlpack_read_only_flag() -> None:
    x = np.zeros(3)
    x.setflags(write=False)
    assert not view_of(Exporter(x)).writable
    for flags, writable in ((0, True), (1, False), (2, False)):
        made = Handmade(np.zeros(3), 2, 64, version=(1, 0), flags=flags)
        assert view_of(made).writable == writable


def test_dlpack_bfloat16_offset_and_strides() -> None:
    base = np.arange(12, dtype=np.float32).astype(ml_dtypes.bfloat16).reshape(3, 4)
    view = view_of(Handmade(base, 4, 16))
    assert view.dtype.name == "bfloat16"
    assert view.contiguous
    assert view.address == base.ctypes.data
    assert np.array_equal(view.array, base)
    moved = view_of(Handmade(base[:, :2], 4, 16, strides=(4, 1), byte_offset=2))
    assert np.array_equal(moved.array, base[:, 1:3])
    assert moved.address == base.ctypes.data + 2


@pytest.mark.parametrize(
    ("code", "bits", "more", "match"),
    [
        (2, 8, {}, r"DLPack element type \(code 2, 8 bits, 1 lanes\)"),
        (2, 32, {"lanes": 4}, "4 lanes"),
        (3, 64, {}, "code 3"),
        (2, 32, {"version": (2, 0)}, r"got DLPack version 2\.0, wanted 1\.x"),
    ],
)
def test_dlpack_refusals(code: int, bits: int, more: dict[str, Any], match: str) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match=match):
        view_of(Handmade(np.zeros(4, np.float32), code, bits, **more))


def test_dlpack_of_other_devices_and_refusing_exporters() -> None:
    x = np.zeros(3)
    with pytest.raises(ArgumentTypeError, match="in CUDA memory, wanted host memory; copy the array to the host"):
        view_of(Exporter(x, (2, 0)))
    with pytest.raises(ArgumentTypeError, match="DLPack device type 8, wanted host memory"):
        view_of(Exporter(x, (8, 0)))
    assert view_of(Exporter(x, (3, 0))).address == x.ctypes.data

    class Refusing(Exporter):
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("needs a gradient; use detach()")

    with pytest.raises(ArgumentError, match=r"Refusing refused to share its memory: .*use detach\(\)"):
        view_of(Refusing(x))


def test_dlpack_memory_lives_as_long_as_the_view() -> None:
    x = np.arange(1000.0)
    owner = weakref.ref(x)
    view = view_of(Exporter(x))
    view.object = None
    del x
    gc.collect()
    assert owner() is not None
    assert view.array[999] == 999.0
    del view
    gc.collect()
    assert owner() is None


def test_immutable_libraries_give_read_only_arrays() -> None:
    kind = type("ArrayImpl", (Exporter,), {"__module__": "jaxlib.xla_extension"})
    assert not view_of(kind(np.zeros(3))).writable


def test_cuda_array_interface_is_no_host_memory() -> None:
    class OnDevice:
        __cuda_array_interface__ = {"shape": (3,), "typestr": "<f4", "data": (4096, False), "version": 3}

    with pytest.raises(
        ArgumentTypeError, match="OnDevice in CUDA memory, wanted host memory; copy the array to the host"
    ):
        view_of(OnDevice())


def test_m6_other_byte_order_is_refused() -> None:
    with pytest.raises(ArgumentTypeError, match=r"x: dtype: got '>f4' in the other byte order, wanted native"):
        view_of(np.zeros(3, ">f4"))
    with pytest.raises(ArgumentTypeError, match="in the other byte order"):
        view_of(Interface(np.zeros(3, ">i8")))


def test_m7_zero_dimensions_and_scalars() -> None:
    zero = np.array(3.0)
    assert view_of(zero).shape == ()
    assert view_of(zero).direct
    assert view_of(zero).writable
    scalar = view_of(np.float32(3))
    assert not scalar.writable
    assert scalar.size == 1
    assert view_of(ml_dtypes.bfloat16(2)).dtype.name == "bfloat16"


@pytest.mark.parametrize(
    ("x", "match"),
    [
        ([1.0, 2.0], "x: got list, wanted a numpy array or an object with __dlpack__"),
        (3.0, "x: got float, wanted"),
        (None, "x: got NoneType"),
        (np.zeros(2, "V2"), r"if it holds bfloat16"),
        (np.zeros(2, [("a", "f4"), ("b", "i4")]), r"pass one field at a time, x\['field'\]"),
        (np.array(["a"]), "x: dtype: got 'str"),
        (np.array([None]), "x: dtype: got 'object'"),
        (np.ma.masked_array([1.0], [True]), r"masked array, wanted a plain one; use x\.filled"),
        (Interface(np.zeros(2), shape="no"), "has a bad __array_interface__"),
    ],
)
def test_what_is_no_array_is_refused(x: Any, match: str) -> None:
    with pytest.raises(ArgumentTypeError, match=match):
        view_of(x)


def test_subclasses_are_taken_as_plain_arrays() -> None:
    with pytest.warns(PendingDeprecationWarning, match="matrix"):
        x = np.matrix([[1.0, 2.0]])
    view = view_of(x)
    assert type(view.array) is np.ndarray
    assert view.object is x
    assert view.address == address_of(view.array)


@given(st.data())
def test_slices_never_overlap_themselves(data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=4, max_side=5))
    x = np.zeros(shape, np.int32).transpose(data.draw(st.permutations(range(len(shape)))))
    x = x[data.draw(hnp.basic_indices(x.shape, allow_newaxis=True))]
    if isinstance(x, np.ndarray):
        assert not may_overlap_itself(view_of(x))


def test_what_overlaps_itself() -> None:
    assert may_overlap_itself(view_of(np.broadcast_to(np.zeros(3), (2, 3))))
    assert may_overlap_itself(view_of(np.broadcast_to(np.zeros(1), (4,))))
    assert may_overlap_itself(view_of(np.lib.stride_tricks.sliding_window_view(np.zeros(5), 3)))
    assert not may_overlap_itself(view_of(np.broadcast_to(np.zeros((1, 3)), (1, 3))))
