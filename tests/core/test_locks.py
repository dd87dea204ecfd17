"""One process at a time writes in a folder, and others learn which one."""

import errno
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from metastep._core import storage
from metastep._core.errors import InputError
from metastep._core.storage import LOCK, lock_holder, write_lock
from tests.processes import unprivileged

HOLDER = """
import sys, time
from pathlib import Path
sys.argv = ["metastep", "run", "golf"]
from metastep._core.storage import write_lock
with write_lock(Path({folder!r})):
    print("holding", flush=True)
    time.sleep(60.0)
"""
SEEN = "from pathlib import Path; from metastep._core.storage import lock_holder; print(lock_holder(Path({folder!r})))"


@pytest.fixture
def holder(tmp_path):
    command = [sys.executable, "-c", HOLDER.format(folder=str(tmp_path))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holding\n"
        yield process
        process.kill()


def files(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_a_second_writer_learns_who_holds_the_folder(tmp_path, holder):
    words = rf"`metastep run golf` \(process {holder.pid} on .*, since 2"
    with pytest.raises(InputError, match=f"is in use by {words}"), write_lock(tmp_path):
        pass
    reader = [*unprivileged(), sys.executable, "-B", "-c", SEEN.format(folder=str(tmp_path))]
    assert f"(process {holder.pid} on " in lock_holder(tmp_path)
    assert f"(process {holder.pid} on " in subprocess.check_output(reader, text=True)
    (tmp_path / LOCK).write_text("`metastep run \x1b[2J`")
    assert lock_holder(tmp_path).isprintable()


def test_a_killed_writer_leaves_no_lasting_lock(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert files(tmp_path) == [LOCK]
    assert lock_holder(tmp_path) == ""
    with write_lock(tmp_path), write_lock(tmp_path):
        assert lock_holder(tmp_path)
    assert files(tmp_path) == []


@pytest.mark.parametrize(("number", "call"), [(errno.EROFS, "os.open"), (errno.ENOLCK, "fcntl.flock")])
def test_a_folder_that_cannot_be_locked_costs_one_warning(tmp_path, monkeypatch, capsys, number, call):
    def refused(*_):
        raise OSError(number, "not here")

    storage.warn.cache_clear()
    monkeypatch.setattr(call, refused)
    for _ in range(2):
        with write_lock(tmp_path):
            pass
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"warning: folder {tmp_path} cannot be locked (not here), so nothing keeps")
