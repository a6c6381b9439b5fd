"""Machines as JSON, and several nodes told to each other."""

from __future__ import annotations

import json

import pytest

from multiring.errors import TopologyError
from multiring.topology import preset
from multiring.topology.devices import keep_gpus
from multiring.topology.load import parse_machine
from multiring.topology.presets import PRESETS
from multiring.topology.saved import gather, machine_from_json, machine_to_json


@pytest.mark.parametrize("name", [*PRESETS, "torus-2x3"])
def test_a_machine_comes_back(name: str) -> None:
    machine = preset(name)
    assert machine
    text = json.dumps(machine_to_json(machine), allow_nan=False)
    assert machine_from_json(json.loads(text), "file") == machine
    assert parse_machine(text, "file") == machine
    assert parse_machine(json.dumps({"machine": json.loads(text)}), "file") == machine


def test_other_documents_are_refused() -> None:
    machine = preset("pcie-4")
    assert machine
    good = machine_to_json(machine)
    for document, message in (
        ([], r"file: got list, wanted an object with gpus"),
        ({}, r"file: got KeyError 'gpus', wanted what multiring topo --json writes"),
        (good | {"gpus": []}, r"machine pcie-4: got no GPU"),
        (good | {"gpus": [{}]}, r"file: gpus: got keys \[\], wanted \['bus_id'"),
        (good | {"kinds": [["X"]]}, r"file: got kinds of another size than 6 devices"),
        (good | {"gpus": [good["gpus"][0] | {"place": 99}]}, r"a device is in none of its 5 places"),
        (
            good | {"gpus": [good["gpus"][0] | {"pcie_gbs": "fast"}]},
            r"file: gpus: got pcie_gbs 'fast', wanted a number",
        ),
        (good | {"bundles": [{"a": 1, "b": 0, "count": 1, "link_gbs": 1.0}]}, r"got bundles .*, wanted a < b < 4"),
    ):
        with pytest.raises(TopologyError, match=message):
            machine_from_json(document, "file")
    with pytest.raises(TopologyError, match=r"file: got .*, wanted JSON"):
        parse_machine("{", "file")


def test_nodes_tell_each_other() -> None:
    whole = preset("dgx1-v100")
    assert whole
    told = [(whole, 1, "b"), (whole, 0, "b"), (whole, 5, "a"), (whole, 4, "a")]
    sent: list[bytes] = []
    for machine, gpu, node in told:
        with pytest.raises(StopIteration):
            gather(lambda data: sent.append(data) or next(iter(())), machine, gpu, node)  # type: ignore[func-returns-value]
    found = [gather(lambda _: sent, machine, gpu, node) for machine, gpu, node in told]
    assert {(it.name, it.devices, it.nodes) for it in found} == {
        ("2 nodes", ("node0 GPU1", "node0 GPU0", "node1 GPU5", "node1 GPU4"), (0, 0, 1, 1))
    }
    assert [wire.name for wire in found[0].path(0, 1)] == ["node0 GPU1->GPU0 NV1"]


def test_nodes_that_do_not_fit_are_refused() -> None:
    whole = preset("pcie-4")
    assert whole

    def message(gpu: int, node: str) -> bytes:
        return json.dumps({"machine": machine_to_json(whole), "gpu": gpu, "bus_id": "", "node": node}).encode()

    with pytest.raises(TopologyError, match=r"node a: got ranks \[0, 2\], wanted consecutive ones"):
        gather(lambda _: [message(0, "a"), message(0, "b"), message(1, "a")], whole, 0, "a")
    with pytest.raises(TopologyError, match=r"node a: got ranks on GPUs \[1, 1\] of 4, wanted one GPU for each rank"):
        gather(lambda _: [message(1, "a"), message(1, "a")], whole, 1, "a")
    assert keep_gpus(whole, [0]).gpus == whole.gpus[:1]
