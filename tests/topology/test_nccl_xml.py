"""An NCCL topology XML is read whole, or refused with the line that failed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiring.errors import TopologyError
from multiring.topology.load import parse_machine
from multiring.topology.nccl_xml import read_nccl_topology

GOOD = """\
<system version="1">
  <cpu numaid="1" affinity="ffff" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1">
    <pci busid="0000:03:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:06:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="80" rank="0" gdr="1">
          <nvlink target="0000:85:00.0" count="4" tclass="0x030200"/>
        </gpu>
      </pci>
      <pci busid="0000:07:00.0" class="0x020700" link_speed="8.0 GT/s" link_width="8">
        <nic><net name="mlx5_0" dev="0" speed="200000" port="1"/></nic>
      </pci>
    </pci>
    <nic><net name="docker0" dev="1" speed="10000"/></nic>
  </cpu>
  <cpu numaid="0" affinity="ffff0000" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1">
    <pci busid="0000:85:00.0" class="0x030200" link_speed="" link_width="0">
      <gpu dev="1" sm="80" rank="1" gdr="1">
        <nvlink target="0000:06:00.0" count="4" tclass="0x030200"/>
      </gpu>
    </pci>
  </cpu>
</system>
"""


def test_the_tree_the_links_and_what_they_carry() -> None:
    machine = read_nccl_topology(GOOD, "xml")
    assert [(gpu.label, gpu.bus_id, gpu.capability, gpu.numa, gpu.pcie_gbs) for gpu in machine.gpus] == [
        ("GPU0", "0000:06:00.0", 80, 1, 24.0),
        ("GPU1", "0000:85:00.0", 80, 0, 12.0),
    ]
    assert [(nic.device, nic.network_gbs, nic.pcie_gbs) for nic in machine.nics] == [("mlx5_0", 25.0, 6.0)]
    assert [(it.a, it.b, it.count, it.link_gbs) for it in machine.bundles] == [(0, 1, 4, 20.0)]
    assert [machine.kind(0, b) for b in range(3)] == ["X", "NV4", "PIX"]
    assert machine.kind(1, 2) == "SYS"
    assert [place.uplink_gbs for place in machine.places if place.kind == "numa"] == [24.0, 24.0]


def test_switches_are_switches_whatever_they_are_called() -> None:
    text = GOOD.replace('0x030200"/>', '0x068000"/>').replace('count="4"', 'count="99"')
    machine = read_nccl_topology(text, "xml")
    assert [gpu.switch_links for gpu in machine.gpus] == [12, 12]
    assert machine.notes[0] == "GPU0: 99 links to NVSwitches count as 12, as many as it has"
    assert machine.kind(0, 1) == "NV12"


def test_gpus_by_class_where_a_vendor_only_hints() -> None:
    text = (
        '<system><cpu numaid="0"><pci busid="0001:00:00.0" class="0x030200"/>'
        '<pci busid="0101:00:00.0" class="0x020700"/></cpu></system>'
    )
    machine = read_nccl_topology(text, "xml")
    assert (len(machine.gpus), len(machine.nics)) == (1, 1)
    assert "NVLinks not known" in machine.notes[0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'target="0000:85:00.0" count="4"',
            'target="0000:85:00.0" count="1"',
            r"line 6: got 1 NVLinks from .* and 4 back",
        ),
        ('target="0000:85:00.0"', 'target="0000:06:00.0"', r"line 6: got an NVLink from 0000:06:00.0 to itself"),
        ('count="4"', 'count="many"', r"line 6: got count='many' in <nvlink>, wanted a number from 1 to 1000"),
        ('busid="0000:06:00.0"', 'busid="6"', r"line 4: PCI bus id: got '6', wanted such as"),
        (
            'link_speed="16.0 GT/s PCIe" link_width="16">\n      <pci',
            'link_speed="fast">\n      <pci',
            r"line 3: got link_sp",
        ),
        ('dev="1" sm="80"', 'dev="0" sm="80"', r"got dev numbers \[0, 0\], wanted each once"),
        ('numaid="0"', 'numaid="1"', r"line 15: got numaid 1 twice"),
        ("</cpu>", "</cpx>", r"line 14: got mismatched tag, wanted well-formed XML"),
        ('sm="80" rank="0"', 'rank="0"', r"line 5: got sm='' in <gpu>"),
        ("<system", "<graphs", r"line 22: got mismatched tag"),
    ],
)
def test_what_is_not_whole_is_refused_with_its_line(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(TopologyError, match=message):
        read_nccl_topology(GOOD.replace(old, new, 1), "xml")


def test_other_documents_are_refused_by_name() -> None:
    for text, message in (
        ("<graphs/>", r"line 1: got an NCCL graph, which holds ring orders; wanted the topology"),
        ("<nvidia_smi_log/>", r"line 1: got nvidia-smi -q -x, which lists GPUs"),
        ("<html/>", r"line 1: got <html>, wanted <system> as NCCL writes it"),
        ("<system/>", r"line 1: got no <gpu> and no PCI device"),
    ):
        with pytest.raises(TopologyError, match=message):
            parse_machine(text, "xml")


def test_entities_and_depth_are_refused() -> None:
    bomb = '<!DOCTYPE a [<!ENTITY b "c">]><system>&b;</system>'
    with pytest.raises(TopologyError, match="line 1: got an entity declaration, wanted none"):
        read_nccl_topology(bomb, "xml")
    with pytest.raises(TopologyError, match="got elements more than 64 deep"):
        read_nccl_topology("<a>" * 100 + "</a>" * 100, "xml")


@given(st.data())
def test_no_change_crashes_the_reader(data: st.DataObject) -> None:
    text = GOOD
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        part = data.draw(st.sampled_from(["", '"', "<", "0", "-1", "99", "é", "0000:06:00.0", "<pci/>"]))
        text = text[:at] + part + text[at + data.draw(st.integers(0, 30)) :]
    try:
        machine = parse_machine(text, "xml")
    except TopologyError:
        return
    assert machine.gpus
