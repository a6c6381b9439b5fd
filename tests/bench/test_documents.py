"""JSON and CSV: every key, and nothing that is not JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from multiring.bench.documents import csv_columns, document, dump, write_csv


Build = Callable[..., Any]


def refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def written(rows: list[Any]) -> Any:
    stdout = io.StringIO()
    dump(document(rows, {"host": "here"}, ["all_reduce"], "then", "now"), "-", stdout)
    return json.loads(stdout.getvalue(), parse_constant=refuse)


def test_every_key_of_the_contract_is_there(half: Build, row: Build) -> None:
    report = written([row(half(), half(4.0))])
    assert {"config", "results", "average_bus_bandwidth", "errors"} <= set(report)
    (line,) = report["results"]
    assert {"size", "count", "type", "redop", "root", "algorithm", "out_of_place", "in_place"} <= set(line)
    assert (line["size"], line["count"], line["type"], line["redop"], line["root"]) == (1024, 256, "float", "sum", -1)
    for name, time_us in (("out_of_place", 2.0), ("in_place", 4.0)):
        figures = line[name]
        assert figures["time"] == time_us
        assert figures["alg_bw"] == pytest.approx(1.024 / time_us)
        assert figures["bus_bw"] == pytest.approx(1.024 / time_us)
        assert figures["nwrong"] == 0
        assert figures["predicted_us"] is None
        assert (figures["limit_us"], figures["limit_bytes"]) == (1.0, 1024)
        assert figures["peers"]["mpi"]["time"] == 3 * time_us
        assert figures["peers"]["mpi"]["ratio"] == 3.0
        assert {"alg_bw", "bus_bw", "how"} <= set(figures["peers"]["mpi"])
    assert report["average_bus_bandwidth"] == pytest.approx((1.024 / 2 + 1.024 / 4) / 2)
    assert report["errors"] == 0


def test_b121_figures_that_are_not_finite_are_null(half: Build, row: Build) -> None:
    bad = replace(half(0.0), alg_bw_gbs=math.inf, bus_bw_gbs=math.nan)
    report = written([row(bad, None)])
    figures = report["results"][0]["out_of_place"]
    assert (figures["alg_bw"], figures["bus_bw"]) == (None, None)
    assert report["average_bus_bandwidth"] is None
    assert report["results"][0]["in_place"] is None


def test_b121_values_are_numbers_not_text(half: Build, row: Build) -> None:
    line = written([row(half(), None)])["results"][0]
    assert all(type(line[key]) is int for key in ("size", "count", "root"))
    assert all(type(line["out_of_place"][key]) is float for key in ("time", "alg_bw", "bus_bw", "limit_us"))


def test_b122_errors_are_counted(half: Build, row: Build) -> None:
    report = written([row(half(n_wrong=1), half(n_wrong=0))])
    assert report["errors"] == 1
    assert report["out_of_bounds"] == {"count": 1, "okay": False}


def test_no_lines_is_a_document_too() -> None:
    assert written([])["average_bus_bandwidth"] is None


def test_csv_has_one_line_for_each_size_and_half(tmp_path: Path, half: Build, row: Build) -> None:
    path = tmp_path / "result.csv"
    write_csv([row(half(), half(4.0)), row(half(8.0), None)], str(path), ["mpi"])
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(line["half"], line["time_us"]) for line in lines] == [
        ("out_of_place", "2.0"), ("in_place", "4.0"), ("out_of_place", "8.0"),
    ]  # fmt: skip
    assert list(lines[0]) == csv_columns(["mpi"])
    assert lines[0]["predicted_us"] == ""
    assert lines[0]["mpi_ratio"] == "3.0"
    assert lines[0]["mpi_how"] == "Allreduce on float32"
