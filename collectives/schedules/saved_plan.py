"""Plans as files: saved, loaded, compared."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from multiring.collectives.schedules.choose import Alternative
from multiring.collectives.schedules.cost import Cost, StepCost
from multiring.collectives.schedules.explanation import Explanation
from multiring.collectives.schedules.messages import Message, messages_of
from multiring.collectives.schedules.save import from_json, to_json
from multiring.collectives.schedules.schedule import Schedule
from multiring.collectives.schedules.verify import verify
from multiring.errors import ScheduleError
from multiring.topology.model import Resource

__all__ = ["FORMAT", "differences", "load", "save"]

FORMAT = "multiring plan 1"
"""Of the files; the number changes when an older multiring could not read a newer file."""


def save(plan: Explanation, path: str | os.PathLike[str]) -> None:
    """Write a plan to a file.

    The file is JSON: the keys of :meth:`~multiring.collectives.schedules.explanation.Explanation.to_json`, and
    ``format``, ``nodes`` and ``schedule``, from which the plan can be executed.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    document = {
        "format": FORMAT,
        **plan.to_json(),
        # As they were given: to_json() words its reasons by price.
        "alternatives": [
            {"algorithm": other.algorithm, "predicted_us": other.predicted_us, "reason": other.reason}
            for other in plan.alternatives
        ],
        "nodes": list(plan.nodes),
        "schedule": json.loads(to_json(plan.schedule)),
    }
    Path(path).write_text(json.dumps(document, allow_nan=False) + "\n", encoding="utf-8")


def load(path: str | os.PathLike[str]) -> Explanation:
    """Read a plan that was saved, and verify its schedule.

    Parameters
    ----------
    path : path

    Returns
    -------
    Explanation
        With the prices that were saved.

    Raises
    ------
    ScheduleError
        If the file cannot be read, is of another format, lacks a key or holds a wrong value, or the schedule does not
        keep its promise.
    """
    where = f"plan {os.fspath(path)}"
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ScheduleError(f"{where}: {error.strerror or error}, wanted a file of multiring plan --save") from None
    except ValueError as error:
        raise ScheduleError(f"{where}: not JSON: {error}") from None
    file = _File(found, where)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        got = found.get("format") if isinstance(found, dict) else type(found).__name__
        raise ScheduleError(f"{where}: got format {got!r:.60}, wanted {FORMAT!r}")
    try:
        schedule = from_json(json.dumps(file.value("schedule", dict)))
        verify(schedule)
    except ScheduleError as error:
        raise ScheduleError(f"{where}: {error}") from None
    return _plan(file, schedule)


def differences(one: Explanation, other: Explanation) -> tuple[str, ...]:
    """Say in what two plans differ, one line for each difference; nothing where they are the same.

    Prices that differ by less than a billionth are the same.
    """
    return tuple(_differences(one, other))


def _differences(one: Explanation, other: Explanation) -> Iterator[str]:
    left, right = one.to_json(), other.to_json()
    for key in left:
        if key in ("steps", "alternatives"):
            continue
        if not _same(left[key], right[key]):
            yield f"{key}: {_shown(left[key])} -> {_shown(right[key])}"
    if one.nodes != other.nodes and left["n_nodes"] == right["n_nodes"]:
        yield f"nodes: {_shown(one.nodes)} -> {_shown(other.nodes)}"
    for index, (mine, theirs) in enumerate(zip(one.messages, other.messages, strict=False)):
        before, after = sorted(map(str, mine)), sorted(map(str, theirs))
        if before != after:
            gone, new = sorted(set(before) - set(after)), sorted(set(after) - set(before))
            yield (
                f"step {index}: without {', '.join(gone[:3]) or 'none'}, with {', '.join(new[:3]) or 'none'}; "
                "later steps are not compared"
            )
            break
    prices = [{a.algorithm: a.predicted_us for a in plan.alternatives} for plan in (one, other)]
    for algorithm in dict.fromkeys((*prices[0], *prices[1])):
        if not all(algorithm in known for known in prices):
            yield f"alternative {algorithm}: {'gone' if algorithm in prices[0] else 'new'}"
        elif not _same(prices[0][algorithm], prices[1][algorithm]):
            yield f"alternative {algorithm}: {_shown(prices[0][algorithm])} us -> {_shown(prices[1][algorithm])} us"


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-9)
    return bool(left == right)


