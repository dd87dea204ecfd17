"""The command in processes of its own that begin with everything imported, which takes most of the time of a small one.

They are forked from one process that has the modules and nothing else. Tests of what happens before the modules are there,
or of surroundings that are read on import, start Python themselves.
"""

import multiprocessing
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

CHILDREN = multiprocessing.get_context("forkserver")
CHILDREN.set_forkserver_preload(
    ["metastep.cli", "metastep.experiments.checking", "metastep.experiments.inspection", "metastep.experiments.runner"]
)


class Done(NamedTuple):
    """What came of a command, by the names that `subprocess` has for it."""

    returncode: int | None
    stdout: str
    stderr: str


def _obey(words: Sequence[str], folder: Path, streams: Path) -> None:
    os.chdir(folder)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(streams / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.argv = ["metastep", *words]
    runpy.run_module("metastep", run_name="__main__")


class Command:
    """`metastep` with some words, under way in a process of its own."""

    def __init__(self, *words: str, cwd: Path | None = None) -> None:
        self._streams = TemporaryDirectory()
        self.process = CHILDREN.Process(target=_obey, args=(words, cwd or Path.cwd(), Path(self._streams.name)))
        self.process.start()

    def wait(self) -> Done:
        """Until it ends."""
        self.process.join()
        said = (Path(self._streams.name, name) for name in ("stdout", "stderr"))
        stdout, stderr = (file.read_text("utf-8") if file.exists() else "" for file in said)
        self._streams.cleanup()
        return Done(self.process.exitcode, stdout, stderr)


def metastep(*words: str, cwd: Path | None = None) -> Done:
    """Run the command to its end."""
    return Command(*words, cwd=cwd).wait()
