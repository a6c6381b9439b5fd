"""These tests run in a process of their own, with Numba's simulator on: ``test_simulated.py`` starts it.

By hand: ``NUMBA_ENABLE_CUDASIM=1 pytest tests/cuda/simulated``.
"""

from __future__ import annotations

from multiring.kernels.cuda.homes import SIMULATED

collect_ignore_glob = [] if SIMULATED else ["test_*.py"]
