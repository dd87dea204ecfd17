"""One writer at a time in a folder; who is refused is told who is there.

Every writer has a file `.lock.<token>` in the folder while it works. Whether the writer of a file still lives is told by the
file's lock, which ends with the process; where a file system has no locks, by the process number and its start on this
machine. A process that was killed leaves its file, which the next writer removes.
"""

import errno
import fcntl
import json
import os
import random
import re
import secrets
import shlex
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from metastep._core import storage
from metastep._core.errors import InputError
from metastep._core.filesystem import lock, warn

_NAME = re.compile(r"\.lock\.[0-9a-f]{16}")
_ATTEMPTS, _PAUSE = 12, 0.1  # two that start at the same moment both step back; after a random pause one is first
_UNWRITTEN = 60.0  # seconds after which a file without a writer's record is taken for a leftover

_held: set[Path] = set()


def is_lock(name: str) -> bool:
    """Whether a file of this name is a writer's."""
    return _NAME.fullmatch(name) is not None


@contextmanager
def writing(folder: Path, work: str) -> Iterator[None]:
    """Keep other writers out of a folder.

    Inside another such block of this process on the same folder nothing happens. Files of killed processes are removed.
    """
    place = folder.resolve()
    if place in _held:
        yield
        return
    held = _acquire(place, work)
    _held.add(place)
    try:
        for inner in (place, *(Path(root) / name for root, names, _ in os.walk(place) for name in names)):
            with suppress(OSError):
                storage.remove_leftovers(inner)
        yield
    finally:
        _held.discard(place)
        if held is not None:
            _release(*held)


def writers(folder: Path) -> list[dict[str, Any]]:
    """The records of the processes that write in a folder now; files of dead ones are left as they are."""
    return [_record(path) for path in _files(folder) if _is_alive(path)]


def _acquire(folder: Path, work: str) -> tuple[Path, int] | None:
    own = {
        "work": work,
        "command": _command(),
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "started": _start_of(os.getpid()),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
    others: list[dict[str, Any]] = []
    for _ in range(_ATTEMPTS):
        try:
            path, descriptor = _create(folder, own)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                # What is complete can still be read.
                warn(
                    f"folder {folder} cannot be locked ({error.strerror}), so that nothing keeps other processes from "
                    "writing there meanwhile, and leftovers of killed ones stay"
                )
                return None
            raise InputError(f"Folder {folder} cannot be locked: {error.strerror or error}.") from error
        others = []
        for other in _files(folder):
            if other == path:
                continue
            if not _is_alive(other):
                with suppress(OSError):
                    os.unlink(other)
            else:
                others.append(_record(other))
        if not others:
            return path, descriptor
        _release(path, descriptor)
        time.sleep(_PAUSE * random.random())
    raise InputError(
        f"Folder {folder} is in use by {described(others[0])}; wait for it, stop it, or use another folder."
    )


def described(record: dict[str, Any]) -> str:
    """Who a writer is, in words."""
    if not record:
        return "another process"
    command, host, since = (ascii(str(record.get(name)))[1:-1] for name in ("command", "host", "since"))
    command = command if len(command) <= 80 else f"{command[:77]}..."
    return f"`{command}` (process {record.get('pid')} on {host}, since {since})"


def _create(folder: Path, record: dict[str, Any]) -> tuple[Path, int]:
    while True:
        path = folder / f".lock.{secrets.token_hex(8)}"
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        try:
            lock(descriptor, wait=True)  # where there are no locks, the record tells
            os.write(descriptor, json.dumps(record).encode())
        except OSError:
            _release(path, descriptor)
            raise
        if path.exists():
            return path, descriptor
        os.close(descriptor)  # taken for a leftover in the moment before it was locked


def _release(path: Path, descriptor: int) -> None:
    with suppress(OSError):
        os.unlink(path)
    os.close(descriptor)


def _files(folder: Path) -> list[Path]:
    return sorted(folder / name for name in os.listdir(folder) if is_lock(name))


def _record(path: Path) -> dict[str, Any]:
    try:
        found = storage.read_json(path)
    except InputError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_alive(path: Path) -> bool:
    """Whether the process that wrote a file still runs."""
    flags = os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        try:
            descriptor = os.open(path, os.O_RDWR | flags)  # locks on NFS need that
        except OSError:
            descriptor = os.open(path, os.O_RDONLY | flags)  # of another user, or on a file system that is read-only
    except FileNotFoundError:
        return False
    except OSError:
        return True  # nothing is known, so nothing is risked
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return _seems_alive(path)
    finally:
        os.close(descriptor)
    return False


def _seems_alive(path: Path) -> bool:
    """The same without locks; of a process on another machine nothing is known, so it counts as alive."""
    record = _record(path)
    if not record:
        with suppress(OSError):
            return time.time() - path.stat().st_mtime < _UNWRITTEN
        return False
    if record.get("host") != socket.gethostname():
        return True
    return _start_of(record.get("pid")) == record.get("started") != ""


def _start_of(pid: Any) -> str:
    """When a process of this machine started, in its own clock; empty where there is no such process."""
    try:
        return Path(f"/proc/{int(pid)}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, ValueError, IndexError, TypeError):
        pass
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError, TypeError, OverflowError):
        return ""
    except PermissionError:
        pass
    return "running"  # a system without /proc


def _command() -> str:
    """What was typed, as far as it is known."""
    program = Path(sys.argv[0] if sys.argv else "").stem
    return shlex.join(["metastep" if program in ("", "__main__") else program, *sys.argv[1:]])
