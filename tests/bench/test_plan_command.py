"""``multiring plan``: what it prints, writes, saves, loads and compares; and how it refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.support.command import json_of, run_command

DGX = ("all_reduce", "--bytes", "64M", "--topology", "dgx1-v100", "--nodes", "4")
N = 64 << 20


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    return run_command(capsys, "plan", *words)


def plan(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    return json_of(capsys, "plan", *words)


def test_json_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys, *DGX)
    wanted = {
        "collective", "algorithm", "n_ranks", "nbytes", "n_steps", "bytes_sent_per_rank", "predicted_us", "steps",
        "alternatives", "reason",
    }  # fmt: skip
    assert wanted <= set(found)
    assert (found["collective"], found["n_ranks"], found["nbytes"]) == ("all_reduce", 32, N)
    assert found["n_steps"] == len(found["steps"]) > 0
    assert math.isclose(sum(step["predicted_us"] for step in found["steps"]), found["predicted_us"])
    prices = [other["predicted_us"] for other in found["alternatives"]]
    assert prices == sorted(prices)
    assert found["predicted_us"] <= prices[0]
    assert found["algorithm"] not in [other["algorithm"] for other in found["alternatives"]]
    assert "the least" in found["reason"]
    for step in found["steps"]:
        for transfer in step["transfers"]:
            assert set(transfer) == {"src", "dst", "op", "chunks", "bytes", "link", "predicted_us"}
            assert transfer["predicted_us"] <= step["predicted_us"] * (1 + 1e-9)


def test_a_box_is_priced_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys, *DGX, "--algorithm", "box:8x4")
    assert (found["algorithm"], found["reason"]) == ("box:8x4", "the caller asked for it")
    assert found["n_steps"] == 2 * (7 + 3)
    assert found["bytes_sent_per_rank"] == 2 * 31 * N // 32
    assert sum(t["bytes"] for step in found["steps"] for t in step["transfers"]) == 32 * found["bytes_sent_per_rank"]
    assert any(other["predicted_us"] < found["predicted_us"] for other in found["alternatives"])


def test_an_impossible_box_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, *DGX, "--algorithm", "box:8x5")
    assert (status, out) == (2, "")
    assert err.startswith("error: multiring plan: box 8x5: got 32 ranks, wanted 40, the product of its sizes")
    assert err.count("\n") == 1


def test_the_price_of_a_ring_on_a_host_is_the_closed_form(capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys, "all_reduce", "--bytes", "4M", "--topology", "host-4", "--algorithm", "ring")
    # 2 (p - 1) steps of one message: 0.2 us, and n/p bytes at 12 GB/s.
    wanted = 2 * 3 * (0.2 + (4 << 20) / 4 / 12e3)
    assert found["predicted_us"] == pytest.approx(wanted)
    transfer = found["steps"][0]["transfers"][0]
    assert transfer["predicted_us"] == pytest.approx(wanted / 6)
    assert transfer["link"] == f"shared memory to rank {transfer['dst']}"


def test_text_shows_steps_links_and_losers(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "allreduce", "--bytes", "1K", "--topology", "host-3", "--algorithm", "ring")
    lines = out.splitlines()
    assert status == 0
    assert lines[0] == "all_reduce of 1024 bytes of float32, 3 ranks on host: ring, 4 steps"
    assert lines[1] == "  because the caller asked for it"
    assert sum(line.startswith("  step ") for line in lines) == 4
    assert "bytes over shared memory to rank" in lines[4]
    assert any(line.startswith("  not direct (") and "times as long" in line for line in lines)


def test_pictures_and_traces_are_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    svg, trace = tmp_path / "plan.svg", tmp_path / "plan.json"
    words = ("broadcast", "--bytes", "1M", "--topology", "host-4", "--root", "2", "--algorithm", "binomial")
    assert run(capsys, *words, "--svg", str(svg), "--trace", str(trace))[0] == 0
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    events = json.loads(trace.read_text())["traceEvents"]
    assert {event["tid"] for event in events if event["ph"] == "X"} == {0, 1, 3}


def test_a_saved_plan_is_the_same_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = str(tmp_path / "plan.json")
    made = plan(capsys, *DGX, "--save", file)
    loaded = plan(capsys, "--load", file)
    assert loaded == made
    status, out, _ = run(capsys, *DGX, "--diff", file)
    assert (status, out) == (0, "the plans are the same\n")


def test_plans_that_differ(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = str(tmp_path / "plan.json")
    words = ("all_reduce", "--bytes", "1M", "--topology", "host-4")
    run(capsys, *words, "--algorithm", "ring", "--save", file)
    status, out, _ = run(capsys, *words, "--algorithm", "chain", "--diff", file)
    assert status == 1
    assert "algorithm: ring -> chain\n" in out
    assert "n_steps: 6 -> 20\n" in out
    assert "alternative chain: gone\n" in out
    assert "alternative ring: new\n" in out
    assert any(line.startswith("step 0: without ") for line in out.splitlines())
    found = json.loads(run(capsys, *words, "--algorithm", "chain", "--diff", file, "--json")[1])
    assert found["same"] is False
    assert found["differences"] == out.splitlines()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "COLLECTIVE: missing, wanted such as: all_reduce --bytes 64M"),
        (("all_reduce", "--topology", "host-2"), "--bytes: missing"),
        (("all_reduce", "--bytes", "1"), "--topology: missing"),
        (("all_reduce", "--bytes", "6", "--topology", "host-2"), "--bytes: got 6, wanted whole elements of 4 bytes"),
        (("all_reduce", "--bytes", "x", "--topology", "host-2"), "--bytes: got 'x', wanted bytes such as"),
        (("sum", "--bytes", "8", "--topology", "host-2"), "collective: got 'sum', wanted one of barrier, all_reduce"),
        (("all_reduce", "--bytes", "8", "--topology", "dgx9"), "topology dgx9: got neither a file nor a preset"),
        (("all_reduce", "--bytes", "8", "--topology", "host-2", "--algorithm", "x"), "algorithm: 'x' is not known"),
        (("all_reduce", "--bytes", "8", "--topology", "host-2", "--nodes", "0"), "got 0 nodes, wanted at least 1"),
        (("broadcast", "--bytes", "8", "--topology", "host-2", "--root", "5"), "got root 5, wanted one of 2 ranks"),
        (
            ("all_reduce", "--bytes", "8", "--topology", "host-3", "--algorithm", "ring", "--order", "rank"),
            "does not add 3 ranks in ascending rank",
        ),
        (("--load", "none.json"), "plan none.json: No such file or directory, wanted a file of multiring plan --save"),
        (("all_reduce", "--load", "none.json"), "--load: got 'none.json' and a plan to make, wanted one of them"),
        (
            ("all_reduce", "--bytes", "8", "--topology", "host-2", "--svg", "/none/x.svg"),
            "--svg: got '/none/x.svg', wanted a file in a folder that exists",
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
