"""What is connected to what, and the ring orders in it. Pure: standard library and numpy."""

from __future__ import annotations

from multiring.topology.host import Cache, Host, host_topology, read_host
from multiring.topology.load import load
from multiring.topology.machine import Bundle, Gpu, Machine, Nic, Place
from multiring.topology.model import Resource, Topology
from multiring.topology.presets import preset, preset_names
from multiring.topology.routes import cluster

__all__ = [
    "Bundle",
    "Cache",
    "Gpu",
    "Host",
    "Machine",
    "Nic",
    "Place",
    "Resource",
    "Topology",
    "cluster",
    "host_topology",
    "load",
    "preset",
    "preset_names",
    "read_host",
]
