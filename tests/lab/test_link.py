"""Rates, sizes and times as tc writes them; nothing is built here."""

from __future__ import annotations

import pytest

from multiring.bench.lab.link import Link
from multiring.bench.lab.network import Network
from multiring.errors import ArgumentError


@pytest.mark.parametrize("rate", ["1gbit", "100mbit", "12.5mbps", "1Gbit", "500kibit", "1000000"])
def test_rates_of_tc(rate: str) -> None:
    words = ["qdisc", "add", "dev", "d", "root", "tbf", "rate", rate, "burst", "128kb", "latency", "50ms"]
    assert Link(rate).words("d") == words


@pytest.mark.parametrize("rate", ["1parsec", "", "0gbit", "-1gbit", "1 gbit", "50%", "1gbit peakrate 2gbit", "fast"])
def test_a_rate_that_tc_would_not_understand(rate: str) -> None:
    with pytest.raises(ArgumentError, match=r"--rate: got '.*', wanted a rate above 0 as tc writes it: 1gbit"):
        Link(rate)


@pytest.mark.parametrize("burst", ["", "1500", "1kb", "0", "128gb", "big"])
def test_a_burst_that_lets_no_frame_pass(burst: str) -> None:
    with pytest.raises(ArgumentError, match=r"--burst: got '.*', wanted a size as tc writes it, at least 2000 bytes"):
        Link(burst=burst)


@pytest.mark.parametrize("latency", ["", "0ms", "1h", "soon"])
def test_a_latency_that_tc_would_not_understand(latency: str) -> None:
    with pytest.raises(ArgumentError, match=r"--latency: got '.*', wanted a time above 0 as tc writes it: 50ms"):
        Link(latency=latency)


@pytest.mark.parametrize("n_hosts", [0, 201])
def test_a_number_of_hosts_that_has_no_lab(n_hosts: int) -> None:
    with pytest.raises(ArgumentError, match=f"--hosts: got {n_hosts}, wanted 1 to 200"):
        Network(n_hosts)
