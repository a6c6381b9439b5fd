"""What is connected to what, and the ring orders in it. Pure: standard library and numpy."""

from __future__ import annotations

from multiring.topology.host import Cache, Host, host_topology, read_host
from multiring.topology.model import Resource, Topology

__all__ = ["Cache", "Host", "Resource", "Topology", "host_topology", "read_host"]
