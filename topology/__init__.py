"""What is connected to what, and the ring orders in it. Pure: standard library and numpy."""

from __future__ import annotations

from multiring.topology.cluster import cluster_topology
from multiring.topology.devices import by_bus_id, keep_gpus, visible_gpus
from multiring.topology.discover import Discovery, discover
from multiring.topology.host import Cache, Host, host_topology, read_host
from multiring.topology.load import injected, load, parse_machine
from multiring.topology.machine import Bundle, Gpu, Machine, Nic, Place
from multiring.topology.model import Resource, Topology
from multiring.topology.presets import preset, preset_names
from multiring.topology.rings import Ring, RingSet, levels, rings
from multiring.topology.routes import cluster
from multiring.topology.saved import gather, machine_from_json, machine_to_json

__all__ = [
    "Bundle",
    "Cache",
    "Discovery",
    "Gpu",
    "Host",
    "Machine",
    "Nic",
    "Place",
    "Resource",
    "Ring",
    "RingSet",
    "Topology",
    "by_bus_id",
    "cluster",
    "cluster_topology",
    "discover",
    "gather",
    "host_topology",
    "injected",
    "keep_gpus",
    "levels",
    "load",
    "machine_from_json",
    "machine_to_json",
    "parse_machine",
    "preset",
    "preset_names",
    "read_host",
    "rings",
    "visible_gpus",
]
