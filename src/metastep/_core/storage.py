"""Durable files: whole or not at all, damage is noticed, and the same content gives the same bytes.

A file is written under a temporary name in its own folder, synced, renamed, and the folder is synced. A process that
is killed on the way leaves a temporary file, which `remove_leftovers` recognises by its name and by the fact that
nobody holds its lock any more.
"""

import hashlib
import io
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from metastep._core.errors import InputError
from metastep._core.filesystem import LINKS, SYNCS, attempt, lock, plain
from metastep._core.filesystem import require_free_space as require_free_space
from metastep._core.tensors import Tensors as Tensors
from metastep._core.tensors import canonical_json as canonical_json
from metastep._core.tensors import decode, encode, parse_json

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")
_DAY = 86400.0  # seconds
_VERSIONS = {"model": 3}
"""Of files, by kind; all others are of version 2, and metastep 0.1 wrote version 1."""


class Disk(NamedTuple):
    """Every operating-system call that changes the disk; tests replace `DISK` to make each of them fail in turn."""

    create: Callable[..., int] = os.open
    write: Callable[[int, memoryview], int] = os.write
    fsync: Callable[[int], None] = os.fsync
    rename: Callable[[Path, Path], None] = os.replace
    link: Callable[[Path, Path], None] = os.link
    unlink: Callable[[Path], None] = os.unlink
    mkdir: Callable[[Path], None] = os.mkdir


DISK = Disk()


class Growing(io.RawIOBase):
    """A file that has no name yet: whatever is written goes to its end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._size = descriptor, 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any) -> int:
        """Write all of it."""
        rest = memoryview(data).cast("B")
        written = len(rest)
        while rest:
            rest = rest[DISK.write(self._descriptor, rest) :]
        self._size += written
        return written


def write_atomically(path: str | Path, data: bytes, *, overwrite: bool = True) -> bool:
    """Make `path` hold `data`, whole or not at all, durably.

    With `overwrite=False` an existing file is left as it is and the result is False; of several processes that try at
    the same time exactly one gets True.
    """
    return stream_atomically(path, lambda file: file.write(data), overwrite=overwrite)


def stream_atomically(path: str | Path, fill: Callable[[Growing], object], *, overwrite: bool = True) -> bool:
    """The same for what is too much to be held at once: `fill` writes it piece by piece."""
    path = Path(path)
    try:
        return _stream_atomically(path, fill, overwrite)
    except OSError as error:
        raise InputError(f"File {path} cannot be written: {error.strerror or error}.") from error


def _stream_atomically(path: Path, fill: Callable[[Growing], object], overwrite: bool) -> bool:
    temporary, descriptor = _create_temporary(path)
    written = True
    try:
        fill(Growing(descriptor))
        attempt(lambda: DISK.fsync(descriptor), SYNCS)
        if overwrite:
            DISK.rename(temporary, path)
        else:
            written = _rename_if_new(temporary, path)
    except (Exception, KeyboardInterrupt):
        with suppress(OSError):
            DISK.unlink(temporary)
        raise
    finally:
        os.close(descriptor)
    _sync_folder(path.parent)
    return written


def _rename_if_new(temporary: Path, path: Path) -> bool:
    """Give a file its name unless that is taken: a hard link, unlike a rename, refuses to replace."""
    try:
        if not attempt(lambda: DISK.link(temporary, path), LINKS):
            if os.path.lexists(path):
                raise FileExistsError
            DISK.rename(temporary, path)
            return True
    except FileExistsError:
        DISK.unlink(temporary)
        return False
    DISK.unlink(temporary)
    return True


def _create_temporary(path: Path) -> tuple[Path, int]:
    """Create a locked temporary file beside `path`."""
    while True:
        temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}.tmp"
        descriptor = DISK.create(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        lock(descriptor, wait=True)
        if os.fstat(descriptor).st_nlink > 0:
            return temporary, descriptor
        # Another process took it for a leftover in the moment between creation and lock.
        os.close(descriptor)


@contextmanager
def temporary(path: Path) -> Iterator[Path]:
    """A file beside `path` that is there meanwhile; should this process be killed, it is a leftover."""
    try:
        file, descriptor = _create_temporary(path)
    except OSError as error:
        raise InputError(f"File {path} cannot be written: {error.strerror or error}.") from error
    try:
        yield file
    finally:
        with suppress(OSError):
            DISK.unlink(file)
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        attempt(lambda: DISK.fsync(descriptor), SYNCS)
    finally:
        os.close(descriptor)


def remove_leftovers(folder: str | Path) -> int:
    """Remove the temporary files of processes that were killed; those of running ones stay. Returns how many."""
    removed = 0
    for path in sorted(Path(folder).iterdir()):
        if not is_temporary(path.name):
            continue
        with suppress(OSError):  # renamed meanwhile, being written right now, or not ours to remove
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if lock(descriptor, wait=False) or os.fstat(descriptor).st_mtime < time.time() - _DAY:
                    shutil.rmtree(path) if path.is_dir() else DISK.unlink(path)
                    removed += 1
            finally:
                os.close(descriptor)
    return removed


def is_temporary(name: str) -> bool:
    """Whether a file of this name is a temporary one of ours."""
    return _TEMPORARY.fullmatch(name) is not None


def create_folder(folder: str | Path) -> None:
    """Create a folder and its parents, durably; an existing one is fine."""
    folder = Path(folder)
    if folder.is_dir():
        return
    create_folder(folder.parent)
    try:
        with suppress(FileExistsError):
            DISK.mkdir(folder)
        if not folder.is_dir():
            raise InputError(f"Folder {folder} cannot be created: a file of that name exists.")
        _sync_folder(folder.parent)
    except OSError as error:
        raise InputError(f"Folder {folder} cannot be created: {error.strerror or error}.") from error


def _unreadable(path: str | Path, error: OSError) -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError(f"File {path} is missing.")
    return InputError(f"File {path} cannot be read: {error.strerror or error}.")


def read_bytes(path: str | Path) -> bytes:
    """The content of a plain file."""
    try:
        with open(path, "rb", opener=plain) as file:
            return file.read()
    except OSError as error:
        raise _unreadable(path, error) from error


def sha256_of(path: str | Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    try:
        with open(path, "rb", opener=plain) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(path, error) from error


def sha256_of_json(value: Any) -> str:
    """SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """A JSON object with its own checksum, which is also what it is known by elsewhere."""
    return content | {"checksum": sha256_of_json(content)}


