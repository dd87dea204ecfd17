"""Durable files: written whole or not at all, checked for damage, with the same bytes for the same content.

A file is written under a temporary name in its own folder, synced and renamed, and the folder is synced. A process that is
killed leaves a temporary file, which `remove_leftovers` recognises by its name and by its lock, which ended with the process.
Libraries for atomic writes offer the rename, but neither this cleaning up nor files that are created only once.
"""

import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from metastep._core.errors import InputError
from metastep._core.tensors import Tensors as Tensors
from metastep._core.tensors import canonical_json as canonical_json
from metastep._core.tensors import decode, encode, parse_json

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")
_DAY = 86400.0  # seconds
_VERSIONS = {"model": 3}  # of files, by kind; all others have version 2
_UNSUPPORTED = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENOLCK, errno.EMLINK}


@cache
def warn(sentence: str) -> None:
    """Print a warning, once in a process."""
    print(f"warning: {sentence}.", file=sys.stderr)


@contextmanager
def _or_refuse(what: str) -> Iterator[None]:
    """Turn an error of the operating system into one sentence."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{what}: {error.strerror or error}.") from error


def _is_supported(loss: str, call: Callable[..., object], *arguments: Any) -> bool:
    """Call the operating system; return False, after a warning, if the file system cannot do it."""
    try:
        call(*arguments)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        warn(f"the file system {loss}")
        return False
    return True


def _lock(descriptor: int, mode: int) -> bool:
    """Lock an open file; BlockingIOError if another process holds the lock."""
    loss = "has no locks: temporary files of killed processes are removed only after a day"
    return _is_supported(loss, fcntl.flock, descriptor, fcntl.LOCK_EX | mode)


def _sync(path: Path) -> None:
    """Make a file, or the names in a folder, survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _is_supported("cannot sync: a power failure may undo the last writes", os.fsync, descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def temporary(path: Path) -> Iterator[Path]:
    """Yield a new file beside `path` and remove it afterwards; if this process is killed, the file is a leftover."""
    with _or_refuse(f"File {path} cannot be written"):
        while True:
            file = path.parent / f".{path.name}.{secrets.token_hex(8)}.tmp"
            descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
            _lock(descriptor, 0)
            if os.fstat(descriptor).st_nlink > 0:
                break
            os.close(descriptor)  # another process took it for a leftover in the moment before it was locked
    with os.fdopen(descriptor, "wb"):  # which holds the lock
        try:
            yield file
        finally:
            with suppress(OSError):  # as a rule it has been renamed
                os.unlink(file)


def fill_atomically(path: str | Path, fill: Callable[[Path], object], *, overwrite: bool = True) -> bool:
    """Have `fill` write a temporary file, which then takes the name `path`: whole or not at all, durably.

    With `overwrite=False` an existing file stays as it is and the result is False; of several processes that try at the same
    time exactly one gets True.
    """
    path = Path(path)
    with _or_refuse(f"File {path} cannot be written"), temporary(path) as file:
        fill(file)
        _sync(file)
        if overwrite:
            os.replace(file, path)
        elif not _link(file, path):
            return False
        _sync(path.parent)
    return True


def _link(file: Path, path: Path) -> bool:
    """Give a file another name unless that is taken: a hard link, unlike a rename, does not replace."""
    try:
        loss = "has no hard links: two processes that start the same work at the same moment may both do it"
        if not _is_supported(loss, os.link, file, path):
            if os.path.lexists(path):
                return False
            os.replace(file, path)
    except FileExistsError:
        return False
    return True


def write_atomically(path: str | Path, data: bytes, *, overwrite: bool = True) -> bool:
    """Make `path` hold `data`, as `fill_atomically` does."""

    def fill(file: Path) -> None:
        with open(file, "wb") as stream:
            stream.write(data)

    return fill_atomically(path, fill, overwrite=overwrite)


def remove_leftovers(folder: str | Path) -> int:
    """Remove the temporary files of killed processes, but not those of running ones; return how many."""
    removed = 0
    for path in sorted(Path(folder).iterdir()):
        if not is_temporary(path.name):
            continue
        with suppress(OSError):  # renamed meanwhile, being written now, or of another user
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if _lock(descriptor, fcntl.LOCK_NB) or os.fstat(descriptor).st_mtime < time.time() - _DAY:
                    shutil.rmtree(path) if path.is_dir() else os.unlink(path)
                    removed += 1
            finally:
                os.close(descriptor)
    return removed


def is_temporary(name: str) -> bool:
    """Return whether a file of this name is one of our temporary files."""
    return _TEMPORARY.fullmatch(name) is not None


def create_folder(folder: str | Path) -> None:
    """Create a folder and its parents, durably; an existing one is fine."""
    folder = Path(folder)
    if folder.is_dir():
        return
    create_folder(folder.parent)
    with _or_refuse(f"Folder {folder} cannot be created"):
        with suppress(FileExistsError):
            os.mkdir(folder)
        if not folder.is_dir():
            raise InputError(f"Folder {folder} cannot be created: a file of that name exists.")
        _sync(folder.parent)


def require_free_space(folder: str | Path, num_bytes: int) -> None:
    """Refuse to start work that would not fit on the disk of `folder`, which need not exist yet."""
    existing = Path(folder).absolute()
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if free < num_bytes:
        raise InputError(
            f"Folder {folder} needs {num_bytes / 1e6:.1f} MB of free disk space, but only {free / 1e6:.1f} MB are left."
        )


@contextmanager
def _opened(path: str | Path) -> Iterator[Any]:
    """Open a file to read; pipes and devices, which may block or never end, are refused and not even opened."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise OSError(errno.EINVAL, "it is not a plain file")
        with open(path, "rb") as file:
            yield file
    except FileNotFoundError as error:
        raise InputError(f"File {path} is missing.") from error
    except OSError as error:
        raise InputError(f"File {path} cannot be read: {error.strerror or error}.") from error


def read_bytes(path: str | Path) -> bytes:
    """Return the content of a plain file."""
    with _opened(path) as file:
        content: bytes = file.read()
        return content


def sha256_of(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with _opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_json(value: Any) -> str:
    """Return the SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def write_json(path: str | Path, value: Any) -> None:
    """Write a value as canonical JSON, atomically."""
    write_atomically(path, canonical_json(value))


def read_json(path: str | Path) -> Any:
    """Read a JSON file."""
    text = read_bytes(path)
    try:
        return parse_json(text)
    except ValueError as error:
        raise InputError(f"File {path} is not valid JSON: {error}.") from error


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """Add to a JSON object its checksum, by which other files refer to it."""
    return content | {"checksum": sha256_of_json(content)}


def read_sealed(path: str | Path, kind: str, remedy: str) -> dict[str, Any]:
    """Read a sealed object of a kind; an edited one is refused."""
    found: dict[str, Any] = read_json(path)
    require_stamp(found, kind, path, remedy)
    content = {key: value for key, value in found.items() if key != "checksum"}
    if found.get("checksum") != sha256_of_json(content):
        raise InputError(f"File {path} is damaged or was edited: its content does not match its checksum.")
    return found


def write_tensors(path: str | Path, arrays: Mapping[str, ArrayLike], metadata: Mapping[str, Any] | None = None) -> str:
    """Write named arrays and JSON metadata as one safetensors file, atomically; return the file's SHA-256."""
    data = encode(arrays, metadata or {})
    write_atomically(path, data)
    return hashlib.sha256(data).hexdigest()


def read_tensors(path: str | Path, expected_sha256: str | None = None, *, verify: bool = True) -> Tensors:
    """Map a file of `write_tensors` into memory (read-only).

    Verification compares the whole file with `expected_sha256` if given, else the content with the checksum in its header.
    `verify=False` is for a file that was verified before.
    """
    if verify and expected_sha256 is not None and (found := sha256_of(path)) != expected_sha256:
        raise InputError(f"File {path} is damaged: its SHA-256 is {found}, expected is {expected_sha256}.")
    with _opened(path) as file:
        content = np.memmap(file, np.uint8, "r") if os.fstat(file.fileno()).st_size else np.empty(0, np.uint8)
    try:
        tensors = decode(content, verify=verify and expected_sha256 is None)
    except ValueError as error:
        sentence = " ".join(str(error).split()).rstrip(".")
        raise InputError(f"File {path} is damaged or was not written by metastep: {sentence}.") from error
    if tensors is None:
        raise InputError(f"File {path} is damaged: its content does not match the checksum in its header.")
    return tensors


def stamp(kind: str) -> dict[str, Any]:
    """Return the fields that every file begins with: its kind and the version of its format."""
    return {"format": f"metastep {kind}", "version": _VERSIONS.get(kind, 2)}


def require_stamp(found: Any, kind: str, path: str | Path, remedy: str) -> None:
    """Refuse a file of another kind or version; the remedy says how to get one of this version."""
    wanted = stamp(kind)
    given = {name: found.get(name) for name in wanted} if isinstance(found, dict) else {}
    if given == wanted:
        return
    if given.get("format") == wanted["format"]:
        raise InputError(
            f"File {path} is a {kind} of version {given['version']!r:.20}, this metastep reads version {wanted['version']}: "
            f"{remedy}."
        )
    raise InputError(f"File {path} is not a metastep {kind}.")


def is_stamped(file: Path) -> bool:
    """Return whether metastep wrote a JSON file."""
    try:
        found = read_json(file)
    except InputError:
        return False
    return isinstance(found, dict) and str(found.get("format")).startswith("metastep ")


def require_new(path: str | Path, *, force: bool = False) -> None:
    """Refuse to export to a file that exists; `force` may replace a plain file, but none in the folder of a run."""
    path = Path(path)
    for parent in path.resolve().parents:
        if any(is_stamped(parent / name) for name in ("config.json", "manifest.json", "settings.json")):
            raise InputError(f"File {path} would lie in {parent}, which belongs to metastep; write it somewhere else.")
    if not os.path.lexists(path):
        return
    if path.is_symlink() or not path.is_file():
        raise InputError(f"File {path} cannot be written: there is something that is not a plain file.")
    if not force:
        raise InputError(f"File {path} exists already; use another name, or --force to replace it.")


def fill_new(path: str | Path, fill: Callable[[Path], object], *, force: bool = False) -> None:
    """Have `fill` write a new file where the user asks for one, or with `force` replace a plain file."""
    path = Path(path)
    require_new(path, force=force)
    if not path.parent.is_dir():
        raise InputError(f"File {path} cannot be written: there is no folder {path.parent}.")
    remove_leftovers(path.parent)
    if not fill_atomically(path, fill, overwrite=force):
        require_new(path)


def write_new(path: str | Path, data: bytes, *, force: bool = False) -> None:
    """Write `data` as `fill_new` does."""
    fill_new(path, lambda file: file.write_bytes(data), force=force)


def claim(folder: Path, marker: str) -> Path:
    """Create a folder that the file `marker` makes ours, or resume in one; return that file's path.

    A folder that holds anything else, and not that file, is refused.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out: {folder} is a file, a folder is needed.")
    create_folder(folder)
    found = sorted(name for name in os.listdir(folder) if not is_temporary(name))
    if found and marker not in found and not (folder / marker).exists():  # another process may have been faster
        raise InputError(
            f"--out: {folder} holds {found[0]} and is not a folder of this command; name one that is new or empty."
        )
    return folder / marker
