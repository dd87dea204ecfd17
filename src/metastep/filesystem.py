"""What not every file system can do: hard links, locks, syncs of folders. Without one work goes on, after one warning."""

import errno
import fcntl
import sys
from collections.abc import Callable
from functools import cache

_UNSUPPORTED = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENOLCK, errno.EMLINK}
LINKS = (
    "has no hard links: of two processes that begin the same work at the same moment, each may believe that it was first, so "
    "start one of them alone"
)
LOCKS = (
    "has no locks: temporary files of a process that was killed cannot be told from those of a running one, and are removed "
    "only when they are a day old"
)
SYNCS = "cannot sync: after a power failure, files that were just written may be gone"


@cache
def warn(loss: str) -> None:
    """Say once in a process what is lost."""
    print(f"warning: the file system {loss}.", file=sys.stderr)


def attempt(call: Callable[[], object], loss: str) -> bool:
    """Call the operating system; False, after a warning, where the file system cannot do it. Other errors are raised."""
    try:
        call()
    except (FileExistsError, BlockingIOError):
        raise
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        warn(loss)
        return False
    return True


def lock(descriptor: int, *, wait: bool) -> bool:
    """Lock an open file; False where there are no locks, BlockingIOError where another process holds it."""
    return attempt(lambda: fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB)), LOCKS)
