"""Machines as JSON: what ``multiring topo --json`` writes, ``--from`` reads, and nodes tell each other."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from typing import Any, TypeVar

from multiring.errors import TopologyError
from multiring.topology.devices import keep_gpus
from multiring.topology.machine import Bundle, Gpu, Machine, Nic, Place
from multiring.topology.model import Topology
from multiring.topology.routes import cluster

__all__ = ["gather", "machine_from_json", "machine_to_json"]

T = TypeVar("T")
_PARTS: dict[str, type] = {"gpus": Gpu, "nics": Nic, "places": Place, "bundles": Bundle}
_TEXTS = ("name", "link_kind", "source")
_LISTS = ("notes", "sources")


def machine_to_json(machine: Machine) -> dict[str, Any]:
    """Return a machine as what json.dumps takes."""
    document: dict[str, Any] = {name: getattr(machine, name) for name in (*_TEXTS, "link_latency_us")}
    for name in _PARTS:
        document[name] = [asdict(part) for part in getattr(machine, name)]
    # JSON has no infinity: only the root's uplink is one.
    for place in document["places"]:
        place["uplink_gbs"] = None if place["uplink_gbs"] == float("inf") else place["uplink_gbs"]
    document["kinds"] = [list(row) for row in machine.kinds]
    document["refused"] = sorted(list(pair) for pair in machine.refused)
    document |= {name: list(getattr(machine, name)) for name in _LISTS}
    return document


def machine_from_json(document: Any, where: str) -> Machine:
    """Return the machine that :func:`machine_to_json` wrote.

    Raises
    ------
    TopologyError
        If the document is another one, or its parts do not fit each other.
    """
    if not isinstance(document, dict):
        raise TopologyError(f"{where}: got {type(document).__name__}, wanted an object with gpus, places and bundles")
    try:
        parts: dict[str, tuple[Any, ...]] = {
            name: tuple(_part(kind, it, f"{where}: {name}") for it in document[name]) for name, kind in _PARTS.items()
        }
        texts = {name: str(document[name]) for name in _TEXTS}
        size = len(parts["gpus"]) + len(parts["nics"])
        kinds = tuple(tuple(str(cell) for cell in row) for row in document["kinds"])
        if kinds and {len(kinds), *map(len, kinds)} != {size}:
            raise TopologyError(f"{where}: got kinds of another size than {size} devices")
        return Machine(
            gpus=parts["gpus"],
            nics=parts["nics"],
            places=parts["places"],
            bundles=parts["bundles"],
            link_latency_us=float(document["link_latency_us"]),
            kinds=kinds,
            refused=frozenset((int(a), int(b)) for a, b in document["refused"]),
            notes=tuple(map(str, document["notes"])),
            sources=tuple(map(str, document["sources"])),
            **texts,
        )
    except TopologyError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise TopologyError(
            f"{where}: got {type(error).__name__} {error}, wanted what multiring topo --json writes"
        ) from None


def gather(exchange: Callable[[bytes], Sequence[bytes]], machine: Machine, gpu: int, node: str) -> Topology:
    """Return the topology of all ranks, each telling its node and its GPU: the same on every rank.

    Parameters
    ----------
    exchange : callable
        Takes this rank's bytes and returns those of all ranks, in rank order: the bootstrap's.
    machine : Machine
        This rank's node, all its GPUs.
    gpu : int
        Index in ``machine.gpus`` of this rank's GPU.
    node : str
        Equal on ranks of one node, different on others.

    Raises
    ------
    TopologyError
        On every rank, if two ranks of a node name one GPU, or ranks of a node are not consecutive.

    Notes
    -----
    Each node counts as its first rank describes it: ranks that hide different GPUs from themselves agree that way.
    """
    mine = {"machine": machine_to_json(machine), "gpu": gpu, "bus_id": machine.gpus[gpu].bus_id, "node": node}
    told = [json.loads(data) for data in exchange(json.dumps(mine).encode())]
    nodes = list(dict.fromkeys(it["node"] for it in told))
    machines: list[Machine] = []
    for name in nodes:
        ranks = [rank for rank, it in enumerate(told) if it["node"] == name]
        if ranks != list(range(ranks[0], ranks[0] + len(ranks))):
            raise TopologyError(f"node {name}: got ranks {ranks}, wanted consecutive ones")
        whole = machine_from_json(told[ranks[0]]["machine"], f"node {name}")
        machines.append(_of_ranks(whole, [told[rank] for rank in ranks], name))
    alike: dict[str, Machine] = {}
    shared = [alike.setdefault(json.dumps(machine_to_json(it)), it) for it in machines]
    return cluster(machines[0].name if len(nodes) == 1 else f"{len(nodes)} nodes", shared)


def _of_ranks(whole: Machine, told: Sequence[dict[str, Any]], node: str) -> Machine:
    buses = {gpu.bus_id: at for at, gpu in enumerate(whole.gpus) if gpu.bus_id}
    kept = [buses[it["bus_id"]] if it["bus_id"] in buses else int(it["gpu"]) for it in told]
    if len(set(kept)) != len(kept) or not all(0 <= at < len(whole.gpus) for at in kept):
        raise TopologyError(f"node {node}: got ranks on GPUs {kept} of {len(whole.gpus)}, wanted one GPU for each rank")
    return keep_gpus(whole, kept)


def _part(kind: type[T], document: dict[str, Any], where: str) -> T:
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    if set(document) != names:
        raise TopologyError(f"{where}: got keys {sorted(document)}, wanted {sorted(names)}")
    values = dict(document)
    if values.get("uplink_gbs", 0.0) is None:
        values["uplink_gbs"] = float("inf")
    for name, value in values.items():
        is_number = name in ("place", "parent", "a", "b", "count", "switch_links") or name.endswith("_gbs")
        if is_number and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise TopologyError(f"{where}: got {name} {value!r}, wanted a number")
    return kind(**values)
