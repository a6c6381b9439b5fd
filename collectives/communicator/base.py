"""What the parts of the communicator share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from multiring.collectives.communicator.action import Action
from multiring.collectives.communicator.buckets import BucketStore
from multiring.collectives.communicator.engine import Engine
from multiring.collectives.communicator.warm import MISS, Warm

__all__ = ["Base"]

Builder = Callable[..., Action]


class Base:
    """Holds the engine, and turns arguments into launched actions."""

    _engine: Engine
    _buckets: BucketStore
    _warm: Warm
    _barrier: Callable[[], Any] | None
    _hot: dict[int, dict[int, Callable[[int, int], None]]]
    _hot_dtypes: list[Any]

    def _build(self, build: Builder, /, *args: Any, **options: Any) -> Action:
        """Check a collective's arguments; whatever is raised meanwhile, the call is published as refused before."""
        engine = self._engine
        engine.require_open()
        try:
            return build(engine.executor, *args, **options)
        except BaseException:  # an interrupt too: else this rank's next call would meet the others' present one
            engine.refuse()
            raise

    def _collective(self, build: Builder, /, *args: Any, **options: Any) -> Any:
        """Check and launch a collective."""
        return self._engine.launch(self._build(build, *args, **options), options.get("async_op", False))

    def _pair(self, build: Builder, name: str, x: Any, out: Any, options: Any, **root: Any) -> Any:
        """Check and launch a collective from one array to another, by the short way if one like it was checked
        before.
        """
        key = (name, *root.values(), *options.items())
        if options:  # True equals 1, but is no number of seconds
            key += tuple(map(type, options.values()))
        result = self._warm.call(key, x, out)
        if result is not MISS:
            return result
        action = self._build(build, x, out=out, **root, **options)
        async_op = options.get("async_op", False)
        result = self._engine.launch(action, async_op)
        if not async_op:
            self._warm.remember(key, x, out, action)
        return result