def _shown(value: Any) -> str:
    text = f"{value:.2f}" if isinstance(value, float) else str(value)
    return text if len(text) < 200 else text[:200] + "…"


class _File:
    """An object of a file, asked for values of a kind."""

    def __init__(self, found: Any, where: str) -> None:
        self.found = found
        self.where = where

    def value(self, key: str, *kinds: type) -> Any:
        """Return a value of one of some kinds; ``float`` stands for any finite number of at least 0."""
        if not isinstance(self.found, dict):
            raise ScheduleError(f"{self.where}: got {type(self.found).__name__}, wanted an object")
        value = self.found.get(key)
        good = isinstance(value, kinds) and not isinstance(value, bool)
        if float in kinds and isinstance(value, int | float) and not isinstance(value, bool):
            good = math.isfinite(value) and value >= 0
        if not good or (isinstance(value, int) and not isinstance(value, bool) and value < 0):
            wanted = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
            raise ScheduleError(f"{self.where}: got {key} {value!r:.40}, wanted {wanted}")
        return value

    def rows(self, key: str) -> list[_File]:
        """Return a list of objects."""
        return [_File(row, f"{self.where}: {key} {index}") for index, row in enumerate(self.value(key, list))]


def _plan(file: _File, schedule: Schedule) -> Explanation:
    none = type(None)
    topology = file.value("topology", str, none)
    steps = file.rows("steps")
    if len(steps) != schedule.n_steps:
        raise ScheduleError(f"{file.where}: got {len(steps)} priced steps, wanted {schedule.n_steps}")
    nbytes = file.value("wire_nbytes", int)
    priced = file.value("predicted_us", float, none) is not None
    moved = messages_of(schedule, nbytes)
    nodes = file.value("nodes", list)
    if not all(isinstance(node, int) for node in nodes) or len(nodes) not in (0, schedule.n_ranks):
        raise ScheduleError(f"{file.where}: got nodes {nodes!r:.40}, wanted one for each of {schedule.n_ranks} ranks")
    return Explanation(
        schedule,
        file.value("algorithm", str),
        file.value("nbytes", int),
        file.value("dtype", str),
        file.value("wire", str),
        nbytes,
        topology,
        tuple(nodes),
        Cost(tuple(map(_price, steps))) if priced else None,
        tuple(_priced(messages, step) for messages, step in zip(moved, steps, strict=True)) if priced else moved,
        file.value("reason", str),
        tuple(
            Alternative(row.value("algorithm", str), row.value("reason", str), row.value("predicted_us", float, none))
            for row in file.rows("alternatives")
        ),
    )


def _price(step: _File) -> StepCost:
    link = step.value("link", str, type(None))
    # What one crossing of the wire takes is in the step's latency: the file does not have it apart.
    wire = None if link is None else Resource(link, 0.0, step.value("link_gbs", float))
    parts = [float(step.value(f"{part}_us", float)) for part in ("latency", "transfer", "reduction")]
    return StepCost(parts[0], parts[1], parts[2], wire, step.value("link_bytes", int))


def _priced(messages: tuple[Message, ...], step: _File) -> tuple[Message, ...]:
    rows = step.rows("transfers")
    if len(rows) != len(messages):
        raise ScheduleError(f"{step.where}: got {len(rows)} transfers, wanted {len(messages)}, as in its schedule")
    return tuple(
        Message(
            message.src,
            message.dst,
            message.op,
            message.chunks,
            message.nbytes,
            row.value("link", str),
            row.value("predicted_us", float),
        )
        for message, row in zip(messages, rows, strict=True)
    )
