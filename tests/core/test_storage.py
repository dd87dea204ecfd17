"""Files are whole or not there, damage is noticed, and what a file system cannot do costs one warning."""

import errno
import itertools
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from metastep._core import provenance, storage
from metastep._core.errors import InputError
from tests.disk import watch
from tests.mdp.test_dataset import LAYOUT, collect, start


@pytest.fixture(autouse=True)
def _no_warning_was_printed():
    storage.warn.cache_clear()


class Killed(BaseException):
    """The end of the process: no later call reaches the disk."""


class Fault:
    """Disturb call number `at`: it fails, or the process ends after it or in the middle of it."""

    def __init__(self, at: int, mode: str):
        self.at, self.mode, self.calls, self.fired = at, mode, [], False

    def __call__(self, name: str, call: Callable, *arguments):
        if self.fired and self.mode != "error":
            return None
        self.calls.append(name)
        if len(self.calls) - 1 != self.at:
            return call(*arguments)
        self.fired = True
        if self.mode == "error":
            raise OSError(errno.EIO, "Input/output error")
        if self.mode == "killed after":
            with suppress(FileNotFoundError):
                call(*arguments)
        if self.mode == "killed within" and name == "write":
            call(arguments[0][: len(arguments[0]) // 2])
        raise Killed


MODES = ("error", "killed within", "killed after")


def every_fault(monkeypatch, mode: str, run: Callable[[], object]):
    """Yield once for each call that changes the disk, after `run` was stopped there."""
    for at in itertools.count():
        fault = Fault(at, mode)
        with monkeypatch.context() as patch:
            watch(fault, patch.setattr)
            try:
                run()
            except (InputError, Killed):
                assert fault.fired
        if not fault.fired:
            assert at > 0
            return
        yield fault.calls[at]


def visible(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("overwrite", [True, False])
def test_a_fault_at_any_call_leaves_the_old_file_or_the_new_one(tmp_path, monkeypatch, mode, overwrite):
    path = tmp_path / "file.json"
    old, new = b"old" * 100, b"new" * 1000

    def prepare():
        path.write_bytes(old)
        if not overwrite:
            path.unlink()

    prepare()
    stopped_at = []
    for call in every_fault(monkeypatch, mode, lambda: storage.write_atomically(path, new, overwrite=overwrite)):
        stopped_at.append(call)
        assert visible(tmp_path) in ({"file.json": old} if overwrite else {}, {"file.json": new})
        if mode == "error":
            assert call == "unlink" or len(list(tmp_path.iterdir())) == len(visible(tmp_path))
        storage.remove_leftovers(tmp_path)
        storage.write_atomically(path, new, overwrite=overwrite)
        assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == {"file.json": new}
        prepare()
    assert stopped_at == ["create", "write", "fsync", "replace" if overwrite else "link", "fsync", "unlink"]


@pytest.mark.parametrize("mode", MODES)
def test_a_fault_at_any_call_of_a_collection_leaves_something_to_resume(tmp_path, monkeypatch, mode):
    layout = LAYOUT._replace(num_updates=2, num_learners=3, block_size=2)
    collect(tmp_path / "reference", layout)
    reference = visible(tmp_path / "reference")
    start(tmp_path / "started", layout)
    started = visible(tmp_path / "started")["manifest.json"]
    folders = []

    def collect_somewhere() -> None:
        folders.append(tmp_path / f"run-{len(folders)}" / "data")
        collect(folders[-1], layout)

    stopped_at = []
    for call in every_fault(monkeypatch, mode, collect_somewhere):
        stopped_at.append(call)
        folder = folders[-1]
        for name, data in visible(folder).items() if folder.exists() else ():
            assert data == reference[name] or (name, data) == ("manifest.json", started)
        collect(folder, layout)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == reference
    # Two folders, the first manifest, two blocks, the last manifest.
    written = ["create", "write", "fsync", "replace", "fsync", "unlink"]
    assert stopped_at == ["fsync"] * 2 + [*written[:3], "link", *written[4:], *written * 3]


@pytest.mark.parametrize(
    ("call", "number", "warning"),
    [
        ("link", errno.EPERM, "has no hard links"),
        ("fsync", errno.EINVAL, "cannot sync"),
        *((call, errno.EIO, "") for call in ("link", "fsync", "write")),
    ],
)
def test_a_file_system_that_cannot_link_or_sync_costs_one_warning(tmp_path, monkeypatch, capsys, call, number, warning):
    def around(name, function, *arguments):
        if name == call:
            raise OSError(number, os.strerror(number))
        return function(*arguments)

    watch(around, monkeypatch.setattr)
    path = tmp_path / "file"
    if not warning:
        with pytest.raises(InputError, match=r"^File .*/file cannot be written: Input/output error\.$"):
            storage.write_atomically(path, b"first", overwrite=False)
        assert list(tmp_path.iterdir()) == []
        return
    assert storage.write_atomically(path, b"first", overwrite=False)
    assert not storage.write_atomically(path, b"second", overwrite=False)
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == {"file": b"first"}
    assert capsys.readouterr().err.count(f"warning: the file system {warning}") == 1


def test_without_locks_only_old_leftovers_are_removed(tmp_path, monkeypatch, capsys):
    def unsupported(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(storage.fcntl, "flock", unsupported)
    storage.write_atomically(tmp_path / "file", b"data")
    young, old = tmp_path / f".a.{'0' * 16}.tmp", tmp_path / f".b.{'0' * 16}.tmp"
    for path in (young, old):
        path.write_bytes(b"")
    os.utime(old, (time.time() - 2 * 86400,) * 2)
    storage.remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [young.name, "file"]
    assert capsys.readouterr().err.count("warning: the file system has no locks") == 1


def test_only_temporary_files_of_dead_writers_are_leftovers(tmp_path, monkeypatch):
    left = []

    def around(name, call, *arguments):
        done = call(*arguments)
        # Between creation and lock the writer tries again.
        if name == "write" or (name == "create" and len(left) < 2):
            storage.remove_leftovers(tmp_path)
            left.append(len(list(tmp_path.iterdir())))
        return done

    watch(around, monkeypatch.setattr)
    storage.write_atomically(tmp_path / "file", b"data")
    assert left == [0, 0, 1]
    ours, others = ".block.0123456789abcdef.tmp", ["notes.tmp", ".swap.tmp", "block.0123456789abcdef.tmp"]
    for name in [ours, *others]:
        (tmp_path / name).write_bytes(b"")
    storage.remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*others, "file"])


def test_folders_are_made_with_their_parents_if_there_is_space(tmp_path):
    for _ in range(2):
        storage.create_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match="cannot be created: File exists"):
        storage.create_folder(tmp_path / "file")
    storage.require_free_space(tmp_path / "not" / "yet", 1)
    with pytest.raises(InputError, match=r"needs 1000000000000\.0 MB of disk space, .* MB are left\.$"):
        storage.require_free_space(tmp_path / "not" / "yet", 10**18)


def test_json_is_canonical(tmp_path):
    storage.write_json(tmp_path / "a", {"b": [2.5, None], "a": "ö"})
    assert (tmp_path / "a").read_text() == '{\n  "a": "ö",\n  "b": [\n    2.5,\n    null\n  ]\n}\n'
    assert storage.read_json(tmp_path / "a") == {"a": "ö", "b": [2.5, None]}
    with pytest.raises(ValueError, match="not JSON compliant"):
        storage.write_json(tmp_path / "c", float("nan"))


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"[" * 100_000, b'{"a": NaN}', b"1e999", rb'{"a": "\ud800"}'])
def test_bad_json_is_one_sentence(tmp_path, text):
    (tmp_path / "file.json").write_bytes(text)
    with pytest.raises(InputError, match=r"^File .*/file\.json is not valid JSON: .*\.$"):
        storage.read_json(tmp_path / "file.json")


