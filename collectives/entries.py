"""The interpreter's entries as machine code."""

from __future__ import annotations

from functools import cache

__all__ = ["Entries", "entries"]


class Entries:
    """The interpreter's entries as machine code."""

    def __init__(self) -> None:
        from multiring.kernels import abort, interpreter, mail
        from multiring.kernels.build import native, span_address

        self.run = native(interpreter.run, "int64(int64,int64,int64)")
        self.advance = native(interpreter.advance, "int64(int64)")
        self.announce = native(interpreter.announce, "int64(int64,int64)")
        self.deliver = native(mail.deliver, "int64(int64,int64)")
        self.abort = native(abort.abort, "int64(int64,int64)")
        self.claim_text = native(abort.claim_text, "int64(int64,int64)")
        self.glance = native(abort.glance, "int64(int64)")
        self.give_up = native(abort.give_up, "int64(int64,int64,int64)")
        self.span_address = span_address


@cache
def entries() -> Entries:
    """Return the interpreter's entries, compiled or loaded at their first use."""
    return Entries()
