"""Who may write in a folder, and what is said to who may not."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from metastep._core import filesystem, locks
from metastep._core.errors import InputError
from metastep._core.locks import is_lock, writers, writing
from tests.sandbox import unprivileged

HOLDER = """
import sys, time
from pathlib import Path
sys.argv = ["metastep", "run", "golf"]
import metastep._core.locks
if sys.argv_extra == "without flock":
    def refuse(*_): raise OSError(95, "Operation not supported")
    metastep._core.locks.fcntl.flock = refuse
with metastep._core.locks.writing(Path(FOLDER), WORK):
    print("holding", flush=True)
    time.sleep(60)
"""

SEEN = """
from pathlib import Path
from metastep._core.locks import writers
print([record["pid"] for record in writers(Path(FOLDER))])
"""


@pytest.fixture(params=["flock", "without flock"])
def mode(request, monkeypatch) -> str:
    """With locks, and as on a file system that has none."""
    if request.param == "without flock":

        def unsupported(*_):
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")

        monkeypatch.setattr(locks.fcntl, "flock", unsupported)
    monkeypatch.setattr(locks, "_ATTEMPTS", 2)
    return request.param


def hold(folder: Path, mode: str, work: str = "run") -> subprocess.Popen[str]:
    text = HOLDER.replace("sys.argv_extra", repr(mode)).replace("FOLDER", repr(str(folder)))
    text = text.replace("WORK", repr(work))
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "holding\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()


def files(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_a_second_writer_is_told_who_is_there(tmp_path, mode):
    process = hold(tmp_path, mode)
    try:
        with (
            pytest.raises(
                InputError, match=rf"is in use by `metastep run golf` \(process {process.pid} on .*, since 2"
            ),
            writing(tmp_path, "fit"),
        ):
            pass
        assert [record["pid"] for record in writers(tmp_path)] == [process.pid]
    finally:
        end(process)


def test_a_killed_writer_leaves_no_lasting_lock(tmp_path, mode):
    end(hold(tmp_path, mode))
    (left,) = files(tmp_path)
    assert is_lock(left)
    assert writers(tmp_path) == []
    with writing(tmp_path, "run"):
        (mine,) = files(tmp_path)
        assert mine != left
    assert files(tmp_path) == []


def test_who_may_only_read_is_told_who_is_alive(tmp_path):
    process = hold(tmp_path, "flock")
    seen = [*unprivileged(), sys.executable, "-B", "-c", SEEN.replace("FOLDER", repr(str(tmp_path)))]
    try:
        assert subprocess.check_output(seen, text=True) == f"[{process.pid}]\n"
    finally:
        end(process)
    assert len(files(tmp_path)) == 1
    assert subprocess.check_output(seen, text=True) == "[]\n"


def test_blocks_of_one_process_may_be_nested(tmp_path):
    with writing(tmp_path, "run"), writing(tmp_path, "fit"):
        assert len(files(tmp_path)) == 1
    assert files(tmp_path) == []


def test_another_machine_without_locks_counts_as_alive(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "_ATTEMPTS", 1)

    def unsupported(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    record = {"pid": 1, "host": "elsewhere", "started": "1", "command": "metastep run \x1b[2J", "since": "today"}
    (tmp_path / ".lock.0123456789abcdef").write_text(json.dumps(record))
    monkeypatch.setattr(locks.fcntl, "flock", unsupported)
    with pytest.raises(InputError, match=r"process 1 on elsewhere, since today") as error, writing(tmp_path, "run"):
        pass
    assert str(error.value).isprintable()


def test_a_process_number_used_again_is_not_the_writer(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks.fcntl, "flock", unsupported)
    record = {"pid": os.getpid(), "host": locks.socket.gethostname(), "started": "another time"}
    (tmp_path / ".lock.0123456789abcdef").write_text(json.dumps(record))
    half = tmp_path / ".lock.0123456789abcdee"  # killed before it wrote its record
    half.write_text("")
    os.utime(half, (time.time() - 3600,) * 2)
    with writing(tmp_path, "run"):
        assert len(files(tmp_path)) == 1


def test_leftovers_are_removed_everywhere(tmp_path):
    places = [tmp_path / name for name in ("", "data", "results", "figures", "extra/deeper")]
    for place in places:
        place.mkdir(parents=True, exist_ok=True)
        (place / ".file.0123456789abcdef.tmp").write_text("half")
    running = (tmp_path / "data" / ".block.0123456789abcdea.tmp").open("w")
    fcntl.flock(running, fcntl.LOCK_EX)
    with writing(tmp_path, "run"):
        pass
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert left == [tmp_path / "data" / ".block.0123456789abcdea.tmp"]
    running.close()


def test_what_cannot_be_written_can_still_be_read_and_that_is_said_once(tmp_path, monkeypatch, capsys):
    def refused(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(locks.os, "open", refused)
    for _ in range(2):
        with writing(tmp_path, "run"):
            assert files(tmp_path) == []
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(
        f"warning: folder {tmp_path} cannot be locked (Read-only file system), so that nothing keeps"
    )


def test_without_locks_what_is_lost_is_said(tmp_path, monkeypatch, capsys):
    def unsupported(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    filesystem.warn.cache_clear()
    monkeypatch.setattr(locks.fcntl, "flock", unsupported)
    with writing(tmp_path, "run"):
        assert len(files(tmp_path)) == 1
    assert capsys.readouterr().err.startswith("warning: the file system has no locks")


def test_of_two_that_start_together_one_goes_on(tmp_path):
    text = HOLDER.replace("sys.argv_extra", "''").replace("FOLDER", repr(str(tmp_path))).replace("WORK", "'run'")
    text = text.replace("time.sleep(60)", "time.sleep(4)")
    both = [
        subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate() for process in both]
    assert sorted(out for out, _ in said) == ["", "holding\n"]
    assert sum("is in use by `metastep run golf`" in err for _, err in said) == 1
    assert files(tmp_path) == []
