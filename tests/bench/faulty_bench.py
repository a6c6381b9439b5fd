"""The bench command with a fault in rank 1: FAULT ARGUMENTS... are the arguments."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from multiring.bench.contender import Ours
from multiring.bench.sweep_command import bench

FAULT = sys.argv.pop(1)
BIND = Ours.bind
CALLS = [0]


def bind(self: Ours, case: Any, send: Any, receive: Any, in_place: bool) -> Any:
    call = BIND(self, case, send, receive, in_place)
    assert call is not None

    def faulty() -> None:
        call()
        CALLS[0] += 1
        if os.environ["MULTIRING_RANK"] == "1" and CALLS[0] == 1:
            if FAULT == "wrong":
                receive[3] += 1
            elif FAULT == "raise":
                raise RuntimeError("planted\nfault")
            elif FAULT == "kill":
                os.kill(os.getpid(), signal.SIGKILL)

    return faulty


Ours.bind = bind  # type: ignore[method-assign]
bench(prog_name="multiring bench")
