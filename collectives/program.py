"""What lowering makes: for each rank a list of instructions, with whom to wait for."""

from __future__ import annotations

from dataclasses import dataclass, field

from multiring.kernels.records import SPACE_SLOT

__all__ = ["FIRST_STEP", "Instruction", "Lowered", "Operand", "Wait"]

FIRST_STEP = -1
"""The step of what is done before the schedule's first: copies of inputs."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A chunk of one rank's input or output, or a place in its slot."""

    space: int
    rank: int
    place: int

    @property
    def memory(self) -> tuple[bool, int, int]:
        """What it shares memory with: input and output of a rank may be the same array."""
        return (self.space == SPACE_SLOT, self.rank, self.place)


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until ``rank`` has done its instruction ``index``, ``lag`` slices back."""

    rank: int
    index: int
    lag: int = 0


@dataclass(eq=False, slots=True)
class Instruction:
    """One thing that a rank does to each slice of a chunk."""

    rank: int
    kind: int
    step: int
    chunk: int
    sources: list[Operand]
    destinations: list[Operand]
    index: int = -1
    waits: list[Wait] = field(default_factory=list)
    awaited: bool = False


@dataclass(frozen=True, slots=True)
class Lowered:
    """The programs of all ranks.

    Attributes
    ----------
    programs : list of list of Instruction
        For each rank, in the order of execution.
    exits : list of list of Wait
        For each rank, what it waits for before it leaves.
    n_places : int
        Places in a slot: the most that any rank needs.
    n_hoisted : list of int
        For each rank, how many instructions run before the arrival.
    skews : dict of int to int
        By step, how many slices an instruction runs behind the first.
    """

    programs: list[list[Instruction]]
    exits: list[list[Wait]]
    n_places: int
    n_hoisted: list[int]
    skews: dict[int, int]
