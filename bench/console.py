"""Lines for the person at the terminal; results go to standard output, these to standard error."""

from __future__ import annotations

import sys

__all__ = ["complain"]


def complain(text: str) -> None:
    """Write one line to standard error at once, whole: lines of several ranks do not mix."""
    sys.stderr.write(f"multiring bench: {text}\n")
    sys.stderr.flush()
