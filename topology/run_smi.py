"""Running nvidia-smi: in the C locale, within a time limit, and never waiting for what it started."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass

from multiring.errors import TopologyError

__all__ = ["DEFAULT_TIMEOUT_S", "SmiRunner", "find_smi", "timeout_of"]

DEFAULT_TIMEOUT_S = 30.0
"""For all calls together. The first one takes several seconds where no process keeps the driver awake."""
MAX_OUTPUT_BYTES = 1 << 20
WSL_PATH = "/usr/lib/wsl/lib/nvidia-smi"


def find_smi(environ: Mapping[str, str]) -> str | None:
    """Return the path of nvidia-smi, or None where there is none."""
    found = shutil.which("nvidia-smi", path=environ.get("PATH", os.defpath))
    return found or (WSL_PATH if os.access(WSL_PATH, os.X_OK) else None)


def timeout_of(environ: Mapping[str, str]) -> float:
    """Return the limit that ``MULTIRING_SMI_TIMEOUT_S`` sets.

    Raises
    ------
    TopologyError
        If it is not a number above zero.
    """
    text = environ.get("MULTIRING_SMI_TIMEOUT_S")
    if text is None:
        return DEFAULT_TIMEOUT_S
    try:
        limit_s = float(text)
    except ValueError:
        limit_s = 0.0
    if not 0.0 < limit_s < float("inf"):
        raise TopologyError(f"MULTIRING_SMI_TIMEOUT_S: got {text!r}, wanted seconds above 0 such as 30")
    return limit_s


@dataclass(slots=True)
class SmiRunner:
    """Runs nvidia-smi until a deadline.

    Attributes
    ----------
    path : str
        Of the program.
    environ : mapping
        Its environment; ``LC_ALL=C`` is added.
    deadline_s : float
        By ``time.monotonic()``.
    """

    path: str
    environ: Mapping[str, str]
    deadline_s: float

    def run(self, *arguments: str) -> str:
        """Return what nvidia-smi prints on standard output.

        Raises
        ------
        TopologyError
            If it cannot be started, exits with another status than 0, prints more than 1 MiB, or does not end in time:
            it is killed then, and all that it started with it.
        """
        command = " ".join(("nvidia-smi", *arguments))
        try:
            process = subprocess.Popen(
                [self.path, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**self.environ, "LC_ALL": "C"},
                start_new_session=True,
            )
        except OSError as error:
            raise TopologyError(f"{command}: cannot be started: {error.strerror} ({self.path})") from None
        try:
            output, errors = self._read(process, command)
            status = process.wait(max(0.01, self.deadline_s - time.monotonic()))
        except (TopologyError, subprocess.TimeoutExpired) as error:
            # The group, not the process alone: a wrapper's child would hold the pipe.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            raise error if isinstance(error, TopologyError) else self._late(command) from None
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe:
                    pipe.close()
        if status:
            how = f"was ended by signal {-status}" if status < 0 else f"failed with exit status {status}"
            said = next((line.strip() for line in (output + "\n" + errors).splitlines() if line.strip()), "no message")
            raise TopologyError(f"{command}: {how}: {said[:200]}")
        return output

    def _late(self, command: str) -> TopologyError:
        return TopologyError(
            f"{command}: did not end within the time limit and was killed; MULTIRING_SMI_TIMEOUT_S sets another limit"
        )

    def _read(self, process: subprocess.Popen[bytes], command: str) -> tuple[str, str]:
        parts: dict[int, bytearray] = {}
        with selectors.DefaultSelector() as selector:
            for pipe in (process.stdout, process.stderr):
                if pipe:
                    selector.register(pipe.fileno(), selectors.EVENT_READ)
                    parts[pipe.fileno()] = bytearray()
            while selector.get_map():
                ready = selector.select(max(0.0, self.deadline_s - time.monotonic()))
                if not ready:
                    raise self._late(command)
                for key, _ in ready:
                    data = os.read(key.fd, 1 << 16)
                    if not data:
                        selector.unregister(key.fd)
                    parts[key.fd] += data
                    if len(parts[key.fd]) > MAX_OUTPUT_BYTES:
                        raise TopologyError(
                            f"{command}: got more than {MAX_OUTPUT_BYTES} bytes of output, wanted a short text"
                        )
                if time.monotonic() > self.deadline_s:
                    raise self._late(command)
        output, errors = (bytes(part).decode("utf-8", "replace") for part in parts.values())
        return output, errors
