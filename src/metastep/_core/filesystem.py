"""What a file system offers: room, plain files, and what not every one can do, hard links, locks and syncs of folders.

Without one of those work goes on, after one warning.
"""

import errno
import fcntl
import os
import shutil
import stat
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from metastep._core.errors import InputError

_UNSUPPORTED = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENOLCK, errno.EMLINK}
LINKS = (
    "has no hard links: of two processes that begin the same work at the same moment, each may believe that it was first, so "
    "start one of them alone"
)
LOCKS = (
    "has no locks: temporary files of a process that was killed cannot be told from those of a running one, and are removed "
    "only when they are a day old; a folder in which a process of another machine was killed stays in use until its .lock "
    "file is removed"
)
SYNCS = "cannot sync: after a power failure, files that were just written may be gone"


@cache
def warn(sentence: str) -> None:
    """Say once in a process what is lost."""
    print(f"warning: {sentence}.", file=sys.stderr)


def attempt(call: Callable[[], object], loss: str) -> bool:
    """Call the operating system; False, after a warning, where the file system cannot do it. Other errors are raised."""
    try:
        call()
    except (FileExistsError, BlockingIOError):
        raise
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        warn(f"the file system {loss}")
        return False
    return True


def lock(descriptor: int, *, wait: bool) -> bool:
    """Lock an open file; False where there are no locks, BlockingIOError where another process holds it."""
    return attempt(lambda: fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB)), LOCKS)


def require_free_space(folder: str | Path, num_bytes: int) -> None:
    """Refuse to start what would not fit on the disk of `folder` (which need not exist yet)."""
    existing = Path(folder).absolute()
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if free < num_bytes:
        raise InputError(
            f"Folder {folder} needs {num_bytes / 1e6:.1f} MB of free disk space, but only {free / 1e6:.1f} MB are left."
        )


def plain(path: str, flags: int) -> int:
    """An opener that refuses pipes and devices, which may make us wait or never end; they are not even opened."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "it is not a plain file")
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a plain file")
    return descriptor
