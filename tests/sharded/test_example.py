"""The example trains, and the number of ranks does not matter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "train_digits.py"


@pytest.mark.shm
def test_digits_are_learnt_on_any_number_of_ranks() -> None:
    pytest.importorskip("sklearn", reason="the example's data set is scikit-learn's")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--ranks", "1,2,4", "--rule", "adam"],
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=200, check=True,
    )  # fmt: skip
    rows = [line.split() for line in done.stdout.splitlines() if line.strip().startswith("adam")]
    assert [row[1] for row in rows] == ["replicated", "sharded"] * 3
    assert {row[3] for row in rows} == {rows[0][3]}  # the accuracy, equal on 1, 2 and 4 ranks
    assert float(rows[0][3]) > 0.95
    losses = [float(row[2]) for row in rows]
    assert max(losses) - min(losses) < 1e-4
    # Three float32 for each parameter, over the ranks.
    whole = int(rows[0][5])
    assert [int(row[5]) for row in rows] == [whole, whole, whole, -(-whole // 24) * 12, whole, -(-whole // 48) * 12]
