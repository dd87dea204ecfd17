"""Exclusive lock of a folder, which names its holder.

`filelock` locks the file `.lock`, and the operating system ends the lock with the process. The holder writes into the file who
it is, for the message that another process gets.
"""

import json
import os
import shlex
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from metastep._core import storage
from metastep._core.errors import InputError

LOCK = ".lock"
_SECONDS_TO_WAIT = 0.5  # a holder that is just leaving removes its file


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Keep other writers out of a folder, and remove temporary files of killed processes; blocks may be nested."""
    place = folder.resolve()
    lock = _lock_of(place)
    is_outermost = not lock.is_locked
    try:
        lock.acquire(_SECONDS_TO_WAIT)
    except Timeout:
        holder = writer(folder) or "another process"
        raise InputError(
            f"Folder {folder} is in use by {holder}; wait for it, stop it, or use another folder."
        ) from None
    except OSError as error:  # a read-only folder can still be read, and not every file system has locks
        storage.warn(
            f"folder {folder} cannot be locked ({error.strerror or error}), so nothing keeps other processes from writing there"
        )
        yield
        return
    try:
        if is_outermost:
            program = Path(sys.argv[0] if sys.argv else "").stem
            command = shlex.join(["metastep" if program in ("", "__main__") else program, *sys.argv[1:]])
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            record = {"command": command, "pid": os.getpid(), "host": socket.gethostname(), "since": since}
            (place / LOCK).write_text(json.dumps(record))
            for root, _, _ in os.walk(place):
                with suppress(OSError):
                    storage.remove_leftovers(root)
        yield
    finally:
        if is_outermost:
            with suppress(OSError):
                os.unlink(place / LOCK)
        lock.release()


def _lock_of(place: Path) -> FileLock:
    return FileLock(place / LOCK, thread_local=False, is_singleton=True)  # one for all blocks of this process


def writer(folder: Path) -> str:
    """Describe the process that writes in a folder now; empty if there is none."""
    file, lock = folder.resolve() / LOCK, _lock_of(folder.resolve())
    if not file.exists():
        return ""
    if not lock.is_locked:
        with (
            suppress(Timeout, OSError),
            lock.acquire(0.0),
        ):  # an OSError if the file is another user's: assume the worst
            return ""
    try:
        record: dict[str, Any] = dict(storage.read_json(file))
    except (InputError, TypeError, ValueError):
        record = {}
    command, host, since = (ascii(str(record.get(name)))[1:-1] for name in ("command", "host", "since"))
    command = command if len(command) <= 80 else f"{command[:77]}..."
    return f"`{command}` (process {record.get('pid')} on {host}, since {since})"
