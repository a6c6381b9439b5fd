"""The comparisons of ``gpucheck``, in the simulator: they pass, and they see a wrong bit."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

import multiring as mr
from multiring.bench import gpu_cases, gpu_ranks, gpucheck
from multiring.collectives.device_view import device_view_of
from multiring.kernels.cuda.launch import launcher
from multiring.kernels.dtypes import DTYPES

pytestmark = pytest.mark.sim


@pytest.mark.parametrize(
    "only", ["reduce avg float16", "cast float32 to bfloat16", "pack float32 as float16", "update adamw"]
)
def test_the_comparisons_pass(only: str) -> None:
    results = gpucheck.check_kernels(launcher(), (0, 1, 37), (0, 1), only)
    assert results
    assert set(results.values()) == {"ok"}


def test_a_wrong_bit_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    host = gpu_cases._host

    def wrong(*arguments: Any, **options: Any) -> Any:
        out = host(*arguments, **options)
        out.view(np.uint8)[-1] ^= 1
        return out

    monkeypatch.setattr(gpu_cases, "_host", wrong)
    results = gpucheck.check_kernels(launcher(), (5,), (0,), "reduce sum int16")
    assert results["reduce sum int16"].startswith("5 elements at offset 0: 1 of 5 differ, first at 4: got 0x")


def test_what_is_written_around_an_array_is_seen() -> None:
    where = launcher()
    memory = gpu_cases.DeviceMemory(where, 4, DTYPES["int8"], 1)
    where.upload(memory.address + memory.start + 4, np.zeros(1, np.uint8))
    with pytest.raises(gpu_cases.Difference, match="bytes around the array were written"):
        memory.get()


def test_what_the_deadline_leaves_out_is_said() -> None:
    assert gpucheck.check_kernels(launcher(), (1,), (0,), "reduce max bool", 0.0) == {"reduce max bool": "not reached"}


def test_main_prints_a_summary(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    assert gpucheck.main(["--ranks", "0", "--only", "reduce sum int8", "--json", str(tmp_path / "g.json")]) == 0
    assert "1 comparisons, 0 wrong, 0 not reached" in capsys.readouterr().out
    assert '"reduce sum int8": "ok"' in (tmp_path / "g.json").read_text()


@pytest.mark.parametrize("mode", ["stepped", "fused"])
def test_collectives_between_launched_ranks(mode: str) -> None:
    found = gpucheck.check_ranks(mode, 2, (64,), 120.0)
    assert "error" not in found, found
    assert found["mode"] == mode
    assert len(found["collectives"]) == 34
    assert set(found["collectives"].values()) == {"ok"}
    assert found["times_us"]["64"] > 0


def test_ranks_that_cannot_start_are_wrong(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = gpucheck.check_ranks("quick", 1, (), 120.0)
    assert "MULTIRING_CUDA_MODE: got 'quick', wanted fused or stepped" in found["error"]
    monkeypatch.setattr(gpucheck, "check_ranks", lambda mode, *_: found if mode == "fused" else {"collectives": {}})
    assert gpucheck.main(["--only", "reduce sum int8"]) == 1
    assert "WRONG fused ranks: " in capsys.readouterr().out


def test_results_that_differ_are_counted() -> None:
    class Wrong:
        """One rank whose sums are wrong."""

        rank, size = 0, 1

        def __init__(self, comm: Any) -> None:
            self.comm = comm

        def all_reduce(self, x: Any, **options: Any) -> Any:
            self.comm.all_reduce(x, **options)
            view = device_view_of(x)
            ctypes.memset(view.address, 0x40, view.dtype.itemsize)
            return x

        def __getattr__(self, name: str) -> Any:
            return getattr(self.comm, name)

    with mr.init(device="cuda") as comm:
        found = gpu_ranks.check_collectives(Wrong(comm), 10)
    assert {n for n, text in found.items() if text == "1 of 10 elements differ"} == {
        n for n in found if n.startswith("all_reduce")
    }
    assert found["broadcast int32 ordinary"] == "ok"
