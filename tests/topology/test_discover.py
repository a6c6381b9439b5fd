"""A fake nvidia-smi on PATH: what works, what fails, and what hangs."""

from __future__ import annotations

import re
import shlex
import stat
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from multiring.errors import TopologyError
from multiring.topology import preset
from multiring.topology.discover import Discovery, discover
from multiring.topology.rings import rings
from multiring.topology.routes import cluster
from multiring.topology.text import matrix_text

LIST = "".join(f"GPU {at}: Tesla V100-SXM2-16GB (UUID: GPU-0000{at})\n" for at in range(8))
QUERY = "index, name, uuid, pci.bus_id, pcie.link.gen.max, pcie.link.width.max, compute_cap\n" + "".join(
    f"{at}, Tesla V100-SXM2-16GB, GPU-0000{at}, 00000000:{at + 6:02X}:00.0, 3, 16, 7.0\n" for at in range(8)
)
ALL_OK = (
    "\t"
    + "\t".join(f"GPU{at}" for at in range(8))
    + "\n"
    + "".join(f" GPU{a}\t" + "\t".join("X" if a == b else "OK" for b in range(8)) + "\n" for a in range(8))
)

Smi = Callable[..., Discovery]


def alive(group: int) -> list[str]:
    """Return the processes of a group that run: one that was killed may wait for its parent to notice."""
    found: list[str] = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = file.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(its_group) == group and state != "Z":
            found.append(file.parent.name)
    return found


def matrix() -> str:
    machine = preset("dgx1-v100")
    assert machine
    return matrix_text(machine)


@pytest.fixture
def smi(tmp_path: Path) -> Smi:
    """Put a fake nvidia-smi on PATH and discover: ``answers`` holds its output, or output and status, by arguments."""

    def run(answers: Mapping[str, str | tuple[str, int]], script: str = "", **environ: str) -> Discovery:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        cases: list[str] = []
        for number, (arguments, answer) in enumerate(answers.items()):
            text, status = answer if isinstance(answer, tuple) else (answer, 0)
            (folder / f"{number}.txt").write_text(text)
            # Without cat: PATH holds nothing else.
            copy = 'while IFS= read -r line || [ -n "$line" ]; do echo "$line"; done'
            cases.append(f'"{arguments}"*) {copy} < {folder}/{number}.txt; exit {status};;')
        program = folder / "nvidia-smi"
        body = script or 'case "$*" in\n' + "\n".join(cases) + "\n*) echo unknown; exit 2;;\nesac"
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return discover({"PATH": str(folder), "HOME": str(tmp_path), **environ}, sys=tmp_path)

    return run


def whole(**changes: str | tuple[str, int]) -> dict[str, str | tuple[str, int]]:
    answers: dict[str, str | tuple[str, int]] = {
        "-L": LIST,
        "topo -m": matrix(),
        "--query-gpu": QUERY,
        "topo -p2p": ALL_OK,
    }
    return answers | {key.replace("_", " "): answer for key, answer in changes.items()}


def test_a_whole_machine(smi: Smi) -> None:
    found = smi(whole())
    assert found.warning == ""
    assert found.machine
    assert [gpu.bus_id for gpu in found.machine.gpus] == [f"0000:{at + 6:02x}:00.0" for at in range(8)]
    assert {(gpu.capability, gpu.pcie_gbs, gpu.link_gbs) for gpu in found.machine.gpus} == {(70, 12.0, 20.0)}
    assert found.machine.gpus[3].uuid == "GPU-00003"
    assert rings(cluster("t", [found.machine])).total_bandwidth_gbs == 120.0


def test_windows_text(smi: Smi) -> None:
    found = smi({key: answer.replace("\n", "\r\n") for key, answer in whole().items() if isinstance(answer, str)})
    assert found.warning == ""
    assert found.machine
    assert len(found.machine.gpus) == 8


def test_no_nvidia_smi_is_no_gpu_and_no_warning(tmp_path: Path) -> None:
    found = discover({"PATH": str(tmp_path)})
    assert (found.machine, found.warning) == (None, "")
    assert "nvidia-smi is not on PATH" in found.reason


