"""Memory as plain Python sees it: what lies in a registered buffer is legal, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from multiring.kernels import memory

START = 1 << 40
"""Nobody's memory: nothing here reads or writes it."""


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    for address in range(START, START + 256, 8):
        memory.forget(address)


def test_an_access_in_a_buffer_is_legal_whatever_smaller_buffers_lie_inside_it() -> None:
    memory.register(START + 64, 16)
    memory.register(START, 256)
    memory.register(START + 128, 8)
    for address in range(START, START + 256, 8):
        assert memory.check(address, 8, 8) == address


@pytest.mark.parametrize(("address", "n_bytes"), [(START - 8, 8), (START + 56, 16), (START + 64, 8), (START - 8, 100)])
def test_an_access_outside_is_refused_by_address_and_size(address: int, n_bytes: int) -> None:
    memory.register(START, 64)
    memory.register(START + 8, 8)
    with pytest.raises(MemoryError, match=rf"{n_bytes} bytes at {address:#x} lie outside every buffer"):
        memory.check(address, n_bytes, 8)


def test_a_misaligned_access_is_refused() -> None:
    memory.register(START, 64)
    with pytest.raises(MemoryError, match=rf"misaligned 8-byte access at {START + 4:#x}"):
        memory.check(START + 4, 8, 8)


def test_a_forgotten_buffer_is_no_buffer() -> None:
    memory.register(START, 64)
    memory.forget(START)
    memory.forget(START)
    with pytest.raises(MemoryError, match="outside every buffer"):
        memory.check(START, 8, 8)
