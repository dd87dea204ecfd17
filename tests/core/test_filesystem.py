"""What a file system, an installation or a cache cannot do is said once, and work goes on."""

import errno
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import metastep
from metastep._core import filesystem, storage
from metastep._core.errors import InputError
from tests.sandbox import unprivileged

ALWAYS = [errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS]


@pytest.fixture(autouse=True)
def _nothing_was_said():
    filesystem.warn.cache_clear()


def failing(number: int):
    def call(*_):
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize("number", ALWAYS)
def test_without_hard_links_files_are_still_written_once(tmp_path, monkeypatch, capsys, number):
    monkeypatch.setattr(storage, "DISK", storage.Disk(link=failing(number)))
    path = tmp_path / "file"
    assert storage.write_atomically(path, b"first", overwrite=False)
    assert not storage.write_atomically(path, b"second", overwrite=False)
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == {"file": b"first"}
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("warning: the file system has no hard links")


@pytest.mark.parametrize("number", [*ALWAYS, errno.ENOLCK])
def test_without_locks_only_old_leftovers_are_removed(tmp_path, monkeypatch, capsys, number):
    monkeypatch.setattr(filesystem.fcntl, "flock", failing(number))
    storage.write_atomically(tmp_path / "file", b"data")
    young, old = tmp_path / f".a.{'0' * 16}.tmp", tmp_path / f".b.{'0' * 16}.tmp"
    for path in (young, old):
        path.write_bytes(b"")
    os.utime(old, (time.time() - 2 * 86400,) * 2)
    assert storage.remove_leftovers(tmp_path) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [young.name, "file"]
    assert capsys.readouterr().err.count("warning: the file system has no locks") == 1


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_without_syncs_files_are_written(tmp_path, monkeypatch, capsys, number):
    monkeypatch.setattr(storage, "DISK", storage.Disk(fsync=failing(number)))
    storage.create_folder(tmp_path / "a" / "b")
    storage.write_atomically(tmp_path / "a" / "b" / "file", b"data")
    assert (tmp_path / "a" / "b" / "file").read_bytes() == b"data"
    assert capsys.readouterr().err.count("warning: the file system cannot sync") == 1


@pytest.mark.parametrize("call", ["link", "fsync"])
def test_other_errors_are_errors(tmp_path, monkeypatch, call):
    monkeypatch.setattr(storage, "DISK", storage.Disk(**{call: failing(errno.EIO)}))
    with pytest.raises(InputError, match="Input/output error"):
        storage.write_atomically(tmp_path / "file", b"data", overwrite=False)
    assert list(tmp_path.iterdir()) == []


FOREST = """
import numpy as np
from metastep.fqi.forest import Forest
forest = Forest(*(np.array(a, k) for a, k in (
    ([0, -1, -1], "i4"), ([0.5, 0, 0], "f4"), ([1, -1, -1], "i4"), ([2, -1, -1], "i4"), ([0, 3.0, 5.0], "f8"),
    ([0, 3], "i8"), ([1.0], "f8"))))
print(forest.predict(np.array([[0.0], [1.0]], np.float32)).tolist())
"""


def alone(words: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    """A program of a user who may not write to the installation."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA", "XDG", "HOME"))}
    return subprocess.run(
        [*unprivileged(), sys.executable, "-B", *words],
        env=environment | variables,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def package(tmp_path) -> Path:
    """A copy of the installation that nobody but its owner may write to."""
    copy = shutil.copytree(
        Path(metastep.__file__).parent, tmp_path / "metastep", ignore=shutil.ignore_patterns("__py*")
    )
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield copy
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o755)


def test_a_read_only_installation_without_a_cache_works(package):
    done = alone(["-c", FOREST], HOME="/nonexistent", NUMBA_CACHE_DIR="", PYTHONPATH=str(package.parent))
    assert (done.returncode, done.stdout) == (0, "[3.0, 5.0]\n"), done.stderr
