"""The example trains, and the number of ranks does not matter."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "train_digits.py"


@pytest.fixture
def example() -> Any:
    pytest.importorskip("sklearn", reason="the example's data set is scikit-learn's")
    spec = importlib.util.spec_from_file_location("train_digits", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.shm
def test_digits_are_learnt_on_any_number_of_ranks(example: Any, on_processes: Any) -> None:
    found = {}
    for size, sharded in ((1, False), (1, True), (2, False), (2, True), (4, True)):
        rows = on_processes(size, lambda comm, mode=sharded: example.train(comm, "adam", mode, epochs=5))
        assert len({(row["accuracy"], row["weights"], row["state"]) for row in rows}) == 1
        found[size, sharded] = rows[0]
    first = found[1, False]
    assert first["accuracy"] > 0.95
    for (size, sharded), row in found.items():
        assert row["accuracy"] == first["accuracy"]
        assert row["loss"] == pytest.approx(first["loss"], rel=1e-3)  # a batch's sums are split in other places
        assert row["weights"] == pytest.approx(first["weights"], rel=1e-6)
        share = size if sharded else 1
        assert row["state"] == 12 * -(-first["state"] // 12 // share)  # three float32 for each parameter
        assert row["weights"] == found[size, True]["weights"]


@pytest.mark.shm
def test_the_example_prints_a_table(example: Any) -> None:
    words = [sys.executable, str(PROGRAM), "--rule", "sgd", "--epochs", "1"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    rows = [line.split() for line in done.stdout.splitlines() if line.strip().startswith("sgd")]
    assert [row[1] for row in rows] == ["replicated", "sharded"]
    assert rows[0][3:4] == rows[1][3:4]
