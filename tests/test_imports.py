"""What an import may load: the pure parts nothing heavy, `import multiring` neither numba nor an MPI nor a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = {"numba", "llvmlite", "cupy", "mpi4py", "torch", "jax", "matplotlib", "rich"}


def modules_below(folder: str) -> list[str]:
    """Return the importable names of a top-level folder's modules."""
    paths = sorted((ROOT / folder).rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return ["multiring." + name.removesuffix(".__init__") for name in names]


def loaded_by(*names: str) -> set[str]:
    """Import ``names`` in a fresh process and return the top-level packages it then holds."""
    code = (
        "import importlib, json, sys\n"
        f"for name in {list(names)!r}: importlib.import_module(name)\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("folder", ["topology", "collectives/schedules", "collectives/bootstrap"])
def test_pure_parts_load_nothing_heavy(folder: str) -> None:
    assert loaded_by(*modules_below(folder)) & HEAVY == set()


def test_import_multiring_loads_nothing_heavy() -> None:
    assert loaded_by("multiring") & HEAVY == set()


def test_the_command_line_loads_nothing_heavy_before_a_command_runs() -> None:
    assert loaded_by("multiring.bench.cli") & HEAVY == set()


def test_every_public_name_is_there() -> None:
    code = "import multiring\nfor name in multiring.__all__: getattr(multiring, name)"
    subprocess.run([sys.executable, "-c", code], check=True)
