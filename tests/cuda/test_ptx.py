"""Machine code for real architectures, read without a GPU: registers, local memory, accesses, no contraction."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from multiring.errors import ArgumentError
from multiring.kernels.cuda import catalog, compile, listing, report
from multiring.kernels.cuda.compile import CAPABILITIES, Built, Kernel, build
from multiring.kernels.dtypes import DTYPES
from multiring.kernels.operations import OPERATIONS, reduction
from multiring.kernels.rules import RULES

DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
MISSING = report.missing_compiler()

pytestmark = [
    pytest.mark.ptx,
    pytest.mark.skipif(MISSING is not None, reason=f"ptx: {MISSING}"),
    pytest.mark.timeout(900),
]

DIVIDES = re.compile(r"operation=avg|rule=(adam|lamb|adafactor)")


def chosen() -> list[tuple[Kernel, tuple[tuple[int, int], ...]]]:
    """Every kernel for every architecture in the deep profile; else one of each kind, each for one of them."""
    if DEEP:
        return [(kernel, CAPABILITIES) for kernel in catalog.every_kernel()]
    few = catalog.few_kernels()
    # The first of them, a sum in bfloat16, for all: Turing has no instruction that rounds to bfloat16.
    some = [(kernel, (CAPABILITIES[k % len(CAPABILITIES)],)) for k, kernel in enumerate(few)]
    return [(few[1], CAPABILITIES), *(pair for pair in some if pair[0] is not few[1])]


def registers_allowed(kernel: Kernel) -> int:
    """Return what so many resident blocks leave each thread."""
    return min(65536 // (kernel.blocks_per_processor * kernel.threads), 255)


@pytest.mark.parametrize(
    ("kernel", "capabilities"), chosen() if MISSING is None else [], ids=lambda v: getattr(v, "name", "")
)
def test_kernels(kernel: Kernel, capabilities: tuple[tuple[int, int], ...]) -> None:
    for capability, built in build(kernel, capabilities).items():
        where = f"{kernel.name} {compile.architecture(capability)}"
        counts = listing.mix(built)
        assert built.spill_bytes == 0, where
        assert built.stack_bytes == 0, where
        assert counts["local"] == 0, where
        assert 0 < built.registers <= registers_allowed(kernel), where
        assert min(counts["load128"], counts["store128"]) >= 2, where
        assert not re.search(r"\bfma\.|\.ftz\b|\.approx\b|\.full\b", built.ptx), where
        if not DIVIDES.search(kernel.name):
            assert counts["fma"] == 0, where
        assert "ld.local" not in built.ptx
        assert "st.local" not in built.ptx


def _one(kernel: Kernel, capability: tuple[int, int]) -> Built:
    return build(kernel, [capability])[capability]


def test_bfloat16_is_rounded_by_the_instruction_where_there_is_one() -> None:
    kernel = catalog.reduce_kernel(DTYPES["bfloat16"], OPERATIONS["sum"])
    assert "cvt.rn.bf16.f32" not in _one(kernel, (7, 5)).ptx
    assert "cvt.rn.bf16.f32" in _one(kernel, (8, 0)).ptx


def test_a_sum_keeps_eight_loads_under_way() -> None:
    """Two sources, four vectors each, before the first is needed."""
    form, found = listing.instructions(_one(catalog.reduce_kernel(DTYPES["bfloat16"], OPERATIONS["sum"]), (9, 0)))
    if form != "sass":
        pytest.skip("ptx: nvdisasm is not installed (pip install nvidia-cuda-nvdisasm)")
    longest = run = 0
    for name in found:
        if name.startswith("LDG") and ".128" in name:
            run += 1
            longest = max(longest, run)
        elif name.startswith(("STG", "BRA", "EXIT")):
            run = 0
    assert longest >= 8


def test_a_function_of_the_users_is_compiled() -> None:
    def shifted(a: Any, b: Any) -> Any:
        return a + b if a > b else b - a

    kernel = catalog.reduce_kernel(DTYPES["float32"], reduction(shifted))
    built = _one(kernel, (9, 0))
    assert (built.stack_bytes, built.spill_bytes) == (0, 0)
    assert "sub" in built.ptx


def test_the_host_s_primitives_are_refused_by_name() -> None:
    """Numba's CUDA target sees what is registered for the host, and would compile a system call."""
    from numba.core.errors import TypingError

    from multiring.kernels.primitives import futex_wake

    def make() -> Any:
        def kernel(address: int) -> None:
            futex_wake(address)

        return kernel

    with pytest.raises(TypingError, match=r"multiring\.kernels\.primitives\.futex_wake has no CUDA twin"):
        build(Kernel("refused", make, 1, 32, 1, kept=False), [(9, 0)])


def test_an_architecture_that_the_compiler_does_not_know() -> None:
    kernel = catalog.copy_kernel(8)
    with pytest.raises(ArgumentError, match=r"copy,itemsize=8: got compute capability 5\.0, wanted one that"):
        build(kernel, [(5, 0)])


def test_cubins_are_kept_and_found_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compile, "cubin_folder", lambda: tmp_path)
    monkeypatch.setattr(compile, "_built", {})
    first = _one(catalog.copy_kernel(4), (9, 0))
    monkeypatch.setattr(compile, "_built", {})
    monkeypatch.setattr(compile, "_library", lambda *_: pytest.fail("compiled again"))
    assert _one(catalog.copy_kernel(4), (9, 0)) == first
    assert first.cubin[:4] == b"\x7fELF"
    monkeypatch.setattr(compile, "_built", {})
    (next(tmp_path.iterdir()) / "sm_90.json").write_text("{")
    with pytest.raises(pytest.fail.Exception, match="compiled again"):
        _one(catalog.copy_kernel(4), (9, 0))


def test_an_edited_source_gets_another_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = Path(compile.__file__).parent
    before = compile.cubin_folder()
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + (b"#" if path == here / "lanes.py" else b""))
    compile.cubin_folder.cache_clear()
    try:
        assert compile.cubin_folder() != before
    finally:
        compile.cubin_folder.cache_clear()


def test_the_report(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert report.main(["--only", "copy,itemsize=4", "--capability", "9.0", "--json", str(tmp_path / "r.json")]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"copy,itemsize=4 +sm_90 +\d+ +0 +0 ", printed)
    assert "1 kernels, 1 cubins, 0 with local memory" in printed


@pytest.mark.parametrize("dtype", ["int32", "float64"])
def test_updates_of_other_types_are_refused(dtype: str) -> None:
    with pytest.raises(TypeError, match=rf"gradient: got {dtype}, wanted float16, bfloat16 or float32"):
        catalog.update_kernel(RULES["sgd"], DTYPES[dtype])
    with pytest.raises(
        TypeError, match=r"weight: got float32 for rule lamb_direction, wanted None: it makes no weight"
    ):
        catalog.update_kernel(RULES["lamb_direction"], DTYPES["float32"], DTYPES["float32"])
