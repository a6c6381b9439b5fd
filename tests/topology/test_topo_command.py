"""``multiring topo``: text, JSON and pictures of machines here and elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from multiring.bench.topo_command import topo
from multiring.errors import TopologyError
from multiring.topology import load, preset
from multiring.topology.rings import rings
from multiring.topology.svg import draw
from multiring.topology.text import matrix_text


def run(*arguments: str, **environ: str) -> Result:
    hidden = {"PATH": "/nonexistent", "MULTIRING_TOPOLOGY": None} | environ
    return CliRunner().invoke(topo, list(arguments), env=hidden, catch_exceptions=False)


def document(*arguments: str, **environ: str) -> dict[str, Any]:
    result = run(*arguments, "--json", **environ)
    assert result.exit_code == 0
    found: dict[str, Any] = json.loads(result.stdout, parse_constant=lambda text: pytest.fail(text))
    return found


def test_json_has_the_keys_of_its_contract(tmp_path: Path) -> None:
    machine = preset("dgx1-v100")
    assert machine
    file = tmp_path / "topo.txt"
    file.write_text(matrix_text(machine))
    found = document("--from", str(file))
    assert [gpu["name"] for gpu in found["gpus"]] == [f"GPU{at}" for at in range(8)]
    assert [nic["device"] for nic in found["nics"]] == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]
    assert {"a": "GPU0", "b": "GPU3", "kind": "NV2", "bandwidth_gbs": 40.0} in found["links"]
    assert {"a": "GPU0", "b": "NIC0", "kind": "PIX", "bandwidth_gbs": 12.0} in found["links"]
    assert len(found["links"]) == 8 * 7 // 2 + 8 * 4
    assert [sorted(ring["order"]) for ring in found["rings"]] == [list(range(8))] * 6
    assert {ring["bandwidth_gbs"] for ring in found["rings"]} == {20.0}
    assert found["total_bandwidth_gbs"] == 120.0
    assert found["source"] == "topo.txt"


def test_what_it_writes_it_reads(tmp_path: Path) -> None:
    file = tmp_path / "saved.json"
    first = document("--from", "dgx-a100", "--nodes", "2")
    file.write_text(json.dumps(first))
    second = document("--from", str(file), "--nodes", "2")
    assert {key: second[key] for key in ("gpus", "links", "rings", "box")} == {
        key: first[key] for key in ("gpus", "links", "rings", "box")
    }


def test_text_says_what_and_why() -> None:
    result = run("--from", "dgx1-v100")
    assert result.exit_code == 0
    for part in (
        "GPU0     X      NV1     NV1     NV2",
        "NV2       40.0 GB/s     8 pairs  2 NVLinks",
        "Rings: 120.0 GB/s together",
        "they use 48 of 48 directed links",
        "Limit: the 6 NVLinks of GPU0, 20 GB/s each",
        "Source: NVLink 20.0 GB/s per link and direction: NCCL 2.30",
    ):
        assert part in result.stdout


def test_a_machine_without_gpu_shows_the_host() -> None:
    result = run()
    assert result.exit_code == 0
    assert "Sockets: " in result.stdout
    assert "NUMA nodes: " in result.stdout
    assert "Rings: " in result.stdout
    assert result.stderr == ""
    found = document()
    assert found["gpus"] == found["links"] == []
    assert found["host"]["sockets"]
    assert found["rings"][0]["order"][0] == 0


def test_the_environment_names_a_topology() -> None:
    assert document(MULTIRING_TOPOLOGY="pcie-4")["name"] == "pcie-4"
    assert document("--from", "pcie-8", MULTIRING_TOPOLOGY="pcie-4")["name"] == "pcie-8"


def test_a_failing_nvidia_smi_is_one_warning(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho broken >&2\nexit 9\n")
    program.chmod(0o700)
    result = run(PATH=str(tmp_path))
    assert result.exit_code == 0
    assert result.stderr == "warning: nvidia-smi -L: failed with exit status 9: broken; going on without GPUs\n"
    assert "this host (nvidia-smi failed)" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--from", "nothing"], 1, "error: topology nothing: got neither a file nor a preset"),
        (["--nodes", "0"], 2, "error: multiring topo: --nodes: got 0, wanted at least 1"),
        (["--svg", "x.svg"], 1, "error: --svg: got no GPU to draw"),
        (
            ["--from", "pcie-4", "--svg", "/nonexistent/x.svg"],
            1,
            "error: --svg /nonexistent/x.svg: cannot be written: No such",
        ),
        (["--wrong"], 2, "error: multiring topo: No such option"),
    ],
)
def test_errors_are_one_line(arguments: list[str], status: int, message: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "multiring", "topo", *arguments],
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "n_nodes"), [("dgx1-v100", 1), ("dgx-a100", 2), ("pcie-8", 1), ("torus-4x4", 1), ("gb200-nvl72", 1)]
)
def test_pictures_hold_every_device_and_ring(name: str, n_nodes: int) -> None:
    topology = load(name, n_nodes)
    found = rings(topology)
    picture = ElementTree.fromstring(draw(topology, found))
    space = "{http://www.w3.org/2000/svg}"
    texts = [text.text or "" for text in picture.iter(f"{space}text")]
    for gpu in topology.machines[0].gpus:
        assert gpu.label in texts or gpu.label[3:] in texts
    assert f"{found.total_bandwidth_gbs:.1f} GB/s together" in " ".join(texts)
    heads = list(picture.iter(f"{space}polygon"))
    assert len(heads) == min(12, len(set(found.orders))) * topology.n_ranks
    width, height = float(picture.get("width", 0)), float(picture.get("height", 0))
    for shape in picture.iter():
        for x in ("x", "cx", "x1", "x2"):
            assert 0 <= float(shape.get(x, 0)) <= width
        for y in ("y", "cy", "y1", "y2"):
            assert 0 <= float(shape.get(y, 0)) <= height


def test_svg_is_written(tmp_path: Path) -> None:
    file = tmp_path / "a.svg"
    assert run("--from", "dgx-a100", "--svg", str(file)).exit_code == 0
    assert file.read_text().startswith("<svg ")
    with pytest.raises(TopologyError, match="--svg: got no GPU to draw, wanted a machine with GPUs"):
        run("--svg", str(file))
