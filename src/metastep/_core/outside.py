"""Files written where the user points: new plain files only, and nothing inside the folder of a run."""

import os
from collections.abc import Callable
from pathlib import Path

from metastep._core import storage
from metastep._core.errors import InputError


def require_new(path: str | Path, *, force: bool = False) -> None:
    """Refuse to write where something is; with `force` a plain file may be replaced, but none of a run's."""
    path = Path(path)
    if run := next((parent for parent in path.resolve().parents if is_ours(parent)), None):
        raise InputError(f"File {path} would lie in {run}, which belongs to metastep; write it somewhere else.")
    if not os.path.lexists(path):
        return
    if path.is_symlink() or not path.is_file():
        raise InputError(f"File {path} cannot be written: what is there is not a plain file.")
    if not force:
        raise InputError(f"File {path} exists already; use another name, or --force to replace it.")


def write_new(path: str | Path, data: bytes, *, force: bool = False) -> None:
    """Write a file where nothing is, or with `force` in place of a plain file; whole or not at all."""
    stream_new(path, lambda file: file.write(data), force=force)


def stream_new(path: str | Path, fill: Callable[[storage.Growing], object], *, force: bool = False) -> None:
    """The same for what is too much to be held at once: `fill` writes it piece by piece."""
    path = Path(path)
    require_new(path, force=force)
    if not path.parent.is_dir():
        raise InputError(f"File {path} cannot be written: there is no folder {path.parent}.")
    storage.remove_leftovers(path.parent)
    if not storage.stream_atomically(path, fill, overwrite=force):
        require_new(path)


def is_ours(folder: Path) -> bool:
    """Whether a run or a dataset lives in a folder; whatever else is there does not matter."""
    return any(is_stamped(folder / name) for name in ("config.json", "manifest.json"))


def is_stamped(file: Path) -> bool:
    """Whether a file says that metastep wrote it."""
    try:
        found = storage.read_json(file)
    except InputError:
        return False
    return isinstance(found, dict) and str(found.get("format")).startswith("metastep ")


def claim(folder: Path, marker: str) -> Path:
    """Create a folder that a file of this name marks as ours, or take up such a one; returns the file's path.

    A folder that holds something else, and no such file, is somebody else's.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out: {folder} is a file, a folder is needed.")
    storage.create_folder(folder)
    found = sorted(name for name in os.listdir(folder) if not storage.is_temporary(name))
    if found and marker not in found and not (folder / marker).exists():  # another process may have been faster
        raise InputError(
            f"--out: {folder} holds {found[0]} and is not a folder of this command; name one that is new or empty."
        )
    return folder / marker
