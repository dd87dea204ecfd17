"""Write files atomically and durably, check them for damage when they are read, and lock folders for one writer.

A temporary file that a killed process left is recognised by its name and by its lock, which ended with the process. Libraries for
atomic writes offer neither this cleaning up nor files that are created only once. Arrays are stored as safetensors. The metadata
has one entry: JSON with the caller's metadata and a checksum over all, which detects accidental damage, but not intent.
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
def translate_os_errors(problem: str) -> Iterator[None]:
    """Turn an `OSError` in the body into an `InputError` that begins with `problem`."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{problem}: {error.strerror or error}.") from error


def _try_call(call: Callable[..., object], *arguments: Any, if_unsupported: str) -> bool:
    """Call the operating system; if the file system does not support the call, warn and return False."""
    try:
        call(*arguments)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        warn(f"the file system {if_unsupported}")
        return False
    return True


def _lock(descriptor: int, mode: int = 0) -> bool:
    """Lock an open file and return whether locks are supported; with `LOCK_NB`, BlockingIOError if another process holds it."""
    loss = "has no locks: temporary files of killed processes are removed only after a day"
    return _try_call(fcntl.flock, descriptor, fcntl.LOCK_EX | mode, if_unsupported=loss)


def _sync(path: Path) -> None:
    """Make a file, or the names in a folder, survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _try_call(os.fsync, descriptor, if_unsupported="cannot sync: a power failure may undo the last writes")
    finally:
        os.close(descriptor)


@contextmanager
def temporary(path: Path) -> Iterator[Path]:
    """Yield a new file in the folder of `path` and remove it afterwards; if this process is killed, `remove_leftovers` does."""
    with translate_os_errors(f"File {path} cannot be written"):
        while True:
            file = path.parent / f".{path.name}.{secrets.token_hex(8)}.tmp"
            descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
            _lock(descriptor)
            if os.fstat(descriptor).st_nlink > 0:
                break
            os.close(descriptor)  # another process removed it as a leftover before it was locked
    with os.fdopen(descriptor, "wb"):  # holds the lock until it is closed
        try:
            yield file
        finally:
            with suppress(OSError):  # normally the caller has renamed it
                os.unlink(file)


def write_atomically(path: str | Path, data: bytes | Callable[[Path], object], *, overwrite: bool = True) -> bool:
    """Write `data`, or what the function `data` writes to the path it is called with, to `path`, atomically and durably.

    With `overwrite=False`, an existing file stays and the result is False; of several processes, exactly one gets True.
    """
    path = Path(path)
    with translate_os_errors(f"File {path} cannot be written"), temporary(path) as file:
        if isinstance(data, bytes):
            with open(file, "wb") as stream:
                stream.write(data)
        else:
            data(file)
        _sync(file)
        # A hard link, unlike a rename, does not replace a file.
        loss = "has no hard links: two processes that start the same work at the same moment may both do it"
        try:
            if overwrite or not _try_call(os.link, file, path, if_unsupported=loss):
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
        with suppress(OSError):  # renamed meanwhile, locked by its writer, or owned by another user
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
        with translate_os_errors(f"Folder {folder} cannot be created"):
            folder.mkdir(exist_ok=True)
            _sync(folder.parent)


def require_free_space(folder: str | Path, num_bytes: int) -> None:
    """Raise an error if the disk of `folder`, which need not exist yet, has less free space than this."""
    path = Path(folder).absolute()
    free = shutil.disk_usage(next(each for each in (path, *path.parents) if each.exists())).free
    if free < num_bytes:
        raise InputError(f"Folder {folder} needs {num_bytes / 1e6:.1f} MB of disk space, {free / 1e6:.1f} MB are left.")


def read_bytes(path: str | Path) -> bytes:
    """Return the content of a regular file; pipes and devices, which may block or never end, are errors."""
    with translate_os_errors(f"File {path} cannot be read"):
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise OSError(errno.EINVAL, "it is not a plain file")
            return Path(path).read_bytes()
        except FileNotFoundError as error:
            raise InputError(f"File {path} is missing.") from error


def sha256_of(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    return hashlib.sha256(read_bytes(path)).hexdigest()


def canonical_json(value: Any) -> bytes:
    """Return a value as JSON in one fixed form: sorted keys, two spaces, a newline at the end, no NaN or infinity."""
    return (json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _parse_json(text: bytes) -> Any:
    """Parse a JSON text; raise ValueError for a value that `canonical_json` cannot write."""
    try:
        value = json.loads(text.decode())
        canonical_json(value)  # raises for NaN, infinity and half of a surrogate pair
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


def with_checksum(content: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON object with a field `checksum` over its other fields."""
    return content | {"checksum": sha256_of_json(content)}


def read_checked_json(path: str | Path, kind: str, remedy: str) -> dict[str, Any]:
    """Read a JSON file written `with_checksum`; a file of another kind, version or checksum is an error."""
    content: dict[str, Any] = read_json(path)
    require_stamp(content, kind, path, remedy)
    if content != with_checksum({key: value for key, value in content.items() if key != "checksum"}):
        raise InputError(f"File {path} is damaged or was edited: its content does not match its checksum.")
    return content


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
    """Write arrays and JSON metadata atomically as one safetensors file, equal content as equal bytes; return its SHA-256."""
    native, metadata = {name: np.asarray(array) for name, array in sorted(arrays.items())}, metadata or {}
    tensors = {name: np.asarray(array, array.dtype.newbyteorder("<"), order="C") for name, array in native.items()}
    text = canonical_json({"checksum": _checksum(tensors, metadata), "metadata": metadata}).decode()
    data = save(tensors, metadata={_METADATA_KEY: text})
    write_atomically(path, data)
    return hashlib.sha256(data).hexdigest()


