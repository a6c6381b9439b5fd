"""Schedules as JSON: saved, sent to others, read back and checked."""

from __future__ import annotations

import json
from typing import Any

from multiring.collectives.schedules.collective import Collective
from multiring.collectives.schedules.schedule import Schedule, Step
from multiring.errors import ScheduleError

__all__ = ["from_json", "to_json"]

FORMAT = "multiring schedule 1"


def to_json(schedule: Schedule) -> str:
    """Write a schedule as JSON.

    Returns
    -------
    str
        An object of ``format``, ``collective``, ``root``, ``n_ranks``, ``n_chunks``, ``algorithm`` and ``steps``; a
        step is an object of the columns ``src``, ``dst``, ``chunk`` and ``reduce``, lists of equal length.
    """
    return json.dumps(
        {
            "format": FORMAT,
            "collective": schedule.collective.name,
            "root": schedule.collective.root,
            "n_ranks": schedule.n_ranks,
            "n_chunks": schedule.n_chunks,
            "algorithm": schedule.algorithm,
            "steps": [
                {"src": step.src.tolist(), "dst": step.dst.tolist(), "chunk": step.chunk.tolist(),
                 "reduce": step.reduce.tolist()}
                for step in schedule.steps
            ],
        }
    )  # fmt: skip


def from_json(text: str) -> Schedule:
    """Read a schedule from JSON.

    The numbers are checked to be in range; whether the schedule keeps its promise is
    :func:`~multiring.collectives.schedules.verify.verify`'s question.

    Raises
    ------
    ScheduleError
        If the text is not JSON, not of this format, lacks a key, or holds a value of another type or out of range.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ScheduleError(f"schedule file: not JSON: {error}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        got = found.get("format") if isinstance(found, dict) else type(found).__name__
        raise ScheduleError(f"schedule file: got format {got!r}, wanted {FORMAT!r}")
    steps = []
    for index, step in enumerate(_value(found, "steps", list, "schedule file")):
        where = f"schedule file: step {index}"
        if not isinstance(step, dict):
            raise ScheduleError(f"{where}: got {type(step).__name__}, wanted an object")
        src, dst, chunk = (_column(step, name, int, where) for name in ("src", "dst", "chunk"))
        reduce = _column(step, "reduce", bool, where)
        if not len(src) == len(dst) == len(chunk) == len(reduce):
            raise ScheduleError(
                f"{where}: columns of {[len(c) for c in (src, dst, chunk, reduce)]}, wanted equal lengths"
            )
        steps.append(Step(src, dst, chunk, reduce))
    where = "schedule file"
    return Schedule(
        Collective(_value(found, "collective", str, where), _value(found, "root", int, where)),
        _value(found, "n_ranks", int, where),
        _value(found, "n_chunks", int, where),
        tuple(steps),
        _value(found, "algorithm", str, where),
    )


def _value(found: dict[str, Any], key: str, kind: type, where: str) -> Any:
    value = found.get(key)
    # JSON's true and false are integers to Python.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ScheduleError(f"{where}: got {key} {value!r:.40}, wanted {kind.__name__}")
    return value


def _column(step: dict[str, Any], key: str, kind: type, where: str) -> list[Any]:
    column: list[Any] = _value(step, key, list, where)
    for value in column:
        fits = value in (True, False) if kind is bool else isinstance(value, int) and -(2**31) <= value < 2**31
        if type(value) is not kind or not fits:
            raise ScheduleError(f"{where}: got {value!r:.40} in {key}, wanted {kind.__name__} of 32 bits at most")
    return column
