"""``multiring simulate``: tables, JSON, CSV and pictures of collectives and of training steps."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from pathlib import Path
from typing import Any

import pytest

from multiring.bench.simulate_command import parse_nodes, parse_sizes
from multiring.errors import ArgumentError
from tests.support.command import json_of, run_command


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    return run_command(capsys, "simulate", *words)


def report(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    return json_of(capsys, "simulate", *words)


def test_the_best_box_of_each_node_count(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(
        capsys, "all_reduce", "--topology", "s822lc", "--nodes", "1,4,16", "--bytes", "100M", "--box", "auto"
    )
    assert [(one["nodes"], one["n_ranks"]) for one in found["best"]] == [(1, 4), (4, 16), (16, 64)]
    for one in found["best"]:
        rivals = [row for row in found["results"] if row["nodes"] == one["nodes"]]
        assert one["tried"] == len(rivals)
        assert one["predicted_us"] == min(row["predicted_us"] for row in rivals)
        assert one["algorithm"].startswith("box:")
        for row in rivals:
            n = row["n_ranks"]
            assert row["bytes_sent_per_rank"] == pytest.approx(2 * (n - 1) / n * row["nbytes"], rel=1e-4)
            assert row["alg_bw_gbs"] == pytest.approx(row["nbytes"] / row["predicted_us"] / 1e3)
            assert row["bus_bw_gbs"] == pytest.approx(row["alg_bw_gbs"] * 2 * (n - 1) / n)


def test_algorithms_over_sizes_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(
        capsys,
        "all_gather",
        "--topology",
        "host-4",
        "--bytes",
        "1K:16K:4",
        "--algorithm",
        "ring",
        "--algorithm",
        "bruck",
    )
    rows = [line.split() for line in out.splitlines() if not line.startswith("#")]
    assert status == 0
    assert [row[2] for row in rows] == ["1024"] * 2 + ["4096"] * 2 + ["16384"] * 2
    assert {row[-1] for row in rows} == {"ring", "bruck"}
    assert "# best on 1 nodes, 1024 bytes: bruck," in out


def test_a_box_that_fits_some_node_counts(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, "all_reduce", "--topology", "s822lc", "--nodes", "1,2", "--box", "4x2")
    assert [row["nodes"] for row in found["results"]] == [2]
    assert found["notes"] == [
        "box:4x2 on 1 nodes: box 4x2: got 4 ranks, wanted 8, the product of its sizes (4, 2x2 would fit)"
    ]


@pytest.mark.parametrize("name", ["resnet50", "resnet101", "transformer-big", "gnmt", "ncf", "bert-large"])
def test_every_workload_scales(capsys: pytest.CaptureFixture[str], name: str) -> None:
    found = report(capsys, "--workload", name, "--topology", "dgx-a100", "--nodes", "1,2")
    rows = found["results"]
    assert [(row["nodes"], row["overlap"], row["sharded"]) for row in rows] == [
        (nodes, overlap, sharded) for nodes in (1, 2) for overlap in (False, True) for sharded in (False, True)
    ]
    for row in rows:
        assert row["efficiency"] == pytest.approx(found["alone_us"] / row["step_us"])
    assert all(one["what"] and one["value"] and one["source"] for one in found["assumptions"])


def test_the_table_prints_assumptions_and_compares_with_what_was_published(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--workload", "resnet50", "--topology", "s822lc", "--nodes", "1,64", "--algorithm", "ring")
    status, out, _ = run(capsys, *words)
    assert status == 0
    for one in report(capsys, *words)["assumptions"]:
        assert f"# {one['what']}: {one['value']}  [{one['source']}]\n" in out
    assert "# published: 95 % at 256 P100 of 64 S822LC" in out
    assert "% without overlap and" in out
    assert "the published 95 % lies" in out
    without = run(capsys, "--workload", "resnet50", "--topology", "s822lc")[1]
    assert "none of these node counts has 256 GPUs to compare with" in without


def test_sharding_pays_where_the_update_is_long(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--workload", "transformer-big", "--topology", "dgx-h100", "--nodes", "2", "--update-fraction", "0.45")
    rows = {(row["overlap"], row["sharded"]): row for row in report(capsys, *words)["results"]}
    assert rows[True, True]["step_us"] < rows[True, False]["step_us"] * 0.65
    # The bound of a sharded update: 1 / ((1 - f) + f / N).
    assert rows[True, False]["step_us"] / rows[True, True]["step_us"] < 1 / (0.55 + 0.45 / 16)


def test_csv_and_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("broadcast", "--topology", "host-3", "--bytes", "1K", "--root", "1")
    out = run(capsys, *words, "--csv")[1]
    rows = list(csv.DictReader(io.StringIO(out)))
    assert {"nodes", "n_ranks", "nbytes", "algorithm", "predicted_us", "alg_bw_gbs", "bus_bw_gbs"} <= set(rows[0])
    assert run(capsys, *words, "--csv", str(tmp_path / "t.csv"), "--json", str(tmp_path / "t.json"))[0] == 0
    assert (tmp_path / "t.csv").read_text() == out
    assert len(json.loads((tmp_path / "t.json").read_text())["results"]) == len(rows)
    training = run(capsys, "--workload", "ncf", "--topology", "pcie-4", "--csv")[1]
    assert len(list(csv.DictReader(io.StringIO(training)))) == 4


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
@pytest.mark.parametrize("ending", ["svg", "html"])
def test_a_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"t.{ending}"
    words = ("--workload", "ncf", "--topology", "pcie-4", "--nodes", "1,2", "--plot", str(file))
    assert run(capsys, *words)[0] == 0
    assert "<svg" in file.read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("all_reduce",), "--topology: missing, wanted a preset such as s822lc"),
        (("--topology", "host-2"), "COLLECTIVE and --workload: got neither, wanted one of them"),
        (
            ("all_reduce", "--workload", "ncf", "--topology", "host-2"),
            "COLLECTIVE and --workload: got both, wanted one of them",
        ),
        (("all_reduce", "--topology", "s822lc", "--box", "8x5"), "box 8x5: got 4 ranks, wanted 40, the product of"),
        (("all_reduce", "--topology", "s822lc", "--box", "x"), "box: got 'x', wanted sizes such as 4x8x8"),
        (("broadcast", "--topology", "s822lc", "--box", "auto"), "'box' does not serve broadcast"),
        (
            ("all_reduce", "--topology", "s822lc", "--box", "4", "--algorithm", "ring"),
            "--box and --algorithm: got both, wanted one of them",
        ),
        (("all_reduce", "--topology", "s822lc", "--nodes", "1,x"), "--nodes: got '1,x', wanted numbers from 1"),
        (("all_reduce", "--topology", "s822lc", "--bytes", "1:2:3:4"), "--bytes: got '1:2:3:4', wanted a size"),
        (("--workload", "ncf", "--topology", "pcie-4", "--dtype", "int32"), "--dtype: got int32, wanted a floating"),
        (("--workload", "ncf", "--topology", "pcie-4", "--bucket", "0"), "--bucket: got 0 bytes, wanted at least 1"),
        (("--workload", "ncf", "--topology", "pcie-4", "--compute-ms", "0"), "--compute-ms: got 0.0, wanted more than"),
        (
            ("--workload", "ncf", "--topology", "pcie-4", "--update-fraction", "1"),
            "--update-fraction: got 1.0, wanted at least 0 and less than 1",
        ),
    ],
)
def test_bad_usage_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_slices_overlap_fabrics(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("all_reduce", "--topology", "dgx-a100", "--nodes", "4", "--bytes", "256M", "--box", "8x4")
    (whole,), (sliced,) = (report(capsys, *words, "--slices", count)["results"] for count in ("1", "16"))
    assert sliced["predicted_us"] < whole["predicted_us"]
    status, _, err = run(capsys, "--workload", "ncf", "--topology", "pcie-4", "--slices", "2")
    assert status == 2
    assert "--slices: got 2 with --workload" in err


def test_lists() -> None:
    assert parse_nodes("1, 2,2,64") == (1, 2, 64)
    assert parse_sizes("1K:8K,100,1K") == (1024, 2048, 4096, 8192, 100)
    with pytest.raises(ArgumentError, match="--nodes: got '0', wanted numbers from 1"):
        parse_nodes("0")
