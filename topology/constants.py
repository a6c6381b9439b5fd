"""What links carry and how long they take, each figure with its source.

Bandwidths are usable bytes per nanosecond (GB/s) in one direction: what transfers reach, not the line rate.
"""

from __future__ import annotations

import re

__all__ = [
    "BROADWELL_SOCKET_GBS",
    "C2C_GBS",
    "DEFAULT_NETWORK_GBS",
    "DEFAULT_SOCKET_GBS",
    "EMERALD_RAPIDS_SOCKET_GBS",
    "EPYC_ZEN2_SOCKET_GBS",
    "EPYC_ZEN4_SOCKET_GBS",
    "EPYC_ZEN5_SOCKET_GBS",
    "MAX_LINKS_PER_GPU",
    "NETWORK_LATENCY_US",
    "NVLINK_LATENCY_US",
    "PCIE_LATENCY_US",
    "POWER8_SOCKET_GBS",
    "POWER9_SOCKET_GBS",
    "SAPPHIRE_RAPIDS_SOCKET_GBS",
    "SKYLAKE_SOCKET_GBS",
    "TPU_LINK_GBS",
    "TPU_LINK_LATENCY_US",
    "compute_capability",
    "max_links",
    "nvlink_gbs",
    "pcie_gbs",
    "pcie_generation",
    "pcie_of",
    "socket_gbs",
]

# --- NVLink: NCCL 2.30, src/graph/topo.h, SM*_NVLINK_BW: about 80 % of the line rate ---------------------------------

_NVLINK_GBS = ((100, 40.1), (90, 20.6), (86, 12.0), (80, 20.0), (70, 20.0), (60, 18.0))
# Between 8.6 (A6000, 3090) and 9.0 no GPU has NVLink: 8.7 and 8.9 count as 8.0 in that table, and carry none.

_MAX_LINKS = ((100, 18), (90, 18), (86, 4), (80, 12), (70, 6), (60, 4))
"""Links of one GPU by compute capability. NVIDIA's white papers of P100, V100, A100, GA102, H100 and Blackwell."""

MAX_LINKS_PER_GPU = 18
"""No GPU has more: a GPU that seems to have more reaches its peers through an NVSwitch, the same links each time."""

NVLINK_LATENCY_US = 0.6
"""One hop of a ring with flags in the data. NCCL 2.30, src/graph/tuning.cc, hardware latency of NVLink, ring, LL."""

C2C_GBS = 450.0
"""Grace to its GPU, each direction. NVIDIA Grace Hopper white paper: 900 GB/s both ways together."""

# --- PCIe: NCCL counts 12 GB/s for Gen3 x16 (PCI_BW) and scales with generation and width ----------------------------

_PCIE_GEN3_LANE_GBS = 12.0 / 16
_GENERATION_BY_RATE = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}

PCIE_LATENCY_US = 1.0
"""From GPU to GPU over PCIe. NCCL 2.30, src/graph/tuning.cc, hardware latency of PCI, ring, LL."""

# --- Between sockets: NCCL 2.30, src/graph/topo.h ---------------------------------------------------------------------

BROADWELL_SOCKET_GBS = 6.0
SKYLAKE_SOCKET_GBS = 10.0
SAPPHIRE_RAPIDS_SOCKET_GBS = 22.0
EMERALD_RAPIDS_SOCKET_GBS = 40.0
EPYC_ZEN2_SOCKET_GBS = 16.0
EPYC_ZEN4_SOCKET_GBS = 24.0
EPYC_ZEN5_SOCKET_GBS = 32.0
POWER9_SOCKET_GBS = 32.0
POWER8_SOCKET_GBS = 38.4
"""X bus of the S822LC for HPC. IBM Redpaper REDP-5405, two-socket interconnect, each direction; a line rate."""
DEFAULT_SOCKET_GBS = SKYLAKE_SOCKET_GBS
"""Where the text does not name the CPU."""

# --- Between nodes ----------------------------------------------------------------------------------------------------

DEFAULT_NETWORK_GBS = 12.0
"""A 100 Gbit/s port. NCCL 2.30, src/graph/topo.h, NET_BW. Ports of known speed count their line rate."""
NETWORK_LATENCY_US = 2.7
"""One hop of a ring between nodes. NCCL 2.30, src/graph/tuning.cc, hardware latency of NET, ring, LL."""

