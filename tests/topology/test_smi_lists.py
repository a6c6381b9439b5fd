"""Lists of nvidia-smi are read whole, or refused with the line that failed."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiring.errors import TopologyError
from multiring.topology.smi_lists import (
    ListedGpu,
    LostGpu,
    NvlinkStatus,
    normal_bus_id,
    read_gpu_list,
    read_nvlink_status,
    read_query,
)

ONE = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa-1)\n"


def test_gpus_and_their_mig_devices() -> None:
    text = ONE + "  MIG 3g.40gb     Device  0: (UUID: MIG-bbbb)\r\n  MIG 1c.3g.71gb  Device  1: (UUID: MIG-cccc)\n"
    gpus, lost = read_gpu_list(text)
    assert gpus == (ListedGpu(0, "NVIDIA H100 80GB HBM3", "GPU-aaaa-1", ("MIG-bbbb", "MIG-cccc")),)
    assert lost == ()


def test_a_lost_gpu_is_left_out_and_named() -> None:
    text = ONE + "Unable to determine the device handle for GPU 0000:81:00.0: GPU is lost.  Reboot the system\n"
    gpus, lost = read_gpu_list(text)
    assert [gpu.index for gpu in gpus] == [0]
    assert lost == (LostGpu("0000:81:00.0", "GPU is lost.  Reboot the system"),)


def test_other_lines_of_a_list_are_refused() -> None:
    with pytest.raises(TopologyError, match=r"-L, line 2: got 'rubbish', wanted such as GPU 0: NVIDIA H100"):
        read_gpu_list(ONE + "rubbish\n", "-L")
    with pytest.raises(TopologyError, match=r"-L, line 2: .* wanted each GPU once"):
        read_gpu_list(ONE + ONE, "-L")
    assert read_gpu_list("No devices were found\n") == ((), ())


def test_nvlink_status() -> None:
    text = (
        ONE
        + "\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n"
        + ONE.replace("GPU 0", "GPU 1")
        + "\t Link 0: 25 GB/s\n"
        + ONE.replace("GPU 0", "GPU 2")
        + "NVML: Unable to retrieve Nvlink information as all links are inActive\n"
        + "Link 0, P2P is supported: true\n"
    )
    assert read_nvlink_status(text) == (
        NvlinkStatus(0, (26.562,)),
        NvlinkStatus(1, (25.0,)),
        NvlinkStatus(2, (), "NVML: Unable to retrieve Nvlink information as all links are inActive"),
    )


@pytest.mark.parametrize(
    ("below", "message"),
    [
        ("Link 0: Data Tx: 5 KiB", r"s, line 2: .* wanted Link 0 of GPU 0 and its GB/s"),
        ("Link 0: 25 GB/s\n[...]\nLink 17: 25 GB/s", r"s, line 3: got '\[\.\.\.\]', wanted Link 1 of GPU 0"),
        ("Link 0: 25 GB/s\nLink 2: 25 GB/s", r"s, line 3: .* wanted Link 1 of GPU 0"),
        ("Link 0, P2P is supported: true", r"s, line 1: .* wanted its links and their GB/s below it"),
        ("Link 0: Remote Device 00000000:D5:00.0: Link 0", r"s, line 2: .* wanted Link 0 of GPU 0"),
    ],
)
def test_counters_elisions_and_gaps_are_no_status(below: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        read_nvlink_status(ONE + below + "\n", "s")


def test_a_query_is_read_by_the_names_of_its_columns() -> None:
    text = (
        "  uuid, memory.total [MiB], index, gpu_bus_id\n\n"
        "  GPU-a, 23040 MiB, 0, 00000000:1D:00.0\n"
        "  GPU-b, [N/A], 1, [Not Supported]\n"
    )
    assert read_query(text) == [
        {"uuid": "GPU-a", "memory.total": "23040 MiB", "index": "0", "pci.bus_id": "00000000:1D:00.0"},
        {"uuid": "GPU-b", "memory.total": "", "index": "1", "pci.bus_id": ""},
    ]
    with pytest.raises(TopologyError, match=r"q, line 2: got 'a, b', wanted 1 cells as in its header, got 2"):
        read_query("name\na, b\n", "q")
    with pytest.raises(TopologyError, match=r"q: got no line, wanted a header"):
        read_query("", "q")
    with pytest.raises(TopologyError, match=r"q, line 1: .* wanted a header such as index, name"):
        read_query('Field "x" is not valid\n', "q")


def test_bus_ids_are_compared_in_one_form() -> None:
    assert {normal_bus_id(text) for text in ("00000000:1D:00.0", "0000:1d:00.0", " 1D:00.0\n")} == {"0000:1d:00.0"}
    assert normal_bus_id("0000000A:00:00.0") == "000a:00:00.0"
    with pytest.raises(TopologyError, match=r"PCI bus id: got '1d', wanted such as 0000:1d:00.0"):
        normal_bus_id("1d")


@given(st.text(alphabet=st.sampled_from('GPU 0:Link1.5B/s<inactive>(UID-)a,"\n[N/A]'), max_size=150))
def test_no_text_crashes_the_readers(text: str) -> None:
    for read in (read_gpu_list, read_nvlink_status, read_query):
        for whole in (text, ONE + text):
            with contextlib.suppress(TopologyError):
                read(whole)
