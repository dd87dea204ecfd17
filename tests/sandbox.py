"""Processes that may read everything, as the interpreter may lie anywhere, and write to a folder of their own only."""

import os
import shutil
from functools import cache
from pathlib import Path

import pytest

_USER = 65533  # nobody in particular


@cache
def unprivileged() -> tuple[str, ...]:
    """What goes before a command so that it does not run as root: its own user, and no right but that to read."""
    if os.getuid() != 0:
        return ()
    program = shutil.which("setpriv")
    if program is None:
        pytest.skip("root needs setpriv to run something as another user")
    rights = "-all,+dac_read_search"
    user = ("--reuid", str(_USER), "--regid", str(_USER), "--clear-groups", "--no-new-privs")
    return (program, *user, "--inh-caps", rights, "--ambient-caps", rights, "--bounding-set", rights)


def own(folder: Path) -> Path:
    """A folder with all it holds that such a process may write to."""
    folder.mkdir(parents=True, exist_ok=True)
    if os.getuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, _USER, _USER)
    return folder
