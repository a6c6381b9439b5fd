"""Update rules for :class:`multiring.ShardedOptimizer`."""

from __future__ import annotations

from multiring.collectives.sharded.rules import LAMB, LARS, SGD, Adafactor, Adam, AdamW, Elementwise, UpdateRule

__all__ = ["LAMB", "LARS", "SGD", "Adafactor", "Adam", "AdamW", "Elementwise", "UpdateRule"]
