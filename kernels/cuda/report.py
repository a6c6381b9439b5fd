"""``python -m multiring.kernels.cuda.report``: registers, stack and instruction mix of the kernels, with no GPU.

Options: ``--all`` for every kernel instead of one of each kind, ``--only TEXT`` for those whose name holds a text,
``--json FILE`` to keep the figures, ``--capability 9.0`` (repeatable) instead of the usual four.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from multiring.errors import MultiringError
from multiring.kernels.cuda import homes
from multiring.kernels.cuda.catalog import every_kernel, few_kernels
from multiring.kernels.cuda.compile import CAPABILITIES, Kernel, architecture, build
from multiring.kernels.cuda.listing import find_disassembler, mix

__all__ = ["figures", "main", "missing_compiler", "table"]

COLUMNS = ("registers", "stack", "spill", "instructions", "load128", "store128", "local", "fma", "convert", "call")


def missing_compiler() -> str | None:
    """Return why kernels cannot be compiled here, or None."""
    if homes.SIMULATED:
        return "NUMBA_ENABLE_CUDASIM is set: the simulator has no compiler"
    try:
        importlib.import_module("cuda.core")
        from numba.cuda.cudadrv import nvrtc
        from numba.cuda.cudadrv.nvvm import NVVM

        NVVM()
        nvrtc.get_supported_ccs()
    except Exception as error:  # Whatever keeps the compiler from loading is the answer.
        return f"no CUDA compiler ({type(error).__name__}: {error}); pip install 'numba-cuda[cu13]'"
    return None


def figures(kernel: Kernel, capabilities: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """Return one row for each architecture."""
    rows: list[dict[str, Any]] = []
    for capability, built in build(kernel, capabilities).items():
        row: dict[str, Any] = {"kernel": kernel.name, "architecture": architecture(capability)}
        row |= {"registers": built.registers, "stack": built.stack_bytes, "spill": built.spill_bytes}
        rows.append(row | mix(built))
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as text, a line for each."""
    width = max((len(row["kernel"]) for row in rows), default=6)
    lines = [f"{'kernel':<{width}} arch   " + " ".join(f"{name:>{len(name)}}" for name in COLUMNS)]
    for row in rows:
        cells = " ".join(f"{row[name]:>{len(name)}}" for name in COLUMNS)
        lines.append(f"{row['kernel']:<{width}} {row['architecture']:<6} {cells}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if a kernel has local memory or spills, 0 without a compiler."""
    parser = argparse.ArgumentParser(prog="python -m multiring.kernels.cuda.report", description=__doc__)
    parser.add_argument("--all", action="store_true", help="every kernel")
    parser.add_argument("--only", default="", metavar="TEXT", help="kernels whose name holds this")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--capability", action="append", metavar="MAJOR.MINOR")
    options = parser.parse_args(arguments)
    why = missing_compiler()
    if why is not None:
        sys.stdout.write(f"kernels-report: {why}\n")
        return 0
    if options.capability:
        capabilities = tuple((int(c.partition(".")[0]), int(c.partition(".")[2] or 0)) for c in options.capability)
    else:
        capabilities = CAPABILITIES
    kernels = [k for k in (every_kernel() if options.all else few_kernels()) if options.only in k.name]
    rows: list[dict[str, Any]] = []
    failures = 0
    for kernel in kernels:
        try:
            rows += figures(kernel, capabilities)
        except MultiringError as error:
            sys.stderr.write(f"error: {error}\n")
            failures += 1
    sys.stdout.write(table(rows) + "\n")
    if find_disassembler() is None:
        sys.stdout.write("instructions are PTX's: nvdisasm is missing (pip install nvidia-cuda-nvdisasm)\n")
    bad = [row for row in rows if row["stack"] or row["spill"] or row["local"]]
    sys.stdout.write(f"{len(kernels)} kernels, {len(rows)} cubins, {len(bad)} with local memory\n")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return 1 if bad or failures else 0


if __name__ == "__main__":
    sys.exit(main())