def test_only_plain_files_that_exist_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for read in (storage.read_json, storage.read_tensors, storage.sha256_of):
        with pytest.raises(InputError, match=r"^File .*/none is missing\.$"):
            read(tmp_path / "none")
        for path in (tmp_path / "pipe", "/dev/zero", tmp_path):
            with pytest.raises(InputError, match=r"^File .* cannot be read: it is not a plain file\.$"):
                read(path)


DTYPES = [np.bool_, np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.uint64, np.int64]
DTYPES += [np.float16, np.float32, np.float64]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    arrays=st.dictionaries(
        st.text("abc_", min_size=1),
        st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0))),
        max_size=4,
    ),
    metadata=st.dictionaries(st.text(st.characters(codec="utf-8")), st.integers() | st.booleans()),
)
def test_tensors_come_back_bit_for_bit(tmp_path, arrays, metadata):
    path = tmp_path / "tensors"
    sha256 = storage.write_tensors(path, arrays, metadata)
    assert sha256 == storage.sha256_of(path)
    for tensors in (storage.read_tensors(path), storage.read_tensors(path, sha256)):
        assert tensors.metadata == metadata
        assert tensors.arrays.keys() == arrays.keys()
        for name, array in arrays.items():
            assert tensors.arrays[name].dtype == array.dtype
            assert tensors.arrays[name].shape == array.shape
            assert tensors.arrays[name].tobytes() == array.tobytes()


def test_equal_content_gives_equal_bytes(tmp_path):
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([True, False])
    metadata = {key: key for key in "zyxwvut"}
    storage.write_tensors(tmp_path / "one", {"a": a, "b": b}, metadata)
    fortran, swapped = np.asfortranarray(a), a.astype(">f4")
    for array in (fortran, swapped, np.repeat(a, 2, axis=1)[:, ::2]):
        storage.write_tensors(tmp_path / "other", {"b": b, "a": array}, dict(reversed(metadata.items())))
        assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_flipped_bits_and_truncations_are_noticed(tmp_path):
    path = tmp_path / "tensors"
    arrays = {"a": np.arange(5, dtype=np.float32), "b": np.array([[True], [False]]), "c": np.zeros((0, 2))}
    sha256 = storage.write_tensors(path, arrays, {"rate": 1e-9})  # one flipped bit writes it as 1E-9
    good = path.read_bytes()
    damaged = [good[:length] for length in range(len(good))] + [good + b"\0"]
    for position in range(len(good)):
        damaged += [good[:position] + bytes([good[position] ^ 1 << bit]) + good[position + 1 :] for bit in range(8)]
    for data, expected in itertools.product(damaged[::7], (None, sha256)):
        path.write_bytes(data)
        with pytest.raises(InputError, match=r"^File .*/tensors is damaged.*\.$") as error:
            storage.read_tensors(path, expected)
        assert "\n" not in str(error.value)


def test_the_environment_record_names_versions_and_device():
    record = provenance.environment_record("cpu", ("scipy", "no such package"))
    names = {"python", "device", "metastep", "jax", "numpy", "scikit-learn", "numba", "scipy", "no such package"}
    assert record.keys() == names
    assert (record["device"], record["numpy"], record["no such package"]) == ("cpu", np.__version__, "not installed")
