"""Several hosts with a rate-limited network, on one Linux machine: for testing what crosses a network."""

from multiring.bench.lab.command import lab

__all__ = ["lab"]