def read_tensors(path: str | Path, expected_sha256: str | None = None, *, verify: bool = True) -> Tensors:
    """Read a file of `write_tensors`, and verify it by `expected_sha256` or, without one, by the checksum in its header."""
    content = read_bytes(path)
    if expected_sha256 is not None and (actual := hashlib.sha256(content).hexdigest()) != expected_sha256:
        raise InputError(f"File {path} is damaged: its SHA-256 is {actual}, expected is {expected_sha256}.")
    try:
        unordered, header = load(content), json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        arrays = {name: unordered[name] for name in header if name != "__metadata__"}  # in the order of the file
        text = header["__metadata__"][_METADATA_KEY].encode()
        entry = _parse_json(text)
        metadata, checksum = entry["metadata"] | {}, entry["checksum"]
    except (SafetensorError, AttributeError, LookupError, TypeError, ValueError) as error:
        sentence = " ".join(str(error).split()).rstrip(".")
        raise InputError(f"File {path} is damaged or was not written by metastep: {sentence}.") from error
    if not verify or expected_sha256 is not None:
        return Tensors(arrays, metadata)
    # The text must be canonical, because a changed byte may leave the value as it is: 1e5 is 1E5.
    if canonical_json(entry) != text or _checksum(arrays, metadata) != checksum:
        raise InputError(f"File {path} is damaged: its content does not match the checksum in its header.")
    return Tensors(arrays, metadata)


def stamp(kind: str) -> dict[str, Any]:
    """Return the fields that every file begins with: its kind and the version of its format."""
    return {"format": f"metastep {kind}", "version": 3 if kind == "model" else 2}


def require_stamp(content: Any, kind: str, path: str | Path, remedy: str) -> None:
    """Raise an error for a file of another kind or version; `remedy` says how to get a file of this version."""
    expected, fields = stamp(kind), content if isinstance(content, dict) else {}
    if fields.get("format") != expected["format"]:
        raise InputError(f"File {path} is not a metastep {kind}.")
    if (version := fields.get("version")) != expected["version"]:
        versions = f"of version {version!r:.20}, this metastep reads version {expected['version']}"
        raise InputError(f"File {path} is a {kind} {versions}: {remedy}.")


def require_new(path: Path, *, force: bool = False) -> None:
    """Raise an error unless `path` is outside the folders of runs, and a new file or, with `force`, a regular one."""
    for parent, name in product(path.resolve().parents, ("config.json", "manifest.json", "settings.json")):
        content: Any = None
        with suppress(InputError):  # there is no such file, or it is not JSON
            content = read_json(parent / name)
        if isinstance(content, dict) and str(content.get("format")).startswith("metastep "):
            raise InputError(f"File {path} would lie in {parent}, which belongs to metastep; write it somewhere else.")
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise InputError(f"File {path} cannot be written: there is something that is not a plain file.")
    if path.exists() and not force:
        raise InputError(f"File {path} exists already; use another name, or --force to replace it.")


def write_new(path: Path, data: bytes | Callable[[Path], object], *, force: bool = False) -> None:
    """Write a file to a path that the user chose, atomically; only with `force` may it replace a regular file."""
    require_new(path, force=force)
    if not path.parent.is_dir():
        raise InputError(f"File {path} cannot be written: there is no folder {path.parent}.")
    remove_leftovers(path.parent)
    if not write_atomically(path, data, overwrite=force):
        require_new(path)


def open_output_folder(folder: Path, marker: str) -> Path:
    """Create an output folder, or accept one that is empty or has the file `marker`; return that file's path."""
    create_folder(folder)
    names = sorted(name for name in os.listdir(folder) if not is_temporary(name))
    # Another process may have written it meanwhile.
    if names and marker not in names and not (folder / marker).exists():
        raise InputError(f"--out: {folder} holds {names[0]}, it must be new, empty or a folder of this command.")
    return folder / marker


@contextmanager
def write_lock(folder: Path, *, recursive: bool = True) -> Iterator[None]:
    """Hold the only write lock of a folder, and remove temporary files of killed processes; calls may be nested.

    With `recursive=False`, temporary files in subfolders, which may belong to others, stay. Error messages name the holder.
    """
    path, lock = folder.resolve(), _lock_of(folder)
    is_outermost = not lock.is_locked
    try:
        lock.acquire(0.5)  # seconds, in which a holder that has finished removes its file
    except Timeout:
        holder = f"in use by {lock_holder(folder) or 'another process'}"
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
            (path / LOCK).write_text(f"`{command:.80}` ({at})")
            for root in (each for each, _, _ in os.walk(path)) if recursive else (path,):
                with suppress(OSError):
                    remove_leftovers(root)
                    if Path(root) != path and not lock_holder(Path(root)):  # of a run within this folder
                        Path(root, LOCK).unlink(missing_ok=True)
        yield
    finally:
        if is_outermost:
            with suppress(OSError):
                os.unlink(path / LOCK)
        lock.release()


def _lock_of(folder: Path) -> FileLock:
    """Return the lock of a folder, the same object for all calls in this process."""
    return FileLock(folder.resolve() / LOCK, thread_local=False, is_singleton=True)


def lock_holder(folder: Path) -> str:
    """Describe the process that holds the write lock of a folder; empty if there is none."""
    file, lock = folder.resolve() / LOCK, _lock_of(folder)
    if not file.exists():
        return ""
    if not lock.is_locked:
        with suppress(Timeout, OSError), lock.acquire(0.0):  # OSError if another user owns the file
            return ""
    with suppress(InputError):
        return printable(read_bytes(file)[:200].decode(errors="replace"))
    return "another process"
