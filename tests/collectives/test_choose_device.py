"""Host or GPUs: one answer on every rank."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from multiring.collectives import choose_device
from multiring.collectives.choose_device import agree_on_device, device_of
from multiring.errors import ArgumentError


def told(*others: tuple[str, bool]) -> Callable[[bytes], list[bytes]]:
    """Return the exchange of rank 0 with ranks that say this."""
    return lambda mine: [mine, *(json.dumps(other).encode() for other in others)]


@pytest.fixture
def _with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_device, "_may_have_gpu", lambda: True)
    monkeypatch.setattr(choose_device, "why_no_device", lambda: None)


@pytest.mark.parametrize(
    ("wish", "others", "wanted"),
    [
        ("auto", [("auto", True)], "cuda"),
        ("auto", [("auto", False)], "host"),
        ("auto", [("host", False)], "host"),
        ("host", [("auto", True)], "host"),
        ("auto", [("cuda", False)], "cuda"),
        ("cuda", [("auto", True), ("cuda", False)], "cuda"),
    ],
)
@pytest.mark.usefixtures("_with_gpu")
def test_all_ranks_get_one_device(wish: str, others: list[tuple[str, bool]], wanted: str) -> None:
    assert agree_on_device(wish, told(*others)) == wanted


@pytest.mark.usefixtures("_with_gpu")
def test_auto_stays_on_the_host_where_one_gpu_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_device, "why_no_device", lambda: "no driver")
    assert agree_on_device("auto", told(("auto", True))) == "host"


def test_ranks_that_want_different_devices() -> None:
    with pytest.raises(ArgumentError, match=r"device: got 'host' on ranks \[0\] and 'cuda' on ranks \[1\], wanted one"):
        agree_on_device("host", told(("cuda", False)))


def test_no_gpu_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_device, "SIMULATED", False)
    monkeypatch.setenv("MULTIRING_CUDA_DEVICE", "first")
    with pytest.raises(ArgumentError, match="MULTIRING_CUDA_DEVICE: got 'first', wanted the number of a GPU"):
        device_of(0)
