"""Run the command in processes that are forked with everything imported, and others as a user with few rights.

Tests of imports, or of variables that are read on import, start Python themselves.
"""

import multiprocessing
import os
import runpy
import shutil
import sys
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import jax
import pytest

from tests import drafts

CHILDREN = multiprocessing.get_context("forkserver")
CHILDREN.set_forkserver_preload(
    ["metastep.cli", "metastep.experiments.checking", "metastep.experiments.run", "tests.drafts"]
)


class Done(NamedTuple):
    returncode: int | None
    stdout: str
    stderr: str


def _begin(
    folder: Path, streams: Path, is_drafting: bool, function: Callable[..., object], words: tuple[Any, ...]
) -> None:
    os.chdir(folder)
    drafts.switch(is_drafting)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(streams / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    function(*words)


class Running:
    def __init__(self, function: Callable[..., object], *words: Any, cwd: Path | None = None) -> None:
        self._streams = TemporaryDirectory()
        arguments = (cwd or Path.cwd(), Path(self._streams.name), drafts.are_on(), function, words)
        self.process = CHILDREN.Process(target=_begin, args=arguments)
        self.process.start()

    def wait(self) -> Done:
        self.process.join()
        said = (Path(self._streams.name, name) for name in ("stdout", "stderr"))
        stdout, stderr = (file.read_text("utf-8", "replace") if file.exists() else "" for file in said)
        self._streams.cleanup()
        return Done(self.process.exitcode, stdout, stderr)


def _obey(*words: str) -> None:
    sys.argv = ["metastep", *words]
    runpy.run_module("metastep", run_name="__main__")


def start(*words: str, cwd: Path | None = None) -> Running:
    """Start `python -m metastep` with these words."""
    return Running(_obey, *words, cwd=cwd)


def metastep(*words: str, cwd: Path | None = None) -> Done:
    """Run `python -m metastep` with these words to its end."""
    return start(*words, cwd=cwd).wait()


def _execute(scripts: tuple[Path, ...], words: tuple[str, ...], environment: dict[str, str]) -> None:
    os.environ |= environment
    warnings.simplefilter("error")
    jax.config.update("jax_numpy_dtype_promotion", "standard")  # strict is for our own code, not for users'
    for script in scripts:
        sys.path.insert(0, str(script.parent))
        sys.argv = [str(script), *words]
        runpy.run_path(str(script), run_name="__main__")


def execute(*scripts: Path, words: tuple[str, ...] = (), cwd: Path, **environment: str) -> Done:
    """Run scripts of users in one process; a warning is an error."""
    return Running(_execute, scripts, words, environment, cwd=cwd).wait()


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
