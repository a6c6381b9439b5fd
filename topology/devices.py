"""Which GPU is which: nvidia-smi counts by PCI bus id, CUDA fastest first, and an environment hides some."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from multiring.errors import TopologyError
from multiring.topology.machine import Bundle, Machine
from multiring.topology.smi_lists import ListedGpu, normal_bus_id

__all__ = ["by_bus_id", "keep_gpus", "visible_gpus"]


def by_bus_id(bus_ids: Sequence[str], machine: Machine) -> tuple[int, ...]:
    """Return the index in ``machine.gpus`` of each device of CUDA, given their bus ids in CUDA's order.

    Parameters
    ----------
    bus_ids : sequence of str
        In any form: ``"00000000:1D:00.0"`` and ``"0000:1d:00.0"`` are one.
    machine : Machine

    Raises
    ------
    TopologyError
        If the machine has no GPU of a bus id.
    """
    there = {gpu.bus_id: at for at, gpu in enumerate(machine.gpus) if gpu.bus_id}
    found: list[int] = []
    for bus_id in map(normal_bus_id, bus_ids):
        if bus_id not in there:
            raise TopologyError(
                f"CUDA device {bus_id}: got no such GPU in {machine.source}, wanted one of {', '.join(there) or 'none'}"
            )
        found.append(there[bus_id])
    return tuple(found)


def visible_gpus(gpus: Sequence[ListedGpu], environ: Mapping[str, str]) -> tuple[int, ...]:
    """Return the positions in a list of nvidia-smi that CUDA sees, in CUDA's order.

    Parameters
    ----------
    gpus : sequence of ListedGpu
        In nvidia-smi's order.
    environ : mapping
        ``CUDA_VISIBLE_DEVICES``: numbers, UUIDs or the beginnings of some, MIG devices; ``CUDA_DEVICE_ORDER``.

    Raises
    ------
    TopologyError
        If a UUID's beginning fits several GPUs, a GPU comes twice, or numbers count GPUs of different models whose
        order only CUDA knows.

    Notes
    -----
    As in CUDA: an entry that names no GPU ends the list, and an empty text hides all. A GPU with MIG devices is seen
    through the one that is named, or its first.
    """
    text = environ.get("CUDA_VISIBLE_DEVICES")
    ambiguous = len({gpu.model for gpu in gpus}) > 1 and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
    if text is None:
        return tuple(range(len(gpus)))
    found: list[int] = []
    for entry in text.split(","):
        at = _entry(entry.strip(), gpus, ambiguous, text)
        if at is None:
            break
        if at in found and not gpus[at].mig:
            raise TopologyError(
                f"CUDA_VISIBLE_DEVICES={text}: got GPU {gpus[at].index} twice, wanted each once: CUDA shows no GPU then"
            )
        if at not in found:
            found.append(at)
    return tuple(found)


def keep_gpus(machine: Machine, kept: Sequence[int]) -> Machine:
    """Return a machine with some of its GPUs, in the order given; they keep their labels.

    Raises
    ------
    TopologyError
        If none is kept.
    """
    if not kept:
        raise TopologyError(f"machine {machine.name}: got no GPU to keep, wanted at least one of {len(machine.gpus)}")
    place = {gpu: at for at, gpu in enumerate(kept)}
    n_gpus = len(machine.gpus)
    rows = [*kept, *range(n_gpus, n_gpus + len(machine.nics))]
    bundles = [
        Bundle(min(place[it.a], place[it.b]), max(place[it.a], place[it.b]), it.count, it.link_gbs)
        for it in machine.bundles
        if it.a in place and it.b in place
    ]
    return replace(
        machine,
        gpus=tuple(machine.gpus[gpu] for gpu in kept),
        bundles=tuple(sorted(bundles, key=lambda it: (it.a, it.b))),
        kinds=tuple(tuple(machine.kinds[a][b] for b in rows) for a in rows) if machine.kinds else (),
        refused=frozenset(
            (min(place[a], place[b]), max(place[a], place[b])) for a, b in machine.refused if a in place and b in place
        ),
    )


def _entry(entry: str, gpus: Sequence[ListedGpu], ambiguous: bool, text: str) -> int | None:
    where = f"CUDA_VISIBLE_DEVICES={text}"
    if re.fullmatch(r"[0-9]{1,4}", entry, re.ASCII):
        if ambiguous:
            raise TopologyError(
                f"{where}: got numbers, which count these GPUs of different models fastest first, an order that "
                "nvidia-smi does not tell; wanted CUDA_DEVICE_ORDER=PCI_BUS_ID, or UUIDs"
            )
        return int(entry) if int(entry) < len(gpus) else None
    if entry.startswith("MIG-GPU-"):
        # The older form: the GPU's UUID, then the numbers of the instances.
        entry = entry.removeprefix("MIG-").partition("/")[0]
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    fitting = [at for at, gpu in enumerate(gpus) if any(uuid.startswith(entry) for uuid in (gpu.uuid, *gpu.mig))]
    if len(fitting) > 1:
        raise TopologyError(f"{where}: got {entry!r}, which begins the UUIDs of {len(fitting)} GPUs, wanted one")
    return fitting[0] if fitting else None
