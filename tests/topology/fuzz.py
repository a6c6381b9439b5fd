"""A longer search for texts that crash a reader or are half-read: ``python -m tests.topology.fuzz --seconds 600``.

Changes texts of every format again and again; those that are read differently from all before are changed further, as
coverage-guided fuzzers do with new paths. Ends with status 1 and the text where a reader raises anything but
TopologyError, or takes a matrix that is not whole.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections.abc import Callable

from multiring.errors import TopologyError
from multiring.topology import cluster, preset
from multiring.topology.load import parse_machine
from multiring.topology.machine import Machine
from multiring.topology.rings import rings
from multiring.topology.saved import machine_to_json
from multiring.topology.smi_lists import read_gpu_list, read_nvlink_status, read_query
from tests.topology.machines import SAVED, check_rings
from tests.topology.test_nccl_xml import GOOD as XML
from tests.topology.test_smi_matrix import CHANGES, check_whole, lines

ONE = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa-1)\n"
SEEDS = [
    *map(lines, CHANGES),
    XML,
    ONE + "  MIG 3g.40gb     Device  0: (UUID: MIG-bbbb)\n",
    ONE + "\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n",
    "index, name, uuid, pci.bus_id\n0, A, GPU-a, 00000000:1D:00.0\n",
]
PARTS = [
    "",
    "\t",
    " ",
    "\n",
    "\r",
    "X",
    "NV1",
    "NV99",
    "SYS",
    "GPU1",
    "|",
    "0",
    "-1",
    "9" * 30,
    "<",
    ">",
    '"',
    "&",
    "{",
    "é",
    "\0",
]
MAX_SEEDS = 2000


def whole(text: str) -> None:
    """Read a text as a machine and check its rings."""
    check_whole(text)
    machine = parse_machine(text, "text")
    if len(machine.gpus) <= 8:
        topology = cluster("text", [machine])
        check_rings(topology, rings(topology))


READERS: list[Callable[[str], object]] = [whole, read_gpu_list, read_nvlink_status, read_query]


def seeds() -> list[str]:
    """Return texts of every format, and those of the folder of saved outputs where it is there."""
    texts = list(SEEDS)
    machine: Machine | None = preset("pcie-4")
    if machine:
        texts.append(json.dumps(machine_to_json(machine)))
    if SAVED.exists():
        texts += [
            path.read_bytes().decode("utf-8", "replace")
            for path in sorted(SAVED.iterdir())
            if path.stat().st_size < 6000
        ]
    return texts


def changed(text: str, rng: random.Random, others: list[str]) -> str:
    """Return a text with one to six changes."""
    for _ in range(rng.randint(1, 6)):
        at, to = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
        match rng.randint(0, 4):
            case 0:
                text = text[:at] + rng.choice(PARTS) + text[at:]
            case 1:
                text = text[:at] + text[min(to, at + rng.randint(1, 60)) :]
            case 2:
                text = text[:to] + text[at:to] + text[to:]
            case 3:
                other = rng.choice(others)
                text = text[:at] + other[rng.randint(0, len(other)) :][: rng.randint(1, 80)] + text[at:]
            case _:
                rows = text.splitlines(keepends=True)
                rng.shuffle(rows)
                text = "".join(rows) if rng.random() < 0.2 else text[:at]
    return text[:20_000]


def main() -> int:
    """Search until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    texts = seeds()
    ways: set[str] = set()
    runs = 0
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        text = changed(rng.choice(texts), rng, texts)
        way = ""
        for read in READERS:
            runs += 1
            try:
                read(text)
                way += "read "
            except TopologyError as error:
                way += re.sub(r"'.*?'|\d+", "", str(error))[:60]
            except Exception as error:
                sys.stderr.write(f"{read.__name__} raised {type(error).__name__}: {error}\n{text!r}\n")
                return 1
        if way not in ways and len(texts) < MAX_SEEDS:
            ways.add(way)
            texts.append(text)
    sys.stdout.write(f"{runs} reads of changed texts, {len(ways)} different outcomes: each whole or a TopologyError\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
