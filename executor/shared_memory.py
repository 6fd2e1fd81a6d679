"""Shared memory without a name: nothing can be left behind, whoever dies."""

import errno
import mmap
import os
import tempfile
from pathlib import Path

from doppler.core.errors import CapacityError

PAGE_BYTES = mmap.PAGESIZE


def allocate(directory: str, size_bytes: int, purpose: str) -> int:
    """Returns the descriptor of an unlinked file of zeros, its memory reserved.

    Reserving now turns a full mount into an error here and not into a SIGBUS in some worker.

    Raises:
        CapacityError: If the mount has too little room; names bytes needed and free.
    """
    if not Path(directory).is_dir():
        raise CapacityError(
            f"{purpose} lies in shared memory, and {directory!r} is not a directory of this host"
        )
    size = max(PAGE_BYTES, -(-size_bytes // PAGE_BYTES) * PAGE_BYTES)
    fd = _open_unlinked(directory)
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        os.close(fd)
        if error.errno not in {errno.ENOSPC, errno.EFBIG, errno.ENOMEM}:
            raise
        raise CapacityError(
            f"{purpose} needs {size} bytes of shared memory, and {directory!r} has "
            f"{free_bytes(directory)} bytes free"
        ) from error
    return fd


def free_bytes(directory: str) -> int:
    """Returns the bytes that a user may still allocate on the mount of `directory`."""
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


def map_all(fd: int) -> mmap.mmap:
    """Returns a shared mapping of the whole file, writable."""
    return mmap.mmap(fd, os.fstat(fd).st_size)


def _open_unlinked(directory: str) -> int:
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        # A file system without O_TMPFILE (overlay, NFS): made with a name, and unlinked at once.
        if error.errno not in {errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT}:
            raise
    fd, name = tempfile.mkstemp(dir=directory)
    os.unlink(name)
    return fd
