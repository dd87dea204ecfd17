"""Run processes that may read everything, but write to a folder of their own only."""

import os
import shutil
from functools import cache
from pathlib import Path

import pytest

_USER = 65533  # of no account


@cache
def unprivileged() -> tuple[str, ...]:
    """Return the prefix of a command that runs it as another user than root, with the right to read everything."""
    if os.getuid() != 0:
        return ()
    program = shutil.which("setpriv")
    if program is None:
        pytest.skip("root needs setpriv to run something as another user")
    rights = "-all,+dac_read_search"
    user = ("--reuid", str(_USER), "--regid", str(_USER), "--clear-groups", "--no-new-privs")
    return (program, *user, "--inh-caps", rights, "--ambient-caps", rights, "--bounding-set", rights)


def own(folder: Path) -> Path:
    """Let such a process write to a folder and everything in it."""
    folder.mkdir(parents=True, exist_ok=True)
    if os.getuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, _USER, _USER)
    return folder
