"""The wire between a host and the switch: its rate, as tc writes it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from multiring.errors import ArgumentError

__all__ = ["Link"]

_RATE = re.compile(r"(\d+(?:\.\d+)?)(?:[kmgt]i?)?(?:bit|bps)?", re.IGNORECASE)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)(|b|kb?|mb?)", re.IGNORECASE)
_TIME = re.compile(r"(\d+(?:\.\d+)?)(?:[mun]?s(?:ecs?)?)?", re.IGNORECASE)
_FRAME_BYTES = 2000
"""More than an Ethernet frame: a bucket that holds less lets nothing through, and tc does not say so."""


@dataclass(frozen=True, slots=True)
class Link:
    """A full-duplex wire, limited in each direction by a token bucket.

    Attributes
    ----------
    rate : str
        ``"1gbit"``, ``"100mbit"``, ``"12.5mbps"`` (bytes); what tc understands.
    burst : str
        Bytes that pass at once after a pause: ``"128kb"``.
    latency : str
        How long a packet may wait before it is dropped: ``"50ms"``.

    Raises
    ------
    ArgumentError
        One of them is not what tc would understand, or would let nothing pass.
    """

    rate: str = "1gbit"
    burst: str = "128kb"
    latency: str = "50ms"

    def __post_init__(self) -> None:
        rate, size, time = (
            pattern.fullmatch(text)
            for pattern, text in ((_RATE, self.rate), (_SIZE, self.burst), (_TIME, self.latency))
        )
        if rate is None or float(rate[1]) == 0:
            raise ArgumentError(
                f"--rate: got {self.rate!r}, wanted a rate above 0 as tc writes it: 1gbit, 100mbit, or 12.5mbps (bytes)"
            )
        if size is None or _bytes_of(size) < _FRAME_BYTES:
            raise ArgumentError(
                f"--burst: got {self.burst!r}, wanted a size as tc writes it, at least {_FRAME_BYTES} bytes, so that a "
                "frame fits: 128kb"
            )
        if time is None or float(time[1]) == 0:
            raise ArgumentError(f"--latency: got {self.latency!r}, wanted a time above 0 as tc writes it: 50ms")

    def words(self, device: str) -> list[str]:
        """Return tc's words that limit what leaves a device."""
        bucket = ["tbf", "rate", self.rate, "burst", self.burst, "latency", self.latency]
        return ["qdisc", "add", "dev", device, "root", *bucket]


def _bytes_of(match: re.Match[str]) -> float:
    return float(match[1]) * {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20}[match[2].lower()[:1]]
