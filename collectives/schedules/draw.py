"""Schedules for the eye: text, SVG, and a trace for chrome://tracing or Perfetto."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape

from multiring.collectives.schedules.cost import Cost
from multiring.collectives.schedules.messages import runs
from multiring.collectives.schedules.schedule import Op, Schedule, Step

__all__ = ["number", "svg", "text", "trace"]

MAX_TRANSFERS = 16
"""Transfers of a step that a line of text names."""

COLUMN, ROW, LANE, MARGIN = 96, 44, 14, 40
"""Pixels between two ranks, between two steps, between two transfers of a step, and at the edges."""
COLOURS = {Op.COPY: "#1f77b4", Op.REDUCE: "#d62728"}


def text(schedule: Schedule, cost: Cost | None = None) -> str:
    """Draw a schedule as one line for each step.

    Parameters
    ----------
    schedule : Schedule
        Any.
    cost : Cost, optional
        Of the same schedule: each line then ends with its microseconds and its fullest wire.

    Returns
    -------
    str
        ``0  0→1 +c0  1→2 +c1`` and so on: ``+`` reduces, ``=`` copies, ``c0`` is chunk 0; runs of chunks are joined.
    """
    lines = [_title(schedule)]
    width = len(str(max(0, schedule.n_steps - 1)))
    for index, step in enumerate(schedule.steps):
        arrows = [f"{src}→{dst} {op.value}{chunks}" for src, dst, op, chunks in _messages(step)]
        shown = "  ".join(arrows[:MAX_TRANSFERS])
        more = f"  … {len(arrows) - MAX_TRANSFERS} more" if len(arrows) > MAX_TRANSFERS else ""
        price = ""
        if cost is not None:
            part = cost.steps[index]
            wire = f" over {part.bottleneck.name}" if part.bottleneck is not None else ""
            price = f"   {part.total_us:.2f} us{wire}"
        lines.append(f"{index:>{width}}  {shown}{more}{price}")
    if cost is not None:
        lines.append(f"{cost.total_us:.2f} us")
    return "\n".join(lines)


def svg(schedule: Schedule, cost: Cost | None = None) -> str:
    """Draw a schedule as an SVG picture: ranks are columns, time goes down, transfers are arrows.

    Parameters
    ----------
    schedule : Schedule
        Any; above some 32 ranks or 64 steps the picture gets large.
    cost : Cost, optional
        Of the same schedule: steps are then labelled with their microseconds.
    """
    body: list[str] = []
    top = MARGIN + ROW
    for index, step in enumerate(schedule.steps):
        messages = list(_messages(step))
        label = f"step {index}" + (f", {cost.steps[index].total_us:.2f} us" if cost is not None else "")
        body.append(f'<text x="4" y="{top - 4}" class="step">{escape(label)}</text>')
        for lane, (src, dst, op, chunks) in enumerate(messages):
            y, start, end = top + (lane + 1) * LANE, _x(src), _x(dst)
            body.append(
                f'<line x1="{start}" y1="{y}" x2="{end}" y2="{y}" stroke="{COLOURS[op]}" marker-end="url(#{op.name})"/>'
                f'<text x="{(start + end) / 2}" y="{y - 2}" class="chunk">{escape(op.value + chunks)}</text>'
            )
        top += len(messages) * LANE + ROW
    width = _x(schedule.n_ranks - 1) + MARGIN
    columns = "".join(
        f'<line x1="{_x(rank)}" y1="{MARGIN + 6}" x2="{_x(rank)}" y2="{top - ROW + LANE}" class="rank"/>'
        f'<text x="{_x(rank)}" y="{MARGIN}" class="rank">rank {rank}</text>'
        for rank in range(schedule.n_ranks)
    )
    markers = "".join(
        f'<marker id="{op.name}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 8 4 0 8z" fill="{colour}"/></marker>'
        for op, colour in COLOURS.items()
    )
    style = (
        "text{font:11px sans-serif}text.rank,text.chunk{text-anchor:middle}text.step{fill:#555}"
        "line.rank{stroke:#ccc}text.chunk{font-size:9px}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" viewBox="0 0 {width} {top}">'
        f"<style>{style}</style><defs>{markers}</defs>"
        f'<text x="4" y="16">{escape(_title(schedule))}</text>{columns}{"".join(body)}</svg>\n'
    )


def trace(schedule: Schedule, cost: Cost) -> str:
    """Write the predicted times of a schedule in the Trace Event Format, as JSON.

    Parameters
    ----------
    schedule : Schedule
        Any.
    cost : Cost
        Of the same schedule.

    Returns
    -------
    str
        Open it in Perfetto or chrome://tracing: one track for each rank; a block for each message that it receives.
    """
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": _title(schedule)}},
        *(
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": rank, "args": {"name": f"rank {rank}"}}
            for rank in range(schedule.n_ranks)
        ),
    ]
    now_us = 0.0
    for index, (step, part) in enumerate(zip(schedule.steps, cost.steps, strict=True)):
        received: dict[int, list[str]] = {}
        for src, dst, op, chunks in _messages(step):
            received.setdefault(dst, []).append(f"{op.value}{chunks} from {src}")
        for rank, messages in sorted(received.items()):
            events.append(
                {
                    "ph": "X",
                    "name": messages[0] if len(messages) == 1 else f"{len(messages)} messages",
                    "cat": "predicted",
                    "pid": 0,
                    "tid": rank,
                    "ts": now_us,
                    "dur": part.total_us,
                    "args": {"step": index, "messages": messages},
                }
            )
        now_us += part.total_us
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": events})


def _title(schedule: Schedule) -> str:
    collective = schedule.collective
    root = f" root {collective.root}" if collective.pattern.rooted else ""
    ranks, chunks = number(schedule.n_ranks, "rank"), number(schedule.n_chunks, "chunk")
    return f"{schedule.algorithm} {collective.name}{root}: {ranks}, {chunks}, {number(schedule.n_steps, 'step')}"


def number(n: int, thing: str) -> str:
    """Return ``"1 step"`` or ``"2 steps"``."""
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


def _x(rank: int) -> int:
    return 2 * MARGIN + rank * COLUMN


def _messages(step: Step) -> Iterator[tuple[int, int, Op, str]]:
    """Join the transfers between two ranks that do the same: source, destination, what, and chunks such as c0-3,c8."""
    joined: dict[tuple[int, int, Op], list[int]] = {}
    for transfer in step:
        joined.setdefault((transfer.src, transfer.dst, transfer.op), []).append(transfer.chunk)
    for (src, dst, op), chunks in joined.items():
        yield src, dst, op, runs(sorted(chunks))
