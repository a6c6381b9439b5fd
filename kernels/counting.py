"""Counting in a word that several processes count in."""

from __future__ import annotations

from numba.extending import register_jitable

from multiring.kernels.primitives import add_word

__all__ = ["add"]


@register_jitable
def add(address: int, change: int) -> int:
    """Add to a shared word; return what it held."""
    return add_word(address, change)
