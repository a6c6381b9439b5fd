"""One machine: its GPUs and NICs, the tree of PCIe switches and sockets above them, and the links between GPUs.

::

    system                            kind of a pair by its lowest common place:
    |-- numa 0 --- bridge             one switch PIX, several PXB, host bridge PHB, NUMA node NODE, system SYS
    |              |-- switch 0
    |              |   |-- GPU0 =2= GPU1      bundles: NV2; both on an NVSwitch: NV and its links
    |              |   `-- NIC0
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from multiring.errors import TopologyError

__all__ = ["Bundle", "Device", "Gpu", "Machine", "Nic", "Place"]


@dataclass(frozen=True, slots=True)
class Place:
    """A node of the tree above devices.

    Attributes
    ----------
    label : str
        Unique in the machine.
    kind : str
        ``"switch"``, ``"switches"`` (several, in one tree), ``"bridge"`` (host bridge), ``"numa"`` or ``"system"`` (the
        root).
    parent : int
        Index of the place above; -1 for the root.
    uplink_gbs : float
        What crosses to the place above in each direction, shared by all below: a switch's own PCIe connection, the
        connection of a host bridge, the link between sockets.
    """

    label: str
    kind: str
    parent: int
    uplink_gbs: float


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, or another accelerator.

    Attributes
    ----------
    label : str
        ``"GPU0"``: its row in nvidia-smi's order, that of PCI bus ids.
    place : int
        The place it is plugged into.
    pcie_gbs : float
        What its connector carries in each direction.
    model, bus_id, uuid : str
        Empty where unknown. Bus ids are normalised: ``"0000:1d:00.0"``.
    capability : int or None
        90 for compute capability 9.0.
    switch_links : int
        Links to an NVSwitch.
    link_gbs : float
        What each of them carries.
    numa : int or None
        The kernel's number.
    cpus : str
        The CPUs next to it, as nvidia-smi lists them.
    """

    label: str
    place: int
    pcie_gbs: float
    model: str = ""
    bus_id: str = ""
    uuid: str = ""
    capability: int | None = None
    switch_links: int = 0
    link_gbs: float = 0.0
    numa: int | None = None
    cpus: str = ""


@dataclass(frozen=True, slots=True)
class Nic:
    """A network port.

    Attributes
    ----------
    label : str
        ``"NIC0"`` or ``"mlx5_0"``: its column in the matrix.
    place : int
        The place it is plugged into.
    pcie_gbs, network_gbs : float
        What its connector and its port carry in each direction.
    device : str
        The kernel's name, such as ``"mlx5_0"``.
    numa : int or None
    """

    label: str
    place: int
    pcie_gbs: float
    network_gbs: float
    device: str = ""
    numa: int | None = None


Device = Gpu | Nic


@dataclass(frozen=True, slots=True)
class Bundle:
    """Links that join two GPUs directly: ``count`` of them, ``link_gbs`` each in each direction; ``a < b``."""

    a: int
    b: int
    count: int
    link_gbs: float


