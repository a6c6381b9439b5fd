"""The disk cache: hits, edits, races, read-only homes, and the user's own settings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import pytest
from numba import types

import multiring
from multiring.kernels import build
from multiring.kernels.kinds import span_name

REPORT = """
import numpy, ctypes
import multiring
from multiring.kernels import build
from multiring.kernels.dtypes import DTYPES
from multiring.kernels.operations import OPERATIONS
kernels = [
    build._span("reduce", dtype=DTYPES["float32"], operation=OPERATIONS["sum"]),
    build._span("cast", source=DTYPES["float32"], destination=DTYPES["bfloat16"]),
    build._span("copy", itemsize=4),
]
x, y = numpy.array([1.0, 2.0], "f4"), numpy.zeros(2, "f4")
tables = numpy.array([x.ctypes.data, x.ctypes.data, y.ctypes.data] + [0] * 8, "i8")
at = tables.ctypes.data
ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)(kernels[0].address)(at, 2, at + 16, 1, 2, at + 24)
print(y.tolist(), [k.cache_hits for k in kernels], build.cache_folder(), sep=";")
"""


def start(cache: Path | str, tree: Path | None = None, **environment: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(tree)] if tree else [p for p in sys.path if p])
    environment = {**os.environ, "PYTHONPATH": path, "MULTIRING_CACHE_DIR": str(cache), **environment}
    return subprocess.Popen([sys.executable, "-c", REPORT], stdout=subprocess.PIPE, text=True, env=environment)


def finish(process: subprocess.Popen[str]) -> tuple[str, str, Path]:
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    result, hits, folder = output.strip().split(";")
    return result, hits, Path(folder)


def test_of_processes_that_start_together_one_compiles_and_later_ones_load(tmp_path: Path) -> None:
    together = [finish(process) for process in [start(tmp_path, PYTHONHASHSEED=str(k)) for k in range(3)]]
    assert {result for result, _, _ in together} == {"[2.0, 4.0]"}
    for position in (1, 4, 7):
        assert sorted(hits[position] for _, hits, _ in together) == ["0", "1", "1"]
    assert finish(start(tmp_path))[1] == "[1, 1, 1]"


def test_an_edit_of_a_leaf_is_seen(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    package = Path(multiring.__file__).parent
    shutil.copytree(package, tree / "multiring", ignore=shutil.ignore_patterns("__pycache__"))
    scalars = tree / "multiring" / "kernels" / "scalars.py"
    before = finish(start(tmp_path / "cache", tree))
    assert before[0] == "[2.0, 4.0]"
    text = scalars.read_text()
    assert text.count("    return a + b\n") == 1
    scalars.write_text(text.replace("    return a + b\n", "    return a + b + b\n"))
    after = finish(start(tmp_path / "cache", tree))
    assert (after[0], after[1]) == ("[3.0, 6.0]", "[0, 0, 0]")
    assert before[2] != after[2]


def test_where_nothing_can_be_written_a_private_folder_serves_and_goes(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    result, hits, folder = finish(start(in_the_way))
    assert (result, hits) == ("[2.0, 4.0]", "[0, 0, 0]")
    assert in_the_way not in folder.parents
    assert not folder.exists()


def test_the_users_own_cache_settings_are_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    build.span_address("copy", itemsize=2)
    build.native(add_one, types.int64(types.int64))
    assert str(tmp_path) == numba.config.CACHE_DIR
    assert not list(tmp_path.iterdir())


def add_one(x: int) -> int:
    return x + 1


def test_native_returns_something_quick_that_converts_and_runs() -> None:
    function = build.native(add_one, types.int64(types.int64))
    assert function(41) == 42
    assert not hasattr(function, "py_func"), "the dispatcher is slower than the entry point"


def test_names_tell_kernels_apart() -> None:
    assert span_name("copy", itemsize=4, stream=False) == "copy,itemsize=4,stream=False"


def test_a_full_disk_costs_the_cache_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    from numba.core import caching

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(caching.IndexDataCacheFile, "save", full)
    monkeypatch.setattr(caching.IndexDataCacheFile, "load", lambda *arguments: None)
    assert build.span_address("copy", itemsize=3)
    assert build.native(add_two, types.int64(types.int64))(40) == 42


def add_two(x: int) -> int:
    return x + 2
