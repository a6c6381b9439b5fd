"""Which passes a rule needs."""

from __future__ import annotations

from collections.abc import Sequence

from multiring.collectives.sharded.factored import Factored
from multiring.collectives.sharded.layerwise import Directed, Layerwise
from multiring.collectives.sharded.rule import UpdateRule
from multiring.collectives.sharded.stream import Stream
from multiring.collectives.sharded.updates import Elementwise, Updates

__all__ = ["updates_of"]


def updates_of(streams: Sequence[Stream], rules: Sequence[UpdateRule], shapes: Sequence[tuple[int, ...]]) -> Updates:
    """Return what the rules of the tensors do in a step."""
    norms = rules[0].norms
    if "factors" in norms:
        return Factored(streams, rules, shapes)
    if "direction" in norms:
        return Directed(streams, rules, shapes)
    if norms:
        return Layerwise(streams, rules, shapes)
    return Elementwise(streams, rules, shapes)
