"""``gpucheck`` where there is no GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there is a GPU")  # noqa: PTH110
def test_without_a_gpu_it_says_so_and_succeeds() -> None:
    environ = {key: value for key, value in os.environ.items() if key != "NUMBA_ENABLE_CUDASIM"}
    done = subprocess.run(
        [sys.executable, "-m", "multiring.bench.gpucheck"], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("gpucheck: nothing to check: device: got 0,")
    assert "wanted" in done.stdout
    assert done.stderr == ""
