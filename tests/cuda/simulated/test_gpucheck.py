"""The comparisons of ``gpucheck``, in the simulator: they pass, and they see a wrong bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multiring.bench import gpu_cases, gpucheck
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
    assert gpucheck.main(["--only", "reduce sum int8", "--json", str(tmp_path / "g.json")]) == 0
    assert "1 comparisons, 0 wrong, 0 not reached" in capsys.readouterr().out
    assert '"reduce sum int8": "ok"' in (tmp_path / "g.json").read_text()
