"""Which GPU is which: bus ids decide, and the environment shows a part."""

from __future__ import annotations

import pytest

from multiring.errors import TopologyError
from multiring.topology import Gpu, Machine, preset
from multiring.topology.devices import by_bus_id, keep_gpus, visible_gpus
from multiring.topology.smi_lists import ListedGpu

THREE = (ListedGpu(0, "A", "GPU-aa11"), ListedGpu(1, "A", "GPU-aa22"), ListedGpu(2, "A", "GPU-bb33"))
MIXED = (ListedGpu(0, "A", "GPU-aa11"), ListedGpu(1, "B", "GPU-aa22"))
MIG = (ListedGpu(0, "A", "GPU-aa11", ("MIG-cc", "MIG-dd")), ListedGpu(1, "A", "GPU-aa22"))


def test_cuda_counts_fastest_first_and_nvidia_smi_by_bus_id() -> None:
    machine = Machine(
        "m", tuple(Gpu(f"GPU{at}", 0, 1.0, bus_id=f"0000:{bus}:00.0") for at, bus in enumerate(("02", "81", "82")))
    )
    assert by_bus_id(["00000000:81:00.0", "82:00.0", "0000:02:00.0"], machine) == (1, 2, 0)
    with pytest.raises(TopologyError, match=r"CUDA device 0000:90:00.0: got no such GPU in .*, wanted one of 0000:02"):
        by_bus_id(["0000:90:00.0"], machine)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        (None, (0, 1, 2)), ("", ()), ("2,0", (2, 0)), (" 1 , 0 ", (1, 0)), ("0,-1,1", (0,)), ("7,0", ()),
        ("0,x,1", (0,)),
        ("GPU-bb", (2,)), ("GPU-aa22,GPU-bb33", (1, 2)), ("GPU-zz,0", ()), ("NoDevFiles", ()),
    ],
)  # fmt: skip
def test_what_the_environment_shows(text: str | None, seen: tuple[int, ...]) -> None:
    environ = {} if text is None else {"CUDA_VISIBLE_DEVICES": text}
    assert visible_gpus(THREE, environ) == seen


def test_what_the_environment_cannot_mean() -> None:
    with pytest.raises(
        TopologyError, match=r"CUDA_VISIBLE_DEVICES=GPU-aa: got 'GPU-aa', which begins the UUIDs of 2 GPUs"
    ):
        visible_gpus(THREE, {"CUDA_VISIBLE_DEVICES": "GPU-aa"})
    with pytest.raises(TopologyError, match=r"CUDA_VISIBLE_DEVICES=1,1: got GPU 1 twice, wanted each once"):
        visible_gpus(THREE, {"CUDA_VISIBLE_DEVICES": "1,1"})
    with pytest.raises(
        TopologyError, match=r"got numbers, which count these GPUs .* wanted CUDA_DEVICE_ORDER=PCI_BUS_ID"
    ):
        visible_gpus(MIXED, {"CUDA_VISIBLE_DEVICES": "1"})
    assert visible_gpus(MIXED, {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) == (1,)
    assert visible_gpus(MIXED, {"CUDA_VISIBLE_DEVICES": "GPU-aa2,GPU-aa1"}) == (1, 0)


@pytest.mark.parametrize("text", ["MIG-dd", "MIG-cc,MIG-dd", "0", "MIG-GPU-aa11/1/0"])
def test_mig_devices_are_their_gpu(text: str) -> None:
    assert visible_gpus(MIG, {"CUDA_VISIBLE_DEVICES": text}) == (0,)


def test_a_part_keeps_labels_links_and_cells() -> None:
    machine = preset("dgx1-v100")
    assert machine
    part = keep_gpus(machine, [5, 1, 2])
    assert [gpu.label for gpu in part.gpus] == ["GPU5", "GPU1", "GPU2"]
    assert {(it.a, it.b): it.count for it in part.bundles} == {(0, 1): 2, (1, 2): 2}
    assert part.kind(0, 1) == machine.kind(5, 1) == "NV2"
    assert part.kind(0, 2) == machine.kind(5, 2) == "SYS"
    with pytest.raises(TopologyError, match="got no GPU to keep"):
        keep_gpus(machine, [])
