"""A topology as a picture: devices and link widths on the left, each ring in its colour on the right."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, cos, pi, sin

from multiring.topology.machine import Machine
from multiring.topology.model import Topology
from multiring.topology.rings import RingSet

__all__ = ["draw"]

# Distinct in hue and in lightness, so that they can be told apart without colour vision too (Okabe and Ito 2008).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#555555")
INK, FAINT, PAPER = "#222222", "#9aa0a6", "#ffffff"
FONTS = "DejaVu Sans, Helvetica, Arial, sans-serif"
MAP_SIZE = 640
CELL = 210
MAX_DRAWN_RINGS = 12

Point = tuple[float, float]


def draw(topology: Topology, found: RingSet) -> str:
    """Return an SVG document of a topology of GPUs and its rings.

    Parameters
    ----------
    topology : Topology
        With machines; the first node's devices are drawn.
    found : RingSet
    """
    machine = topology.machines[0]
    drawn: dict[tuple[int, ...], list[float]] = {}
    for ring in found.rings:
        drawn.setdefault(ring.order, []).append(ring.bandwidth_gbs)
    shown = list(drawn.items())[:MAX_DRAWN_RINGS]
    columns = min(3, max(1, len(shown)))
    rows = ceil(len(shown) / columns)
    width = MAP_SIZE + max(2, columns) * CELL + 40
    height = max(MAP_SIZE, 70 + rows * (CELL + 24)) + 100
    nodes = f", {topology.n_nodes} nodes, one drawn" if topology.n_nodes > 1 else ""
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONTS}" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
        _text(
            24,
            32,
            f"{topology.name}: {len(machine.gpus)} GPUs{nodes}".replace("GPUs", _noun(machine)),
            size=18,
            bold=True,
        ),
        *_machine(machine),
        _text(
            MAP_SIZE + 10,
            60,
            f"{_times(len(found.rings))}, {found.total_bandwidth_gbs:.1f} GB/s together",
            size=15,
            bold=True,
        ),
    ]
    for at, (order, shares) in enumerate(shown):
        x, y = MAP_SIZE + 10 + at % columns * CELL, 76 + at // columns * (CELL + 24)
        parts += _ring(topology, order, shares, COLOURS[at % len(COLOURS)], x, y)
    if len(drawn) > len(shown):
        parts.append(
            _text(MAP_SIZE + 10, 76 + rows * (CELL + 24) + 12, f"... and {len(drawn) - len(shown)} more", fill=FAINT)
        )
    y = height - 72
    for line in [*_wrap(f"Why: {found.reason}", width // 7), *_wrap(f"Limit: {found.bottleneck}", width // 7)]:
        parts.append(_text(24, y, line))
        y += 18
    return "\n".join([*parts, "</svg>"]) + "\n"


def _noun(machine: Machine) -> str:
    return "GPUs" if machine.link_kind == "NV" else "chips"


def _times(count: int) -> str:
    return "One ring" if count == 1 else f"{count} rings"


def _spots(machine: Machine, cx: float, cy: float, radius: float) -> list[Point]:
    """Return where GPUs are: a grid for a mesh or torus, else a circle, the first half on the left."""
    size = len(machine.gpus)
    if machine.link_kind != "NV":
        columns = _columns(machine)
        rows = size // columns
        step = 2 * radius / max(rows, columns, 2)
        return [
            (cx + (at % columns - (columns - 1) / 2) * step, cy + (at // columns - (rows - 1) / 2) * step)
            for at in range(size)
        ]
    if size == 1:
        return [(cx, cy)]
    turn = 2 * pi / size
    return [(cx - radius * sin(turn * (at + 0.5)), cy - radius * cos(turn * (at + 0.5))) for at in range(size)]


def _columns(machine: Machine) -> int:
    """Return the length of the rows of a grid: where the first link leads to another row."""
    size = len(machine.gpus)
    fitting = [it for it in range(1, size + 1) if size % it == 0 and (it == size or machine.bundle(0, it))]
    return max((it for it in fitting if it < size), default=size) if size > 3 else size


def _machine(machine: Machine) -> list[str]:
    cx, cy, radius = MAP_SIZE / 2, MAP_SIZE / 2 + 30, MAP_SIZE * 0.25
    spots = _spots(machine, cx, cy, radius)
    size = len(machine.gpus)
    is_small = size <= 20
    parts: list[str] = []
    if len(machine.places) > 1:
        parts += _tree(machine, spots, (cx, cy))
    widest = max((it.count for it in machine.bundles), default=1)
    colour = "#76b900" if machine.link_kind == "NV" else "#4285f4"
    for it in machine.bundles:
        line = 1.5 + 6.0 * it.count / widest if widest > 1 else 3.0
        parts.append(
            _bent(spots[it.a], spots[it.b], _middle(spots[it.a], spots[it.b], _bend(machine, it.a, it.b)), line, colour)
        )
    if len({(it.count, it.link_gbs) for it in machine.bundles}) == 1:
        it = machine.bundles[0]
        legend = f"every line: {machine.link_kind}{it.count}, {it.count * it.link_gbs:g} GB/s each way"
        parts.append(_text(cx, 62, legend, size=11, anchor="middle", fill="#5f6368"))
    elif is_small and len(machine.bundles) <= 40:
        for it in machine.bundles:
            x, y = _between(spots[it.a], spots[it.b], 0.36)
            label = f"{machine.link_kind}{it.count}"
            parts += [_box(x, y, 30, 14, PAPER, "none"), _text(x, y + 4, label, size=10, anchor="middle")]
    if any(gpu.switch_links for gpu in machine.gpus):
        for gpu, spot in zip(machine.gpus, spots, strict=True):
            if gpu.switch_links:
                parts.append(
                    _line(spot, (cx, cy), 1.5 + gpu.switch_links / 3 if is_small else 1.0, "#76b900", opacity=0.75)
                )
        links = max(gpu.switch_links for gpu in machine.gpus)
        gbs = max(gpu.switch_links * gpu.link_gbs for gpu in machine.gpus)
        parts.append(_box(cx, cy, 150, 44, "#eaf5d3", "#76b900"))
        parts.append(_text(cx, cy - 3, "NVSwitch", anchor="middle", bold=True))
        parts.append(_text(cx, cy + 14, f"{links} links, {gbs:.0f} GB/s each GPU", size=10, anchor="middle"))
    for gpu, (x, y) in zip(machine.gpus, spots, strict=True):
        label = gpu.label if is_small else gpu.label.removeprefix("GPU").removeprefix("TPU")
        parts.append(_box(x, y, 58 if is_small else 24, 28 if is_small else 16, "#f4f6f8", INK))
        parts.append(_text(x, y + 5, label, size=13 if is_small else 9, anchor="middle", bold=is_small))
    return parts


def _tree(machine: Machine, spots: Sequence[Point], middle: Point) -> list[str]:
    """Draw switches, sockets and NICs outside the circle of GPUs, each near what is below it."""
    cx, cy = middle
    n_gpus = len(machine.gpus)
    below: dict[int, list[Point]] = {}
    for gpu, spot in zip(machine.gpus, spots, strict=True):
        for place in machine.above(gpu.place):
            below.setdefault(place, []).append(spot)
    where: dict[int, Point] = {}
    reach = {"switch": 1.32, "switches": 1.38, "bridge": 1.56, "numa": 1.74}
    radius = max(((x - cx) ** 2 + (y - cy) ** 2) ** 0.5 for x, y in spots) or 120.0
    for place, it in enumerate(machine.places):
        if it.kind != "system" and place in below:
            x, y = (sum(axis) / len(below[place]) for axis in zip(*below[place], strict=True))
            far = ((x - cx) ** 2 + (y - cy) ** 2) ** 0.5 or 1.0
            where[place] = (
                cx + (x - cx) / far * radius * reach[it.kind],
                cy + (y - cy) / far * radius * reach[it.kind],
            )
    parts: list[str] = []
    sockets = [where[place] for place, it in enumerate(machine.places) if it.kind == "numa" and place in where]
    if n_gpus <= 20:
        for place, spot in where.items():
            if machine.places[place].parent in where:
                parts.append(_line(spot, where[machine.places[place].parent], 2, FAINT))
        for gpu, spot in zip(machine.gpus, spots, strict=True):
            if gpu.place in where:
                parts.append(_line(spot, where[gpu.place], 2, FAINT))
        if len(sockets) == 2:
            gbs = machine.places[next(p for p in where if machine.places[p].kind == "numa")].uplink_gbs
            (ax, ay), (bx, by) = sockets
            bottom = cy + radius * 1.5
            corners = f"{ax:.1f},{ay:.1f} {ax:.1f},{bottom:.1f} {bx:.1f},{bottom:.1f} {bx:.1f},{by:.1f}"
            parts.append(
                f'<polyline points="{corners}" fill="none" stroke="{FAINT}" stroke-width="3" stroke-dasharray="7 4"/>'
            )
            parts.append(
                _text((ax + bx) / 2, bottom - 8, f"socket link, {gbs:g} GB/s", size=11, anchor="middle", fill="#5f6368")
            )
        parts += _nics(machine, where, middle)
        for place, (x, y) in where.items():
            it = machine.places[place]
            label = it.label if len(it.label) <= 9 else it.kind
            parts.append(_box(x, y, 62, 20, "#fdf3dc" if it.kind == "numa" else "#ffffff", FAINT))
            parts.append(_text(x, y + 4, label, size=10, anchor="middle", fill="#5f6368"))
    return parts


def _nics(machine: Machine, where: dict[int, Point], middle: Point) -> list[str]:
    parts: list[str] = []
    cx, _ = middle
    taken: dict[int, int] = {}
    for nic in machine.nics:
        if nic.place not in where:
            continue
        x, y = where[nic.place]
        number = taken.get(nic.place, 0)
        taken[nic.place] = number + 1
        left = x < cx
        dx = (-66 if left else 66) if machine.places[nic.place].kind != "numa" else 0
        spot = (x + dx, y + (number * 20 if dx else 26 + number * 20))
        parts.append(_line((x, y), spot, 1, FAINT, under=True))
        parts.append(_box(*spot, 52, 16, "#e8f0fe", "#4285f4"))
        parts.append(_text(spot[0], spot[1] + 4, nic.label, size=10, anchor="middle"))
    return parts


def _ring(
    topology: Topology, order: Sequence[int], shares: Sequence[float], colour: str, x: float, y: float
) -> list[str]:
    count = f"{len(shares)} x " if len(shares) > 1 else ""
    parts = [_text(x + 4, y + 12, f"{count}{shares[0]:.1f} GB/s", size=12, bold=True, fill=colour)]
    machine = topology.machines[0]
    half = CELL / 2
    if topology.n_nodes == 1:
        spots = _spots(machine, x + half - 6, y + half + 14, CELL * 0.36)
    else:
        size = len(order)
        spots = [
            (
                x + half - 6 - CELL * 0.37 * sin(2 * pi * (at + 0.5) / size),
                y + half + 14 - CELL * 0.37 * cos(2 * pi * (at + 0.5) / size),
            )
            for at in range(size)
        ]
    is_small = len(order) <= 32
    box = 10.0 if is_small else 2.0
    for a, b in zip(order, [*order[1:], order[0]], strict=True):
        if a != b:
            bend = _bend(machine, a, b) if topology.n_nodes == 1 else 0.0
            parts.append(_arrow(spots[a], spots[b], box, colour, 2.2 if is_small else 0.8, bend))
    for rank, (px, py) in enumerate(spots):
        fill = "#f4f6f8" if topology.nodes[rank] % 2 == 0 else "#dfe3e8"
        parts.append(
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="{box:g}" fill="{fill}" stroke="{INK}" stroke-width="0.8"/>'
        )
        if is_small:
            parts.append(_text(px, py + 3.5, str(rank), size=10, anchor="middle"))
    return parts


def _bend(machine: Machine, a: int, b: int) -> float:
    """Return how far a line leaves the straight way, as a part of its length: a torus's last link passes the others."""
    if machine.link_kind == "NV" or not machine.bundle(a, b):
        return 0.0
    columns = _columns(machine)
    apart = max(abs(a // columns - b // columns), abs(a % columns - b % columns))
    return 0.22 if apart > 1 else 0.0


def _middle(a: Point, b: Point, bend: float) -> Point | None:
    """Return the control point of a bent line: the same whichever end is first. None where it is straight."""
    if not bend:
        return None
    (ax, ay), (bx, by) = sorted((a, b))
    return (ax + bx) / 2 - (by - ay) * bend * 2, (ay + by) / 2 + (bx - ax) * bend * 2


def _bent(a: Point, b: Point, knee: Point | None, width: float, colour: str) -> str:
    if knee is None:
        return _line(a, b, width, colour, opacity=0.75)
    mx, my = knee
    return (
        f'<path d="M{a[0]:.1f},{a[1]:.1f} Q{mx:.1f},{my:.1f} {b[0]:.1f},{b[1]:.1f}" fill="none" stroke="{colour}" '
        f'stroke-width="{width:.1f}" stroke-opacity="0.75"/>'
    )


def _arrow(a: Point, b: Point, gap: float, colour: str, line: float, bend: float = 0.0) -> str:
    """Draw an arrow from edge to edge of two discs."""
    knee = _middle(a, b, bend)
    ux, uy, _ = _toward(a, knee or b)
    vx, vy, far = _toward(knee or a, b)
    start = (a[0] + ux * gap, a[1] + uy * gap)
    tip = (b[0] - vx * (gap + 1), b[1] - vy * (gap + 1))
    wing = min(7.0, far / 3)
    left = (tip[0] - vx * wing - vy * wing / 2, tip[1] - vy * wing + vx * wing / 2)
    right = (tip[0] - vx * wing + vy * wing / 2, tip[1] - vy * wing - vx * wing / 2)
    head = f"{tip[0]:.1f},{tip[1]:.1f} {left[0]:.1f},{left[1]:.1f} {right[0]:.1f},{right[1]:.1f}"
    body = _bent(start, tip, knee, line, colour) if knee else _line(start, tip, line, colour)
    return body + f'<polygon points="{head}" fill="{colour}"/>'


def _toward(a: Point, b: Point) -> tuple[float, float, float]:
    dx, dy = b[0] - a[0], b[1] - a[1]
    far = (dx * dx + dy * dy) ** 0.5 or 1.0
    return dx / far, dy / far, far


def _between(a: Point, b: Point, part: float) -> Point:
    return a[0] + (b[0] - a[0]) * part, a[1] + (b[1] - a[1]) * part


def _line(a: Point, b: Point, width: float, colour: str, opacity: float = 1.0, under: bool = False) -> str:
    dash = ' stroke-dasharray="3 2"' if under else ""
    return (
        f'<line x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}" stroke="{colour}" '
        f'stroke-width="{width:.1f}" stroke-opacity="{opacity:g}"{dash}/>'
    )


def _box(x: float, y: float, width: float, height: float, fill: str, stroke: str) -> str:
    return (
        f'<rect x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" width="{width:g}" height="{height:g}" rx="4" '
        f'fill="{fill}" stroke="{stroke}"/>'
    )


def _text(
    x: float, y: float, text: str, size: int = 13, anchor: str = "start", bold: bool = False, fill: str = INK
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    style = f'font-size="{size}" text-anchor="{anchor}" fill="{fill}"{weight}'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'


def _wrap(text: str, columns: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + len(word) + 1 > columns:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
