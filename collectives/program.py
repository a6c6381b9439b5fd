"""What lowering makes: for each rank a list of instructions, with whom to wait for."""

from __future__ import annotations

from dataclasses import dataclass, field

from multiring.kernels.records import SPACE_SLOT

__all__ = [
    "FIRST_STEP",
    "IN_TURN_ARRIVED",
    "IN_TURN_BEGIN",
    "IN_TURN_LOCAL",
    "IN_TURN_SENT",
    "Instruction",
    "Lane",
    "Lowered",
    "Operand",
    "Wait",
]

FIRST_STEP = -1
"""The step of what is done before the schedule's first: copies of inputs."""

IN_TURN_BEGIN = 0
"""Where an instruction stands among those of its step and rank: what begins to move between nodes comes first, what has
to wait for it last, so that the node's own work is done meanwhile."""
IN_TURN_LOCAL = 1
IN_TURN_ARRIVED = 2
IN_TURN_SENT = 3


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


@dataclass(frozen=True, slots=True)
class Lane:
    """A transfer between nodes: its slices follow each other in order, and pass by those of other lanes.

    Attributes
    ----------
    src, dst : int
    number : int
        Among the lanes from ``src`` to ``dst``.
    """

    src: int
    dst: int
    number: int


@dataclass(eq=False, slots=True)
class Instruction:
    """One thing that a rank does to each slice of a chunk.

    ``lane`` says to which transfer between nodes an instruction of the wire belongs, ``in_turn`` where it stands among
    those of its step, ``skew`` how many slices it runs behind the first.
    """

    rank: int
    kind: int
    step: int
    chunk: int
    sources: list[Operand]
    destinations: list[Operand]
    lane: Lane | None = None
    in_turn: int = IN_TURN_LOCAL
    index: int = -1
    skew: int = 0
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
    lanes : list of list of Lane
        For each rank, the transfers from and to other nodes that it takes part in.
    """

    programs: list[list[Instruction]]
    exits: list[list[Wait]]
    n_places: int
    n_hoisted: list[int]
    lanes: list[list[Lane]]

    @property
    def max_skew(self) -> int:
        """How many slices the last instructions run behind the first."""
        return max((i.skew for program in self.programs for i in program), default=0)

    @property
    def is_wired(self) -> bool:
        """Whether anything leaves a node."""
        return any(self.lanes)