def read_sealed(path: str | Path, kind: str, remedy: str) -> dict[str, Any]:
    """Read an object of a kind that was written sealed; an edited one is refused."""
    found: dict[str, Any] = read_json(path)
    require_stamp(found, kind, path, remedy)
    content = {key: value for key, value in found.items() if key != "checksum"}
    if found.get("checksum") != sha256_of_json(content):
        raise InputError(f"File {path} is damaged or was edited: its content does not match its checksum.")
    return found


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


def write_tensors(path: str | Path, arrays: Mapping[str, ArrayLike], metadata: Mapping[str, Any] | None = None) -> str:
    """Write named arrays and JSON metadata as one safetensors file, atomically; returns the file's SHA-256.

    The same content gives the same bytes, and a checksum in the header finds damage without another file.
    """
    data = encode(arrays, metadata or {})
    write_atomically(path, data)
    return hashlib.sha256(data).hexdigest()


def read_tensors(path: str | Path, expected_sha256: str | None = None, *, verify: bool = True) -> Tensors:
    """Map a file of `write_tensors` into memory (read-only).

    Verification compares the whole file with `expected_sha256` where that is given, else the content with the checksum
    in its header. `verify=False` is for a file that was verified before.
    """
    if verify and expected_sha256 is not None and (found := sha256_of(path)) != expected_sha256:
        raise InputError(f"File {path} is damaged: its SHA-256 is {found}, expected is {expected_sha256}.")
    try:
        with open(path, "rb", opener=plain) as file:
            content = np.memmap(file, np.uint8, "r") if os.fstat(file.fileno()).st_size else np.empty(0, np.uint8)
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        tensors = decode(content, verify=verify and expected_sha256 is None)
    except ValueError as error:
        sentence = " ".join(str(error).split()).rstrip(".")
        raise InputError(f"File {path} is damaged or was not written by metastep: {sentence}.") from error
    if tensors is None:
        raise InputError(f"File {path} is damaged: its content does not match the checksum in its header.")
    return tensors


def stamp(kind: str) -> dict[str, Any]:
    """What every file of ours begins with: what it is, and in which form."""
    return {"format": f"metastep {kind}", "version": _VERSIONS.get(kind, 2)}


def require_stamp(found: Any, kind: str, path: str | Path, remedy: str) -> None:
    """Refuse what is not a file of ours of this kind, or of another version; the remedy says how to make it anew."""
    wanted = stamp(kind)
    given = {name: found.get(name) for name in wanted} if isinstance(found, dict) else {}
    if given == wanted:
        return
    if given.get("format") == wanted["format"] or _is_of_first_version(found, kind):
        version = given.get("version") if isinstance(given.get("version"), int) else 1
        raise InputError(
            f"File {path} is a {kind} of version {version}, this metastep reads version {wanted['version']}: {remedy}."
        )
    raise InputError(f"File {path} is not a metastep {kind}.")


def _is_of_first_version(found: Any, kind: str) -> bool:
    """Files of metastep 0.1 named their kind in other ways, or not at all."""
    if not isinstance(found, dict):
        return False
    if kind == "run":
        return set(found) == {"experiment", "tasks"}
    return found.get("kind") == kind or found.get("format") in (kind, f"metastep-{kind}")
