"""Pictures, where matplotlib is there to draw them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from multiring.bench.cases import make_case
from multiring.bench.plot import check_plot, write_plot
from multiring.bench.rows import Half, PeerFigures, Row
from multiring.kernels.dtypes import DTYPES
from multiring.kernels.operations import OPERATIONS


def rows() -> list[Row]:
    made = []
    for nbytes in (1024, 4096):
        case = make_case("all_reduce", 2, nbytes, DTYPES["float32"], OPERATIONS["sum"], "sum")
        peer = PeerFigures(3.0, 0.3, 0.3, 1.5, 0, "Allreduce")
        made.append(Row(case, "direct", Half(2.0, 0.5, 0.5, 0, None, 1.0, nbytes, {"mpi": peer}), None, 20))
    return made


@pytest.mark.parametrize(("ending", "first"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".html", b"<!doctype html>")])
def test_a_picture_is_written(tmp_path: Path, ending: str, first: bytes) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"sweep{ending}"
    check_plot(str(path))
    write_plot(rows(), str(path), "all_reduce, 2 ranks", ["mpi"])
    written = path.read_bytes()
    assert written.startswith(first)
    if ending != ".png":
        assert all(label in written.decode() for label in ("multiring", "mpi", "limit", "GB/s"))


def test_a_missing_plotter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_module(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("multiring.bench.plot.importlib.import_module", no_module)
    with pytest.raises(Exception, match=r"--plot: needs matplotlib.*pip install 'multiring\[plot\]'"):
        check_plot("x.png")
