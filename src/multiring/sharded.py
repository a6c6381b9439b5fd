"""The sharded weight update: the optimizer, parameter groups, memory without copies, and checkpoints."""

from __future__ import annotations

from multiring.collectives.sharded import FlatTensors, Group, ShardedOptimizer, StepResult, allocate, checkpoint

__all__ = ["FlatTensors", "Group", "ShardedOptimizer", "StepResult", "allocate", "checkpoint"]
