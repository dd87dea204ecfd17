"""Durable files, written whole or not at all and checked for damage, and exclusive locks of folders.

The temporary file of a killed process is recognised by its name and by its lock, which ended with the process. Libraries for
atomic writes offer the rename, but neither this cleaning up nor files that are created only once. Arrays are safetensors, whose
one entry of metadata is the canonical JSON of the caller's and of a checksum over it and the arrays: it finds accidents, not
intent.
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shlex
import shutil
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from metastep._core.errors import InputError, printable

LOCK = ".lock"
_METADATA_KEY = "metastep"  # the only one: safetensors writes several in no fixed order
_UNSUPPORTED = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENOLCK, errno.EMLINK}


@cache
def warn(sentence: str) -> None:
    """Print a warning, once in a process."""
    print(f"warning: {sentence}.", file=sys.stderr)


@contextmanager
def or_refuse(what: str) -> Iterator[None]:
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


def _lock(descriptor: int, mode: int = 0) -> bool:
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
    with or_refuse(f"File {path} cannot be written"):
        while True:
            file = path.parent / f".{path.name}.{secrets.token_hex(8)}.tmp"
            descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
            _lock(descriptor)
            if os.fstat(descriptor).st_nlink > 0:
                break
            os.close(descriptor)  # another process took it for a leftover in the moment before it was locked
    with os.fdopen(descriptor, "wb"):  # which holds the lock
        try:
            yield file
        finally:
            with suppress(OSError):  # as a rule it has been renamed
                os.unlink(file)


def write_atomically(path: str | Path, data: bytes | Callable[[Path], object], *, overwrite: bool = True) -> bool:
    """Make `path` hold `data`, or what `data` writes to the file it is called with: whole or not at all, durably.

    With `overwrite=False` an existing file stays and the result is False; of several processes exactly one gets True.
    """
    path = Path(path)
    with or_refuse(f"File {path} cannot be written"), temporary(path) as file:
        if isinstance(data, bytes):
            with open(file, "wb") as stream:
                stream.write(data)
        else:
            data(file)
        _sync(file)
        # A hard link, unlike a rename, does not replace a file.
        loss = "has no hard links: two processes that start the same work at the same moment may both do it"
        try:
            if overwrite or not _is_supported(loss, os.link, file, path):
                if not overwrite and os.path.lexists(path):
                    return False
                os.replace(file, path)
        except FileExistsError:
            return False
        _sync(path.parent)
    return True


def remove_leftovers(folder: str | Path) -> None:
    """Remove the temporary files of killed processes, but not those of running ones."""
    for path in [path for path in Path(folder).iterdir() if is_temporary(path.name)]:
        with suppress(OSError):  # renamed meanwhile, being written now, or of another user
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if _lock(descriptor, fcntl.LOCK_NB) or os.fstat(descriptor).st_mtime < time.time() - 86400.0:
                    shutil.rmtree(path) if path.is_dir() else os.unlink(path)
            finally:
                os.close(descriptor)


def is_temporary(name: str) -> bool:
    """Return whether a file of this name is one of our temporary files."""
    return re.fullmatch(r"\..+\.[0-9a-f]{16}\.tmp", name) is not None


def create_folder(folder: str | Path) -> None:
    """Create a folder and its parents, durably; an existing one is fine."""
    folder = Path(folder)
    if not folder.is_dir():
        create_folder(folder.parent)
        with or_refuse(f"Folder {folder} cannot be created"):
            folder.mkdir(exist_ok=True)
            _sync(folder.parent)


def require_free_space(folder: str | Path, num_bytes: int) -> None:
    """Refuse to start work that would not fit on the disk of `folder`, which need not exist yet."""
    place = Path(folder).absolute()
    free = shutil.disk_usage(next(each for each in (place, *place.parents) if each.exists())).free
    if free < num_bytes:
        raise InputError(f"Folder {folder} needs {num_bytes / 1e6:.1f} MB of disk space, {free / 1e6:.1f} MB are left.")


def read_bytes(path: str | Path) -> bytes:
    """Return the content of a plain file: pipes and devices may block or never end."""
    with or_refuse(f"File {path} cannot be read"):
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise OSError(errno.EINVAL, "it is not a plain file")
            with open(path, "rb") as file:
                return file.read()
        except FileNotFoundError as error:
            raise InputError(f"File {path} is missing.") from error


def sha256_of(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    return hashlib.sha256(read_bytes(path)).hexdigest()


def canonical_json(value: Any) -> bytes:
    """Return the one JSON text of a value: sorted keys, two spaces, a newline at the end, no NaN or infinity."""
    return (json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _parse_json(text: bytes) -> Any:
    """Return the value of a JSON text; ValueError for what `canonical_json` cannot write."""
    try:
        value = json.loads(text.decode())
        canonical_json(value)  # refuses NaN, infinity and half of a surrogate pair
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


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
        return _parse_json(text)
    except ValueError as error:
        raise InputError(f"File {path} is not valid JSON: {error}.") from error


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """Add its checksum to a JSON object."""
    return content | {"checksum": sha256_of_json(content)}


def read_sealed(path: str | Path, kind: str, remedy: str) -> dict[str, Any]:
    """Read a sealed object of a kind; an edited one is refused."""
    found: dict[str, Any] = read_json(path)
    require_stamp(found, kind, path, remedy)
    if found != sealed({key: value for key, value in found.items() if key != "checksum"}):
        raise InputError(f"File {path} is damaged or was edited: its content does not match its checksum.")
    return found


class Tensors(NamedTuple):
    """Content of a tensor file."""

    arrays: dict[str, NDArray[Any]]
    metadata: dict[str, Any]


def _checksum(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> str:
    described = {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()}
    digest = hashlib.sha256(canonical_json({"metadata": metadata, "tensors": described}))
    for name in sorted(arrays):
        digest.update(arrays[name].reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def write_tensors(path: str | Path, arrays: Mapping[str, ArrayLike], metadata: Mapping[str, Any] | None = None) -> str:
    """Write named arrays and JSON metadata as one safetensors file, atomically, the same bytes for them; return its SHA-256."""
    given, metadata = {name: np.asarray(array) for name, array in sorted(arrays.items())}, metadata or {}
    tensors = {name: np.asarray(array, array.dtype.newbyteorder("<"), order="C") for name, array in given.items()}
    text = canonical_json({"checksum": _checksum(tensors, metadata), "metadata": metadata}).decode()
    data = save(tensors, metadata={_METADATA_KEY: text})
    write_atomically(path, data)
    return hashlib.sha256(data).hexdigest()


def read_tensors(path: str | Path, expected_sha256: str | None = None, *, verify: bool = True) -> Tensors:
    """Read a file of `write_tensors`, compared with its SHA-256 if given, else its content with the checksum in its header."""
    content = read_bytes(path)
    if expected_sha256 is not None and (given := hashlib.sha256(content).hexdigest()) != expected_sha256:
        raise InputError(f"File {path} is damaged: its SHA-256 is {given}, expected is {expected_sha256}.")
    try:
        found, header = load(content), json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        arrays = {name: found[name] for name in header if name != "__metadata__"}  # in the order of the file
        text = header["__metadata__"][_METADATA_KEY].encode()
        sealed = _parse_json(text)
        metadata, checksum = sealed["metadata"] | {}, sealed["checksum"]
    except (SafetensorError, AttributeError, LookupError, TypeError, ValueError) as error:
        sentence = " ".join(str(error).split()).rstrip(".")
        raise InputError(f"File {path} is damaged or was not written by metastep: {sentence}.") from error
    if not verify or expected_sha256 is not None:
        return Tensors(arrays, metadata)
    # The text must be canonical, because a changed byte may leave the meaning as it is: 1e5 is 1E5.
    if canonical_json(sealed) != text or _checksum(arrays, metadata) != checksum:
        raise InputError(f"File {path} is damaged: its content does not match the checksum in its header.")
    return Tensors(arrays, metadata)


def stamp(kind: str) -> dict[str, Any]:
    """Return the fields that every file begins with: its kind and the version of its format."""
    return {"format": f"metastep {kind}", "version": 3 if kind == "model" else 2}


def require_stamp(found: Any, kind: str, path: str | Path, remedy: str) -> None:
    """Refuse a file of another kind or version; the remedy says how to get one of this version."""
    wanted, given = stamp(kind), found if isinstance(found, dict) else {}
    if given.get("format") != wanted["format"]:
        raise InputError(f"File {path} is not a metastep {kind}.")
    if (version := given.get("version")) != wanted["version"]:
        versions = f"of version {version!r:.20}, this metastep reads version {wanted['version']}"
        raise InputError(f"File {path} is a {kind} {versions}: {remedy}.")


def require_new(path: Path, *, force: bool = False) -> None:
    """Refuse to export to a file that exists; `force` may replace a plain file, but none in the folder of a run."""
    for parent, name in product(path.resolve().parents, ("config.json", "manifest.json", "settings.json")):
        found: Any = None
        with suppress(InputError):  # there is no such file, or one of something else
            found = read_json(parent / name)
        if isinstance(found, dict) and str(found.get("format")).startswith("metastep "):
            raise InputError(f"File {path} would lie in {parent}, which belongs to metastep; write it somewhere else.")
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise InputError(f"File {path} cannot be written: there is something that is not a plain file.")
    if path.exists() and not force:
        raise InputError(f"File {path} exists already; use another name, or --force to replace it.")


def write_new(path: Path, data: bytes | Callable[[Path], object], *, force: bool = False) -> None:
    """Export a file to where the user asks for it, as `write_atomically` does, or with `force` replace a plain file."""
    require_new(path, force=force)
    if not path.parent.is_dir():
        raise InputError(f"File {path} cannot be written: there is no folder {path.parent}.")
    remove_leftovers(path.parent)
    if not write_atomically(path, data, overwrite=force):
        require_new(path)


def claim(folder: Path, marker: str) -> Path:
    """Create a folder that the file `marker` makes ours, or resume in one; return that file's path."""
    create_folder(folder)
    found = sorted(name for name in os.listdir(folder) if not is_temporary(name))
    if found and marker not in found and not (folder / marker).exists():  # another process may have been faster
        raise InputError(f"--out: {folder} holds {found[0]}, it must be new, empty or a folder of this command.")
    return folder / marker


