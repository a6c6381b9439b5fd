"""Checks of a sharded optimizer's arguments."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from multiring.collectives.arrays import View
from multiring.collectives.sharded.rule import UpdateRule
from multiring.errors import ArgumentError, ArgumentTypeError
from multiring.kernels.dtypes import DType, dtype_of

__all__ = ["check_parameters", "check_settings", "described", "ranks_per_group", "wire_of"]

WIRES = ("float32", "bfloat16", "float16")
WHERE = "ShardedOptimizer"


def check_settings(
    rule: Any, master: Any, bucket_bytes: Any, clip_norm: Any, norm: Any, order: Any, accumulation: Any
) -> None:
    """Refuse settings that no optimizer can have."""
    if not isinstance(rule, UpdateRule):
        raise ArgumentTypeError(f"{WHERE}: rule: got {rule!r}, wanted one of multiring.optim, such as Adam(lr=1e-3)")
    if dtype_of(master).name != "float32":
        raise ArgumentTypeError(
            f"{WHERE}: master: got {dtype_of(master).name}, wanted 'float32': an update below half a unit of a "
            "16-bit weight would be lost"
        )
    if not isinstance(bucket_bytes, (int, np.integer)) or bucket_bytes < 1:
        raise ArgumentError(f"{WHERE}: bucket_bytes: got {bucket_bytes!r}, wanted bytes, 1 or more")
    if clip_norm is not None and not clip_norm > 0:
        raise ArgumentError(f"{WHERE}: clip_norm: got {clip_norm!r}, wanted above 0, or None")
    if norm not in ("l2", "max"):
        raise ArgumentError(f"{WHERE}: norm: got {norm!r}, wanted 'l2' or 'max'")
    if order not in (None, "rank"):
        raise ArgumentError(f"{WHERE}: order: got {order!r}, wanted None or 'rank'")
    if accumulation not in ("mean", "sum"):
        raise ArgumentError(f"{WHERE}: accumulation: got {accumulation!r}, wanted 'mean' or 'sum'")


def check_parameters(views: Sequence[View], names: Sequence[str]) -> None:
    """Refuse parameters of other types, of equal names, or that share memory."""
    for name, view in zip(names, views, strict=True):
        if view.dtype.name not in WIRES:
            raise ArgumentTypeError(
                f"{WHERE}: params[{name!r}]: got {view.dtype.name}, wanted {', '.join(WIRES)}: masters are float32"
            )
    if len(set(names)) != len(names):
        raise ArgumentError(f"{WHERE}: params: got names that are equal as text, wanted different ones: {list(names)}")
    spans = sorted((v.address, v.address + v.nbytes, i) for i, v in enumerate(views) if v.size and v.direct)
    for (_, end, i), (start, _, j) in itertools.pairwise(spans):
        if start < end:
            raise ArgumentError(
                f"{WHERE}: params[{names[j]!r}] overlaps params[{names[i]!r}], wanted separate arrays; give a shared "
                "parameter once"
            )


def wire_of(name: str, value: Any) -> DType | None:
    """Return a wire's element type; None: that of each parameter."""
    if value is None:
        return None
    dtype = dtype_of(value)
    if dtype.name not in WIRES:
        raise ArgumentTypeError(f"ShardedOptimizer: {name}: got {dtype.name}, wanted {', '.join(WIRES)} or None")
    return dtype


def described(rules: Sequence[UpdateRule]) -> list[str]:
    """Return rules as text that is equal on every rank: functions by their names."""
    return [
        ", ".join(
            f"{k}={getattr(v, '__qualname__', 'function') if callable(v) else v}" for k, v in vars(rule).items()
        ).join((f"{rule.name}(", ")"))
        for rule in rules
    ]


def ranks_per_group(comm: Any, subgroup: Any) -> int:
    """Return how many ranks share the state; that nodes have equally many is left to the ranks to agree on."""
    size: int = comm.size
    if subgroup is None:
        return size
    if subgroup == "node":
        return int(comm.local_size)
    wanted = subgroup
    if not isinstance(wanted, (int, np.integer)) or isinstance(wanted, bool) or wanted < 1 or size % wanted:
        raise ArgumentError(
            f"ShardedOptimizer: subgroup: got {subgroup!r} on {size} ranks, wanted 'node' or a divisor of {size}"
        )
    return int(wanted)
