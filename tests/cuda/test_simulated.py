"""Starts the tests that need Numba's simulator, which a process has from its start or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from multiring.kernels.cuda.homes import SIMULATED

FOLDER = Path(__file__).parent / "simulated"
MODULES = sorted(path.name for path in FOLDER.glob("test_*.py"))


@pytest.mark.sim
@pytest.mark.timeout(1800)
@pytest.mark.skipif(SIMULATED, reason="sim: this process is the simulator's")
@pytest.mark.parametrize("module", MODULES)
def test_in_the_simulator(module: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FOLDER / module)]
    done = subprocess.run(
        command,
        cwd=FOLDER.parents[2],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-12000:] + done.stderr[-2000:]
