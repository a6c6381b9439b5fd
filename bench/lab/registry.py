"""Names of labs on this machine: each is held by a lock while its owner lives, so that leftovers can be told.

A lock goes with the process that holds it, however that ends; a number of a process would be used again.
"""

from __future__ import annotations

import fcntl
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from multiring.errors import LaunchError

__all__ = ["FOLDER", "Claim", "claim_name"]

FOLDER = Path("/run/multiring-lab")


class Claim:
    """A name that is this process's until :meth:`release`, or until it ends.

    Parameters
    ----------
    name : str
    path : Path
        The file whose lock holds it.
    descriptor : int
        Of that file, locked.
    """

    def __init__(self, name: str, path: Path, descriptor: int) -> None:
        self.name = name
        self._path = path
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the name back: nothing of that name is left."""
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def claim_name(clean: Callable[[str], object], folder: Path = FOLDER) -> Claim:
    """Claim a new name, ``lab`` and the number of this process, after removing what dead owners left.

    Parameters
    ----------
    clean : callable
        ``clean(name)`` removes all that a dead lab of that name has left.
    folder : Path
        Where the claims of this machine are.

    Raises
    ------
    LaunchError
        If the folder cannot be used.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(folder):
            for path in sorted(folder.iterdir()):
                descriptor = _try_lock(path)
                if descriptor is not None:
                    clean(path.name)
                    Claim(path.name, path, descriptor).release()
            return _claim_free(folder)
    except OSError as error:
        raise LaunchError(f"lab: got {error.strerror} for {folder}, wanted to write there; run as root") from None


def _claim_free(folder: Path) -> Claim:
    for count in itertools.count():
        path = folder / (f"lab{os.getpid()}-{count}" if count else f"lab{os.getpid()}")
        if not path.exists():
            descriptor = _try_lock(path, os.O_CREAT | os.O_EXCL)
            if descriptor is not None:
                return Claim(path.name, path, descriptor)
    raise AssertionError  # count has no end


def _try_lock(path: Path, flags: int = 0) -> int | None:
    """Return the locked descriptor of a file; None while another one holds it, or where it has just gone."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes from claiming: a file that is not yet locked would look like a dead one's."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