@dataclass(frozen=True)
class Machine:
    """A machine that was described, discovered or read.

    Attributes
    ----------
    name : str
    gpus, nics : tuple
        At least one GPU.
    places : tuple of Place
        The first is the root; each place comes after its parent.
    bundles : tuple of Bundle
        Direct links, at most one bundle for each pair.
    link_kind : str
        How the links are called in a matrix: ``"NV"``, or ``"ICI"`` between TPUs.
    link_latency_us : float
        Of one hop over a link.
    kinds : tuple of tuple of str
        The matrix that was read, over GPUs and then NICs; empty where it follows from the tree.
    refused : frozenset of tuple of int
        Pairs ``(a, b)``, ``a < b``, that cannot read each other's memory.
    notes : tuple of str
        What was assumed or left out.
    source : str
        Where all this comes from.
    sources : tuple of str
        One line for each constant, with its source.
    """

    name: str
    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...] = ()
    places: tuple[Place, ...] = (Place("system", "system", -1, float("inf")),)
    bundles: tuple[Bundle, ...] = ()
    link_kind: str = "NV"
    link_latency_us: float = 0.6
    kinds: tuple[tuple[str, ...], ...] = ()
    refused: frozenset[tuple[int, int]] = frozenset()
    notes: tuple[str, ...] = ()
    source: str = ""
    sources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        where = f"machine {self.name}"
        if not self.gpus:
            raise TopologyError(f"{where}: got no GPU, wanted at least one")
        if any(not -1 <= place.parent < at for at, place in enumerate(self.places)):
            raise TopologyError(f"{where}: a place comes before the one above it")
        if not all(0 <= device.place < len(self.places) for device in self.devices):
            raise TopologyError(f"{where}: a device is in none of its {len(self.places)} places")
        if not all(0 <= it.a < it.b < len(self.gpus) and it.count > 0 for it in self.bundles):
            raise TopologyError(f"{where}: got bundles {self.bundles}, wanted a < b < {len(self.gpus)} and a count")
        if len(self.by_pair) != len(self.bundles):
            raise TopologyError(f"{where}: two bundles join one pair of GPUs")

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """GPUs, then NICs: the order of a matrix."""
        return self.gpus + self.nics

    @cached_property
    def by_pair(self) -> dict[tuple[int, int], Bundle]:
        """The bundle of each pair ``(a, b)`` that has one, ``a < b``."""
        return {(bundle.a, bundle.b): bundle for bundle in self.bundles}

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """The GPUs that each GPU has a direct link to, ascending."""
        return tuple(
            tuple(sorted({it.a ^ it.b ^ gpu for it in self.bundles if gpu in (it.a, it.b)}))
            for gpu in range(len(self.gpus))
        )

    def bundle(self, a: int, b: int) -> Bundle | None:
        """Return the direct links of two GPUs."""
        return self.by_pair.get((min(a, b), max(a, b)))

    def switched(self, a: int, b: int) -> bool:
        """Return whether two GPUs reach each other through an NVSwitch."""
        return a != b and min(self.gpus[a].switch_links, self.gpus[b].switch_links) > 0

    def above(self, place: int) -> tuple[int, ...]:
        """Return a place and all places above it, the root last."""
        chain = [place]
        while (parent := self.places[chain[-1]].parent) >= 0:
            chain.append(parent)
        return tuple(chain)

    def climb(self, a: int, b: int) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
        """Return the places left on the way up from ``a``, the common one, and those entered on the way down to ``b``.

        ``a`` and ``b`` index :attr:`devices`.
        """
        up, down = self.above(self.devices[a].place), self.above(self.devices[b].place)
        common = next(place for place in up if place in down)
        return up[: up.index(common)], common, down[: down.index(common)][::-1]

    def pcie_kind(self, a: int, b: int) -> str:
        """Return PIX, PXB, PHB, NODE or SYS for two devices, indices into :attr:`devices`, whatever links they have."""
        up, common, down = self.climb(a, b)
        match self.places[common].kind:
            case "switch":
                return "PXB" if up or down else "PIX"
            case "switches":
                return "PXB"
            case "bridge":
                return "PHB"
            case "numa":
                return "NODE" if any(self.places[place].kind == "bridge" for place in up + down) else "PHB"
            case _:
                return "SYS"

    def kind(self, a: int, b: int) -> str:
        """Return X, NV#, PIX, PXB, PHB, NODE or SYS for two devices, indices into :attr:`devices`."""
        if a == b:
            return "X"
        if self.kinds:
            return self.kinds[a][b]
        if max(a, b) < len(self.gpus):
            if bundle := self.bundle(a, b):
                return f"{self.link_kind}{bundle.count}"
            if self.switched(a, b):
                return f"{self.link_kind}{min(self.gpus[a].switch_links, self.gpus[b].switch_links)}"
        return self.pcie_kind(a, b)

    def distance(self, a: int, b: int) -> int:
        """Return how far two devices are apart over PCIe: 0 on one switch, more the higher their common place."""
        far = ("PIX", "PXB", "PHB", "NODE", "SYS")
        read = self.kinds[a][b] if self.kinds else ""
        return far.index(read if read in far else self.pcie_kind(a, b))
