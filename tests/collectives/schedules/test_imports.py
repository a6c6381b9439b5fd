"""Schedules and topologies are pure: they can be read, checked and drawn where no compiler, GPU or MPI is."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["multiring.collectives.schedules", "multiring.topology"])
def test_the_pure_parts_load_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('numba', 'cupy', 'mpi4py', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
