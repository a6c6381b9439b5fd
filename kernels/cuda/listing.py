"""Reading machine code: which instructions a kernel consists of, from the disassembler or else from its PTX."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from pathlib import Path

from multiring.kernels.cuda.compile import Built

__all__ = ["MIX", "find_disassembler", "instructions", "mix"]

_SASS = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)
_PTX = re.compile(r"^\s*(?:@!?%p\d+\s+)?([a-z][a-z0-9_]*(?:[.:][a-z0-9_:]+)*)\s[^;]*;", re.MULTILINE)

MIX: dict[str, tuple[str, str]] = {
    "load128": (r"LDG?\..*\b128\b.*", r"ld\.global(\.[a-z_:0-9]+)*\.v4\.u32"),
    "store128": (r"STG?\..*\b128\b.*", r"st\.global(\.[a-z_:0-9]+)*\.v4\.u32"),
    "local": (r"(LDL|STL)(\..*)?", r"(ld|st)\.local\..*"),
    "fma": (r"(FFMA|DFMA)(\..*)?", r"fma\..*"),
    "add": (r"(FADD|DADD)(\..*)?", r"add(\.rn)?\.f(32|64)"),
    "multiply": (r"(FMUL|DMUL)(\..*)?", r"mul(\.rn)?\.f(32|64)"),
    "convert": (r"(F2F|F2FP|HADD2\.F32)(\..*)?", r"cvt\.rn\..*"),
    "call": (r"CALL(\..*)?", r"call(\..*)?"),
}
"""What is counted, by the names in SASS and in PTX. SASS has FFMA where PTX has none: in IEEE division and square root.
HFMA2 is not counted, which moves constants."""


@functools.cache
def find_disassembler() -> str | None:
    """Return the path of ``nvdisasm``, which the package nvidia-cuda-nvdisasm brings, or None."""
    for folder in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path}:
        for name in ("nvidia/cu13/bin/nvdisasm", "nvidia/cuda_nvdisasm/bin/nvdisasm"):
            path = Path(folder) / name
            if path.is_file():
                return str(path)
    return shutil.which("nvdisasm")


def instructions(built: Built) -> tuple[str, list[str]]:
    """Return (``"sass"`` or ``"ptx"``, the instructions of a kernel in order)."""
    disassembler = find_disassembler()
    if disassembler is None:
        body = built.ptx[built.ptx.index(".entry") :]
        return "ptx", [match.group(1) for match in _PTX.finditer(body)]
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.cubin)
        file.flush()
        done = subprocess.run(
            [disassembler, "-c", file.name], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
        )
    return "sass", [match.group(1) for match in _SASS.finditer(done.stdout)]


def mix(built: Built) -> dict[str, int]:
    """Return how many instructions a kernel has, and how many of each kind in :data:`MIX`."""
    form, found = instructions(built)
    counts = Counter(found)
    column = 0 if form == "sass" else 1
    result = {"instructions": len(found)}
    for name, patterns in MIX.items():
        pattern = re.compile(patterns[column])
        result[name] = sum(n for text, n in counts.items() if pattern.fullmatch(text))
    return result
