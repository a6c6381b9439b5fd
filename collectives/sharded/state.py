"""State dicts: what a rank holds, what all hold together, and the way back on any number of ranks.

Keys are ``KIND/NAME``: ``master/NAME`` and one for each moment; ``pieces/NAME`` says which elements of the tensor they
are, as rows of (first, count); without it they are the whole tensor. ``meta`` is JSON, in bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.sharded.agree import agree, all_succeed
from multiring.collectives.sharded.buckets import Piece
from multiring.collectives.sharded.stream import Stream
from multiring.errors import ArgumentError, ArgumentTypeError
from multiring.kernels.dtypes import numpy_dtype

if TYPE_CHECKING:
    from multiring.collectives.sharded.optimizer import ShardedOptimizer

__all__ = ["covers", "full_state", "load_state", "read_meta", "shard_state"]

FORMAT = 1
State = dict[str, NDArray[Any]]


class Parts:
    """The sharded state of an optimizer, piece by piece.

    Attributes
    ----------
    kinds : list of str
        ``"master"`` and the moments.
    """

    def __init__(self, optimizer: ShardedOptimizer) -> None:
        self._optimizer = optimizer
        self._updates = optimizer.updates
        self.kinds = ["master", *self._updates.state]

    def pieces(self) -> list[tuple[int, Stream, int, Piece, int]]:
        """Return (stream's number, stream, tensor, piece, place in the state) of this rank's pieces."""
        return [
            (number, stream, stream.members[piece.tensor], piece, shard_place)
            for number, stream in enumerate(self._optimizer.streams)
            for piece, shard_place in stream.layout.shard_pieces(stream.rank)
        ]

    def values(self, kind: str, number: int, stream: Stream, piece: Piece, place: int) -> NDArray[np.float32] | None:
        """Return the memory of a piece's state; None: it has none of this kind."""
        if kind == "master":
            return stream.master_slice(piece, place)
        at = self._updates.state_place(kind, number, piece, place)
        return None if at < 0 else self._updates.state[kind][number][at : at + piece.count]

    def replicated(self) -> dict[str, NDArray[np.float32]]:
        """Return what every rank holds whole, by key."""
        found = self._updates.replicated()
        return {f"{kind}/{self._optimizer.names[tensor]}": array for (kind, tensor), array in found.items()}


def _meta(optimizer: ShardedOptimizer, whole: bool) -> NDArray[np.uint8]:
    facts = {
        "format": FORMAT,
        "rule": optimizer.rule.name,
        "steps": optimizer.steps,
        "skipped": optimizer.skipped,
        "shard": None if whole else optimizer.shard,
        "n_shards": 1 if whole else optimizer.n_shards,
        "shapes": {name: list(shape) for name, shape in zip(optimizer.names, optimizer.shapes, strict=True)},
    }
    return np.frombuffer(json.dumps(facts).encode(), np.uint8).copy()


def read_meta(state: Any) -> dict[str, Any]:
    """Return the facts of a state dict.

    Raises
    ------
    ArgumentError
        If it is none, or of another version.
    """
    if not isinstance(state, Mapping):
        raise ArgumentTypeError(f"load_state_dict: got {type(state).__name__}, wanted a state dict or several")
    try:
        facts = cast("dict[str, Any]", json.loads(np.asarray(state["meta"], np.uint8).tobytes()))
        version = facts["format"]
    except (KeyError, ValueError, TypeError) as error:
        raise ArgumentError(
            f"load_state_dict: got a dict whose 'meta' cannot be read ({error!r}), wanted what state_dict() or "
            "full_state_dict() returns"
        ) from None
    if version != FORMAT:
        raise ArgumentError(f"load_state_dict: got format {version}, wanted {FORMAT}, the format of this version")
    return facts


def shard_state(optimizer: ShardedOptimizer) -> State:
    """Return this rank's part."""
    parts, found = Parts(optimizer), {}
    listed: dict[str, list[NDArray[Any]]] = {}
    for number, stream, tensor, piece, place in parts.pieces():
        name = optimizer.names[tensor]
        listed.setdefault(f"pieces/{name}", []).append(np.array([[piece.first, piece.count]], np.int64))
        for kind in parts.kinds:
            values = parts.values(kind, number, stream, piece, place)
            if values is not None:
                listed.setdefault(f"{kind}/{name}", []).append(values)
    for key, arrays in listed.items():
        found[key] = np.concatenate(arrays)
    found |= {key: array.copy() for key, array in parts.replicated().items()}
    return {"meta": _meta(optimizer, whole=False), **found}


def full_state(optimizer: ShardedOptimizer) -> State:
    """Return the whole state; all ranks must call."""
    parts = Parts(optimizer)
    found: State = {"meta": _meta(optimizer, whole=True)}
    for name, view in zip(optimizer.names, optimizer.views, strict=True):
        found[f"weight/{name}"] = np.array(view.array, numpy_dtype(view.dtype), copy=True)
    for kind in parts.kinds:
        for number, stream in enumerate(optimizer.streams):
            _gather_kind(optimizer, parts, kind, number, stream, found)
    return found | {key: array.copy() for key, array in parts.replicated().items()}


def _gather_kind(
    optimizer: ShardedOptimizer, parts: Parts, kind: str, number: int, stream: Stream, found: State
) -> None:
    layout = stream.layout
    for tensor in stream.members:
        if optimizer.has_state(kind, tensor):
            found[f"{kind}/{optimizer.names[tensor]}"] = np.zeros(optimizer.shapes[tensor], np.float32)
    for bucket in layout.buckets:
        start, stop = layout.shard_of(bucket, stream.rank)
        mine = np.zeros(stop - start, np.float32)
        for piece in layout.pieces(start, stop):
            place = layout.shard_place(bucket) + piece.place - start
            values = parts.values(kind, number, stream, piece, place)
            if values is not None:
                mine[piece.place - start : piece.place - start + piece.count] = values
        whole = optimizer.group.all_gather(mine)
        for piece in layout.pieces(bucket.start, bucket.stop):
            target = found.get(f"{kind}/{optimizer.names[stream.members[piece.tensor]]}")
            if target is not None:
                at = piece.place - bucket.start
                target.reshape(-1)[piece.first : piece.first + piece.count] = whole[at : at + piece.count]


# --- the way back ---------------------------------------------------------------------------------------------------


class Source:
    """State dicts of one moment, as one.

    Parameters
    ----------
    states : sequence of dict
        One full one, or those of several ranks.
    """

    def __init__(self, states: Sequence[Any]) -> None:
        self.facts = [read_meta(state) for state in states]
        if not self.facts:
            raise ArgumentError("load_state_dict: got no state dicts, wanted one or more")
        self._states = states
        first = self.facts[0]
        for other in self.facts[1:]:
            for key in ("rule", "steps", "n_shards", "shapes"):
                if other[key] != first[key]:
                    raise ArgumentError(
                        f"load_state_dict: got state dicts that do not belong together: {key} {first[key]} and "
                        f"{other[key]}, wanted those of one moment of one run"
                    )

    def read(self, kind: str, name: str, first: int, count: int) -> NDArray[np.float32]:
        """Return elements of a tensor's state.

        Raises
        ------
        ArgumentError
            If they are in none of the states.
        """
        result, missing = np.empty(count, np.float32), count
        seen: set[int] = set()
        for state in self._states:
            values, pieces = state.get(f"{kind}/{name}"), state.get(f"pieces/{name}")
            if values is None:
                continue
            flat, taken = np.asarray(values).reshape(-1), 0
            rows = [(0, flat.size)] if pieces is None else np.asarray(pieces).reshape(-1, 2).tolist()
            for at, n in rows:
                low, high = max(at, first), min(at + n, first + count)
                if low < high and low not in seen:
                    result[low - first : high - first] = flat[taken + low - at : taken + high - at]
                    seen.add(low)
                    missing -= high - low
                taken += n
        if missing:
            shards = [f["shard"] for f in self.facts]
            raise ArgumentError(
                f"load_state_dict: got no {kind}/{name} for {missing} of the elements {first} to {first + count}: got "
                f"the state of ranks {shards} of {self.facts[0]['n_shards']}, wanted the state dicts of all of them, "
                "or a full one"
            )
        return result

    def whole(self, key: str) -> Any:
        """Return an array that every state holds whole, or None."""
        return next((state[key] for state in self._states if key in state), None)


def _check(optimizer: ShardedOptimizer, source: Source) -> None:
    facts = source.facts[0]
    if facts["rule"] != optimizer.rule.name:
        raise ArgumentError(
            f"load_state_dict: got the state of {facts['rule']}, wanted that of {optimizer.rule.name}: make the "
            "optimizer with the rule of the checkpoint"
        )
    mine = {name: list(shape) for name, shape in zip(optimizer.names, optimizer.shapes, strict=True)}
    if facts["shapes"] != mine:
        odd = [n for n in {*mine, *facts["shapes"]} if mine.get(n) != facts["shapes"].get(n)]
        shown = "; ".join(f"{n!r}: got {facts['shapes'].get(n)}, wanted {mine.get(n)}" for n in sorted(odd)[:3])
        raise ArgumentError(
            f"load_state_dict: {len(odd)} parameters are not those of this optimizer (shapes, None for none): {shown}"
        )


def covers(optimizer: ShardedOptimizer, states: Sequence[Any]) -> bool:
    """Return whether states hold all that this rank needs."""
    try:
        _read(optimizer, Source(states))
    except ArgumentError:
        return False
    return True


def _read(optimizer: ShardedOptimizer, source: Source) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Return what goes where; nothing is changed."""
    parts = Parts(optimizer)
    copies: list[tuple[NDArray[Any], NDArray[Any]]] = []
    for number, stream, tensor, piece, place in parts.pieces():
        for kind in parts.kinds:
            target = parts.values(kind, number, stream, piece, place)
            if target is not None:
                copies.append((target, source.read(kind, optimizer.names[tensor], piece.first, piece.count)))
    for key, target in parts.replicated().items():
        values = source.whole(key)
        if values is None or np.asarray(values).shape != target.shape:
            raise ArgumentError(
                f"load_state_dict: got no {key} of shape {target.shape}, wanted one: the state is not whole"
            )
        copies.append((target, np.asarray(values)))
    return copies


def load_state(optimizer: ShardedOptimizer, state: Any) -> None:
    """Continue from a state; all ranks must call."""
    states = [state] if isinstance(state, Mapping) else list(state)
    load_from(optimizer, lambda: states)


def load_from(optimizer: ShardedOptimizer, get: Callable[[], Sequence[Any]]) -> None:
    """Continue from what ``get`` returns; an error of one rank becomes an error of all, and nothing is changed."""

    def read() -> tuple[list[tuple[NDArray[Any], NDArray[Any]]], dict[str, Any]]:
        source = Source(get())
        _check(optimizer, source)
        return _read(optimizer, source), source.facts[0]

    copies, facts = all_succeed(optimizer.comm, read, "load_state_dict")
    agree(optimizer.comm, [f"steps={facts['steps']}", f"skipped={facts['skipped']}"], "load_state_dict")
    for target, values in copies:
        target[...] = values
    optimizer.set_counters(int(facts["steps"]), int(facts["skipped"]))
    optimizer.publish_masters()
