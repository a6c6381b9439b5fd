"""Time limits given in seconds, and the one rule for all of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from multiring.errors import ArgumentError, ArgumentTypeError

__all__ = ["MOST_S", "seconds_of"]

MOST_S = 1e9
"""The longest time limit, some 32 years: in nanoseconds, added to a clock, it stays well inside 64 bits."""


def seconds_of(name: str, value: Any, *, zero: bool = False, or_none: bool = False) -> float:
    """Return a time limit in seconds.

    Parameters
    ----------
    name : str
        What the error calls it.
    value : object
        A number; True and False are none, nor is text.
    zero : bool
        Whether 0 is legal: for a question that does not wait.
    or_none : bool
        Whether the error says that None would do; None itself is the caller's.

    Raises
    ------
    ArgumentTypeError
        If it is not a number.
    ArgumentError
        If it is a bool, not finite, not above 0, or more than :data:`MOST_S`.
    """
    wanted = f"wanted a finite number of seconds {'from' if zero else 'above'} 0 {'to' if zero else 'and at most'} 1e9"
    wanted += ", or None" if or_none else ""
    # Numbers of thousands of digits cannot even be printed.
    huge = isinstance(value, int) and value.bit_length() > 128
    got = f"{name}: got {f'a whole number of {value.bit_length()} bits' if huge else repr(value)}, {wanted}"
    if isinstance(value, (bool, np.bool_)):
        raise ArgumentError(got)
    try:
        if isinstance(value, (str, bytes, bytearray)):
            raise TypeError
        seconds = float(value)
    except OverflowError:
        raise ArgumentError(got) from None
    except (TypeError, ValueError):
        raise ArgumentTypeError(got) from None
    # Written so that not-a-number, which compares false, is refused.
    if not (0 < seconds <= MOST_S or (zero and seconds == 0)):
        raise ArgumentError(got)
    return seconds
