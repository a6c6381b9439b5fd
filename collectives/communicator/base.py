"""What the parts of the communicator share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from multiring.collectives.communicator.action import Action
from multiring.collectives.communicator.buckets import BucketStore
from multiring.collectives.communicator.engine import Engine

__all__ = ["Base"]

Builder = Callable[..., Action]


class Base:
    """Holds the engine, and turns arguments into launched actions."""

    _engine: Engine
    _buckets: BucketStore
    _hot: dict[int, dict[int, Callable[[int, int], None]]]
    _hot_dtypes: list[Any]

    def _build(self, build: Builder, *args: Any, **options: Any) -> Action:
        """Check a collective's arguments; bad ones are published as refused before the error is raised."""
        engine = self._engine
        engine.require_open()
        try:
            return build(engine.executor, *args, **options)
        except Exception:
            engine.refuse()
            raise

    def _collective(self, build: Builder, *args: Any, **options: Any) -> Any:
        """Check and launch a collective."""
        return self._engine.launch(self._build(build, *args, **options), options.get("async_op", False))
