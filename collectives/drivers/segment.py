"""Shared memory without a name: created by one process, mapped by its peers, gone with the last of them."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os

from multiring.collectives.drivers.room import available_bytes
from multiring.errors import SharedMemoryError

__all__ = ["Segment"]

PAGE_BYTES = mmap.PAGESIZE


class Segment:
    """One mapped piece of shared memory.

    Attributes
    ----------
    address : int
        Where it lies in this process.
    n_bytes : int
    descriptor : int
        The file descriptor that peers open; -1 in a process that only attached.
    """

    def __init__(self, mapping: mmap.mmap, n_bytes: int, descriptor: int) -> None:
        self.n_bytes = n_bytes
        self.descriptor = descriptor
        # The exported buffer keeps the mapping alive as long as this object lives.
        self.buffer = (ctypes.c_char * n_bytes).from_buffer(mapping)
        self.address = ctypes.addressof(self.buffer)

    @classmethod
    def create(cls, n_bytes: int, purpose: str) -> Segment:
        """Make a segment and reserve its memory, so that no later access can find it missing.

        Parameters
        ----------
        n_bytes : int
            Rounded up to whole pages; at least one.
        purpose : str
            For messages.

        Raises
        ------
        SharedMemoryError
            Naming the bytes wanted and free, and the remedy. ``MULTIRING_SHM_DIR`` takes the memory from a folder (such
            as a larger tmpfs) instead of anonymous memory; the file has no name there either.
        """
        n_bytes = max((n_bytes + PAGE_BYTES - 1) // PAGE_BYTES, 1) * PAGE_BYTES
        folder = os.environ.get("MULTIRING_SHM_DIR")
        descriptor = -1
        try:
            if folder:
                descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
            else:
                # Anonymous memory has no quota of its own: what is missing would be found out by a kill.
                if n_bytes > available_bytes():
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                descriptor = os.memfd_create("multiring", os.MFD_CLOEXEC)
            os.posix_fallocate(descriptor, 0, n_bytes)
            return cls(mmap.mmap(descriptor, n_bytes), n_bytes, descriptor)
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            where = f"in {folder} (MULTIRING_SHM_DIR)" if folder else "of the machine's memory"
            free = _free_bytes(folder)
            raise SharedMemoryError(
                f"{purpose}: wanted {n_bytes} bytes of shared memory {where}, {free} are free: {error.strerror}; free"
                " memory, lower MULTIRING_HEAP_BYTES, use smaller arrays, or point MULTIRING_SHM_DIR at a larger tmpfs"
                " (in a container: docker run --shm-size)"
            ) from None

    @classmethod
    def attach(cls, pid: int, descriptor: int, n_bytes: int, purpose: str) -> Segment:
        """Map a segment that another process made.

        Raises
        ------
        SharedMemoryError
            If the process has ended, or this one may not look at its descriptors.
        """
        path = f"/proc/{pid}/fd/{descriptor}"
        try:
            own = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise SharedMemoryError(
                f"{purpose}: process {pid} gave {path}, opening it: {error.strerror}; ranks of a node must run as one"
                " user in one pid namespace (containers: share it with --pid=host or --pid=container:NAME)"
            ) from None
        try:
            return cls(mmap.mmap(own, n_bytes), n_bytes, -1)
        except (OSError, ValueError) as error:
            raise SharedMemoryError(f"{purpose}: mapping {n_bytes} bytes of {path}: {error}") from None
        finally:
            os.close(own)

    def close_descriptor(self) -> None:
        """Let no further process attach."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __del__(self) -> None:
        if getattr(self, "descriptor", -1) >= 0:
            self.close_descriptor()


def _free_bytes(folder: str | None) -> int:
    if not folder:
        return available_bytes()
    try:
        status = os.statvfs(folder)
    except OSError:
        return 0
    return status.f_bavail * status.f_frsize
