"""Run the command and small programs in processes that start with everything imported, which takes most of their time.

They are forked from one process that has the modules and nothing else. Tests of imports, or of variables that are read on
import, start Python themselves.
"""

import multiprocessing
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

CHILDREN = multiprocessing.get_context("forkserver")
CHILDREN.set_forkserver_preload(["metastep.cli", "metastep.experiments.checking", "metastep.experiments.run"])


class Done(NamedTuple):
    """A finished process, with the fields of `subprocess.CompletedProcess`."""

    returncode: int | None
    stdout: str
    stderr: str


def _begin(folder: Path, streams: Path, function: Callable[..., object], words: tuple[Any, ...]) -> None:
    os.chdir(folder)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(streams / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    function(*words)


class Running:
    """A function that runs in a process of its own."""

    def __init__(self, function: Callable[..., object], *words: Any, cwd: Path | None = None) -> None:
        self._streams = TemporaryDirectory()
        arguments = (cwd or Path.cwd(), Path(self._streams.name), function, words)
        self.process = CHILDREN.Process(target=_begin, args=arguments)
        self.process.start()

    def wait(self) -> Done:
        """Wait until it ends."""
        self.process.join()
        said = (Path(self._streams.name, name) for name in ("stdout", "stderr"))
        stdout, stderr = (file.read_text("utf-8") if file.exists() else "" for file in said)
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
