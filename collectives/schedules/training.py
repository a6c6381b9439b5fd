"""A training step on many nodes, with the cheapest algorithm for each bucket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from multiring.collectives.schedules.simulate import Price
from multiring.collectives.schedules.workloads import Step, Workload, efficiency, step_time

__all__ = ["Machine", "Row", "steps"]


@dataclass(frozen=True, slots=True)
class Machine:
    """Nodes, and what collectives take on them.

    Attributes
    ----------
    n_nodes, n_ranks : int
    prices : mapping of str to sequence of Price
        By collective: all_reduce, reduce_scatter and all_gather.
    """

    n_nodes: int
    n_ranks: int
    prices: Mapping[str, Sequence[Price]]

    def cheapest(self, collective: str, nbytes: float) -> Price:
        """Return the cheapest algorithm for a size."""
        return min(self.prices[collective], key=lambda price: price.of(nbytes))


@dataclass(frozen=True, slots=True)
class Row:
    """A predicted step.

    Attributes
    ----------
    n_nodes, n_ranks : int
    step : Step
    efficiency : float
        The time of one GPU over this time, with the same batch for each GPU.
    samples_per_second : float
        Of all GPUs.
    algorithms : dict of str to str
        The cheapest algorithm for all gradients or weights at once, by collective.
    """

    n_nodes: int
    n_ranks: int
    step: Step
    efficiency: float
    samples_per_second: float
    algorithms: dict[str, str]


def steps(work: Workload, machine: Machine) -> list[Row]:
    """Predict a step without and with overlap, each with the update replicated and sharded."""
    rows = []
    for overlap in (False, True):
        for sharded in (False, True):
            step = step_time(
                work,
                machine.n_ranks,
                overlap,
                sharded,
                *(
                    lambda nbytes, name=name: machine.cheapest(name, nbytes).of(nbytes)
                    for name in ("all_reduce", "reduce_scatter", "all_gather")
                ),
            )
            used = {"reduce_scatter": work.gradient_bytes, "all_gather": work.weight_bytes}
            if not sharded:
                used = {"all_reduce": work.gradient_bytes}
            algorithms = {
                name: machine.cheapest(name, work.network.n_parameters * itemsize).algorithm
                for name, itemsize in used.items()
            }
            rate = work.samples * machine.n_ranks / step.step_us * 1e6
            rows.append(Row(machine.n_nodes, machine.n_ranks, step, efficiency(work, step), rate, algorithms))
    return rows
