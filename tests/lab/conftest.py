"""Labs that run while a test goes on."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.lab.helpers import LAB


@pytest.fixture
def background() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start ``multiring lab`` and go on."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        started.append(subprocess.Popen([*LAB, *words], stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield start
    for process in started:
        process.terminate()
        process.communicate(timeout=60)
