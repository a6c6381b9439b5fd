"""``python -m multiring``: the command line."""

from __future__ import annotations

from multiring.bench.cli import main

if __name__ == "__main__":
    main()