# --- TPU --------------------------------------------------------------------------------------------------------------

TPU_LINK_GBS = 82.0
"""One link of a TPU v3, each direction: 656 Gbit/s. Jouppi et al. 2020, Communications of the ACM 63(7), table 3."""
TPU_LINK_LATENCY_US = 1.0
"""Assumed: no public figure was found."""


_CAPABILITIES = (
    (r"\bP100\b|\bP4\b|\bP40\b|GTX 10[5-8]0", 60),
    (r"\bV100S?\b|TITAN V\b", 70),
    (r"\bT4\b|RTX 20\d0|Quadro RTX|TITAN RTX", 75),
    (r"\bA100X?\b|\bA800\b|\bA30\b", 80),
    (r"RTX A\d000|\bA40\b|\bA10G?\b|RTX 30\d0", 86),
    (r"\bL4\b|\bL40S?\b|RTX 40\d0|\bAda\b", 89),
    (r"\bH100\b|\bH200\b|\bH800\b|\bH20\b|\bGH200\b", 90),
    (r"\bG?B[123]00\b", 100),
    (r"RTX 50\d0|\bGB10\b|Blackwell", 120),
)


def compute_capability(model: str) -> int | None:
    """Return the compute capability of a GPU, 90 for 9.0, from the name nvidia-smi gives it; None for other names."""
    return next((number for pattern, number in _CAPABILITIES if re.search(pattern, model)), None)


def nvlink_gbs(capability: int | None) -> float:
    """Return what one NVLink of a GPU carries; 20 where the GPU is not known, as in NCCL's table."""
    if capability is None or 86 < capability < 90:
        return 20.0
    return next((gbs for least, gbs in _NVLINK_GBS if capability >= least), 20.0)


def max_links(capability: int | None) -> int:
    """Return how many NVLinks a GPU has at most."""
    if capability is None:
        return MAX_LINKS_PER_GPU
    return next((links for least, links in _MAX_LINKS if capability >= least), MAX_LINKS_PER_GPU)


def pcie_gbs(generation: int, width: int = 16) -> float:
    """Return what a PCIe connection carries in each direction."""
    return _PCIE_GEN3_LANE_GBS * width * 2.0 ** (generation - 3)


def pcie_of(capability: int | None) -> float:
    """Return what the PCIe connector of a GPU carries: 16 lanes of the generation that its chip speaks."""
    generation = 3 if capability is None or capability < 80 else 4 if capability < 90 else 5
    return pcie_gbs(generation)


def pcie_generation(rate_gts: float) -> int | None:
    """Return the generation of a transfer rate such as 16.0 GT/s; None where there is none."""
    return _GENERATION_BY_RATE.get(rate_gts)


def socket_gbs(arch: str, vendor: str, family: int, model: int) -> float:
    """Return what the link between two sockets carries.

    Parameters
    ----------
    arch, vendor : str
        ``"x86_64"``, ``"ppc64"``; ``"GenuineIntel"``, ``"AuthenticAMD"``.
    family, model : int
        Of the CPU, as NCCL's topology XML has them: AMD's family with or without its extended part shifted.

    Notes
    -----
    Models as in NCCL 2.30, src/graph/topo.cc.
    """
    if arch == "ppc64":
        return POWER9_SOCKET_GBS
    if vendor == "GenuineIntel":
        by_model = {0xCF: EMERALD_RAPIDS_SOCKET_GBS, 0x8F: SAPPHIRE_RAPIDS_SOCKET_GBS}
        return by_model.get(model, SKYLAKE_SOCKET_GBS if family == 6 and model >= 0x55 else BROADWELL_SOCKET_GBS)
    if vendor == "AuthenticAMD":
        # 0xaf is extended family 10 and base family 15: 25.
        family = 15 + (family >> 4) if family >= 0x80 else family
        return {25: EPYC_ZEN4_SOCKET_GBS, 26: EPYC_ZEN5_SOCKET_GBS}.get(family, EPYC_ZEN2_SOCKET_GBS)
    return DEFAULT_SOCKET_GBS
