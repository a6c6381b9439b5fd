"""What moves from one rank to another in a step: its chunks, its bytes, the wire that holds it up, and how long."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from multiring.collectives.schedules.cost import BYTES_PER_US
from multiring.collectives.schedules.schedule import Op, Schedule, Step
from multiring.collectives.schedules.volume import chunk_bytes
from multiring.topology.model import Resource, Topology

__all__ = ["Message", "messages_of", "runs"]

_NAMES = {Op.COPY: "copy", Op.REDUCE: "reduce"}


@dataclass(frozen=True)
class Message:
    """All chunks that go from one rank to another in a step and do the same there.

    Attributes
    ----------
    src, dst : int
    op : Op
    chunks : tuple of int
        Ascending.
    nbytes : int
    link : str or None
        The wire on its way that takes longest for all that crosses it in the step; None without a topology.
    predicted_us : float or None
        Latency of the way, and that wire's time.
    """

    src: int
    dst: int
    op: Op
    chunks: tuple[int, ...]
    nbytes: int
    link: str | None = None
    predicted_us: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "src": self.src,
            "dst": self.dst,
            "op": _NAMES[self.op],
            "chunks": list(self.chunks),
            "bytes": self.nbytes,
            "link": self.link,
            "predicted_us": self.predicted_us,
        }

    def __str__(self) -> str:
        return f"{self.src}→{self.dst} {self.op.value}{runs(self.chunks)}"


def messages_of(schedule: Schedule, nbytes: int, topology: Topology | None = None) -> tuple[tuple[Message, ...], ...]:
    """Return the messages of every step.

    Parameters
    ----------
    schedule : Schedule
        Any.
    nbytes : int
        Bytes of the whole vector, as in :func:`~multiring.collectives.schedules.volume.chunk_bytes`.
    topology : Topology, optional
        Of as many ranks; links and times are not known without it.
    """
    sizes = chunk_bytes(schedule, nbytes).tolist()
    paths = _Paths(topology) if topology is not None else None
    return tuple(_of_step(step, sizes, paths) for step in schedule.steps)


def runs(chunks: Iterable[int]) -> str:
    """Write ascending chunks shortly: ``c0-3,c8``."""
    joined: list[list[int]] = []
    for chunk in chunks:
        if joined and chunk == joined[-1][1] + 1:
            joined[-1][1] = chunk
        else:
            joined.append([chunk, chunk])
    return ",".join(f"c{first}" if first == last else f"c{first}-{last}" for first, last in joined)


class _Paths:
    """The paths of a topology that were asked for."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._paths: dict[tuple[int, int], tuple[float, tuple[Resource, ...]]] = {}

    def of(self, src: int, dst: int) -> tuple[float, tuple[Resource, ...]]:
        """Return the latency and the wires."""
        if (src, dst) not in self._paths:
            path = self._topology.path(src, dst)
            self._paths[src, dst] = sum(wire.latency_us for wire in path), path
        return self._paths[src, dst]


def _of_step(step: Step, sizes: list[int], paths: _Paths | None) -> tuple[Message, ...]:
    joined: dict[tuple[int, int, bool], list[int]] = {}
    columns = (step.src.tolist(), step.dst.tolist(), step.reduce.tolist(), step.chunk.tolist())
    for src, dst, reduce, chunk in zip(*columns, strict=True):
        joined.setdefault((src, dst, reduce), []).append(chunk)
    rows = [
        (src, dst, Op.REDUCE if reduce else Op.COPY, tuple(sorted(chunks)), sum(sizes[chunk] for chunk in chunks))
        for (src, dst, reduce), chunks in joined.items()
    ]
    if paths is None:
        return tuple(Message(*row) for row in rows)
    loads: dict[str, int] = {}
    for src, dst, _, _, nbytes in rows:
        for wire in paths.of(src, dst)[1]:
            loads[wire.name] = loads.get(wire.name, 0) + nbytes
    messages = []
    for row in rows:
        latency_us, wires = paths.of(row[0], row[1])
        times_us = [loads[wire.name] / (wire.bandwidth_gbs * BYTES_PER_US) for wire in wires]
        worst = times_us.index(max(times_us))
        messages.append(Message(*row, wires[worst].name, latency_us + times_us[worst]))
    return tuple(messages)