def test_no_devices_is_no_gpu_and_no_warning(smi: Smi) -> None:
    for answer in ("No devices found.\n", ("No devices were found\n", 6)):
        found = smi({"-L": answer})
        assert (found.machine, found.warning, found.reason) == (None, "", "nvidia-smi knows no GPU")


def test_failing(smi: Smi) -> None:
    found = smi({"-L": ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", 9)})
    assert found.machine is None
    assert found.warning.startswith("nvidia-smi -L: failed with exit status 9: NVIDIA-SMI has failed because")
    assert found.warning.endswith("; going on without GPUs")


def test_killed_by_a_signal(smi: Smi) -> None:
    assert "nvidia-smi -L: was ended by signal 9" in smi({}, "kill -9 $$").warning


def test_not_a_program(smi: Smi, tmp_path: Path) -> None:
    smi(whole())
    (tmp_path / "bin" / "nvidia-smi").write_bytes(b"\x7fELF rubbish")
    found = discover({"PATH": str(tmp_path / "bin")})
    assert "nvidia-smi -L: cannot be started: Exec format error" in found.warning


@pytest.mark.parametrize("script", ["sleep 60", "echo GPU; sleep 60 & wait", "exec sleep 60", "(sleep 60 &); exit 0"])
def test_hanging_ends_at_the_limit_with_all_it_started(smi: Smi, script: str, tmp_path: Path) -> None:
    marked = f"PATH=/usr/bin:/bin; echo $$ > {tmp_path}/pid; {script}"
    found = smi({}, marked, MULTIRING_SMI_TIMEOUT_S="0.5")
    assert found.machine is None
    assert "nvidia-smi -L: did not end within the time limit and was killed" in found.warning
    group = int((tmp_path / "pid").read_text())
    for _ in range(1000):
        if not alive(group):
            break
        time.sleep(0.01)
    assert alive(group) == []


def test_endless_output_is_cut(smi: Smi) -> None:
    found = smi({}, f"exec {shlex.quote(sys.executable)} -c \"while True: print('rubbish' * 1000)\"")
    assert "nvidia-smi -L: got more than 1048576 bytes of output" in found.warning


def test_rubbish(smi: Smi) -> None:
    found = smi({"-L": "\0\1\2 rubbish\n"})
    assert found.machine is None
    assert "nvidia-smi -L, line 1: got" in found.warning


@pytest.mark.parametrize(
    ("answer", "warning"),
    [
        (("", 255), r"nvidia-smi topo -m: failed with exit status 255: no message"),
        ("", r"nvidia-smi topo -m: got no matrix"),
        ("TWO", r"nvidia-smi topo -m: got 2 matrices, at lines 1, 21"),
        ("CUT", r"nvidia-smi topo -m: the matrix at line 1 ends at line 4 without a row for GPU3"),
        ("ASYMMETRIC", r"nvidia-smi topo -m, line 2: .* wanted equal cells of GPU0 and GPU1"),
    ],
)
def test_a_matrix_that_is_not_whole_leaves_the_host_to_join_gpus(
    smi: Smi, answer: str | tuple[str, int], warning: str
) -> None:
    text = matrix()
    changed = {
        "TWO": text + text,
        "CUT": "".join(text.splitlines(keepends=True)[:4]),
        "ASYMMETRIC": text.replace("GPU1\tNV1", "GPU1\tNV2"),
    }
    found = smi(whole(**{"topo_-m": changed.get(answer, answer) if isinstance(answer, str) else answer}))
    assert found.machine
    assert re.search(warning, found.warning), found.warning
    assert found.warning.endswith("going on as if nothing but the host joined the GPUs")
    assert len(found.machine.gpus) == 8
    assert found.machine.bundles == ()
    assert found.machine.gpus[2].bus_id == "0000:08:00.0"


def test_a_lost_gpu(smi: Smi) -> None:
    text = LIST.replace(
        LIST.splitlines()[2], "Unable to determine the device handle for GPU 0000:08:00.0: Unknown Error"
    )
    found = smi(whole(**{"-L": text}))
    assert found.machine
    assert [gpu.label for gpu in found.machine.gpus] == ["GPU0", "GPU1", "GPU3", "GPU4", "GPU5", "GPU6", "GPU7"]
    assert found.warning == "GPUs that the driver cannot reach are left out: 0000:08:00.0"


def test_an_old_driver_without_the_newest_columns(smi: Smi) -> None:
    old = "\n".join(line.rpartition(",")[0] for line in QUERY.splitlines()) + "\n"
    short = "--query-gpu=index,name,uuid,pci.bus_id,pcie.link.gen.max,pcie.link.width.max --format"
    answers = {short: old} | whole(**{"--query-gpu": ('Field "compute_cap" is not a valid field to query.\n', 2)})
    found = smi(answers)
    assert found.machine
    assert found.machine.gpus[0].bus_id == "0000:06:00.0"
    assert found.machine.gpus[0].capability == 70


def test_unknown_gpus_take_their_links_speed(smi: Smi) -> None:
    names = {
        key: answer.replace("Tesla V100-SXM2-16GB", "NVIDIA Z999")
        for key, answer in whole().items()
        if isinstance(answer, str)
    }
    status = "".join(line + "\n\t Link 0: 50 GB/s\n" for line in names["-L"].splitlines())
    found = smi(names | {"--query-gpu": ("", 2), "nvlink -s": status})
    assert found.machine
    assert {it.link_gbs for it in found.machine.bundles} == {40.0}


def test_pairs_without_access(smi: Smi) -> None:
    rows = ALL_OK.splitlines()
    rows[1] = rows[1].replace("\tOK", "\tCNS", 1)
    rows[2] = rows[2].replace("\tOK", "\tCNS", 1)
    found = smi(whole(**{"topo_-p2p": "\n".join(rows) + "\n"}))
    assert found.machine
    assert found.machine.refused == {(0, 1)}
    assert "no direct reads between GPU0-GPU1 (nvidia-smi topo -p2p r)" in found.machine.notes


def test_visible_devices(smi: Smi) -> None:
    found = smi(whole(), CUDA_VISIBLE_DEVICES="3,0,GPU-00007")
    assert found.machine
    assert [gpu.label for gpu in found.machine.gpus] == ["GPU3", "GPU0", "GPU7"]
    assert "5 of 8 GPUs are hidden from this process" in found.machine.notes
    hidden = smi(whole(), CUDA_VISIBLE_DEVICES="")
    assert (hidden.machine, hidden.warning) == (None, "")
    assert hidden.reason == "CUDA_VISIBLE_DEVICES= hides all 8 GPUs"


def test_mig(smi: Smi) -> None:
    text = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n  MIG 3g.40gb     Device  0: (UUID: MIG-1)\n"
    found = smi({"-L": text, "topo -m": "\tGPU0\tCPU Affinity\nGPU0\t X \t0-19\n", "--query-gpu": ("", 2)})
    assert found.machine
    assert found.warning == ""
    assert "GPU0 runs as 1 MIG devices: CUDA shows one, without NVLink" in found.machine.notes


def test_the_locale_is_c(smi: Smi, tmp_path: Path) -> None:
    smi({}, f'echo "$LC_ALL" > {tmp_path}/locale; echo "No devices found."', LC_ALL="de_DE.UTF-8")
    assert (tmp_path / "locale").read_text() == "C\n"


def test_port_speeds(smi: Smi, tmp_path: Path) -> None:
    port = tmp_path / "class" / "infiniband" / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    (port / "rate").write_text("200 Gb/sec (4X HDR)\n")
    found = smi(whole())
    assert found.machine
    assert [nic.network_gbs for nic in found.machine.nics] == [25.0, 12.0, 12.0, 12.0]


def test_a_wrong_limit_is_an_error(smi: Smi) -> None:
    for text in ("soon", "0", "-1", "inf", "nan"):
        with pytest.raises(TopologyError, match=rf"MULTIRING_SMI_TIMEOUT_S: got '{text}', wanted seconds above 0"):
            smi(whole(), MULTIRING_SMI_TIMEOUT_S=text)