@contextmanager
def writing(folder: Path, *, deep: bool = True) -> Iterator[None]:
    """Keep other writers out of a folder, and remove temporary files of killed processes; blocks may be nested.

    With `deep=False` subfolders, which may be anything, are not searched for such files. The holder writes who it is into the
    file that is locked, for the message to others.
    """
    place, lock = folder.resolve(), _lock_of(folder)
    is_outermost = not lock.is_locked
    try:
        lock.acquire(0.5)  # seconds: a holder that is just leaving removes its file
    except Timeout:
        holder = f"in use by {writer(folder) or 'another process'}"
        raise InputError(f"Folder {folder} is {holder}; wait for it, stop it, or use another folder.") from None
    except OSError as error:  # a read-only folder can still be read, and not every file system has locks
        reason = f"cannot be locked ({error.strerror or error})"
        warn(f"folder {folder} {reason}, so nothing keeps other processes from writing there")
        yield
        return
    try:
        if is_outermost:
            program = Path(sys.argv[0] if sys.argv else "").stem
            command = shlex.join(["metastep" if program in ("", "__main__") else program, *sys.argv[1:]])
            at = f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}"
            (place / LOCK).write_text(f"`{command:.80}` ({at})")
            for root in (each for each, _, _ in os.walk(place)) if deep else (place,):
                with suppress(OSError):
                    remove_leftovers(root)
                    if Path(root) != place and not writer(Path(root)):  # of a run within this folder
                        Path(root, LOCK).unlink(missing_ok=True)
        yield
    finally:
        if is_outermost:
            with suppress(OSError):
                os.unlink(place / LOCK)
        lock.release()


def _lock_of(folder: Path) -> FileLock:
    """Return the one lock that all blocks of this process share."""
    return FileLock(folder.resolve() / LOCK, thread_local=False, is_singleton=True)


def writer(folder: Path) -> str:
    """Describe the process that writes in a folder now; empty if there is none."""
    file, lock = folder.resolve() / LOCK, _lock_of(folder)
    if not file.exists():
        return ""
    if not lock.is_locked:
        with suppress(Timeout, OSError), lock.acquire(0.0):  # an OSError if the file is another user's
            return ""
    with suppress(InputError):
        return printable(read_bytes(file)[:200].decode(errors="replace"))
    return "another process"
