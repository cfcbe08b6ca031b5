"""Room on the disk for files that are mapped into memory.

A file that was only made longer has no blocks yet. Writing to it through a map, where the disk is full by then, is no
error of a call: it ends the process (SIGBUS). So the blocks are taken when the file is made.
"""

from __future__ import annotations

import errno
import os
import sys

_CANNOT = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
"""File systems that know no reservation; a full disk there is what it was."""


def reserve(fd: int, size: int) -> None:
    """Make the file at least `size` bytes long, all of them with a place on the disk. What is in it stays.

    Raises: OSError where there is no room.
    """
    if sys.platform == "linux":
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
        else:
            return
    if os.fstat(fd).st_size < size:
        os.ftruncate(fd, size)
