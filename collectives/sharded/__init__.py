"""Cross-replica sharding of the weight update: reduce-scatter, update one shard, all-gather."""

from __future__ import annotations

from multiring.collectives.sharded.groups import Group
from multiring.collectives.sharded.optimizer import ShardedOptimizer
from multiring.collectives.sharded.stepping import StepResult
from multiring.collectives.sharded.stream import FlatTensors, allocate

__all__ = ["FlatTensors", "Group", "ShardedOptimizer", "StepResult", "allocate"]
