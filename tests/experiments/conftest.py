"""A whole tiny run, made once, and copies of it to spoil."""

import shutil
from pathlib import Path

import pytest

from metastep.experiments.folder import RunFolder
from metastep.experiments.runner import run_experiment
from tests.experiments.tiny import make_run


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A complete run."""
    folder = make_run(tmp_path_factory.mktemp("tiny") / "whole")
    run_experiment(folder)
    return folder


@pytest.fixture
def run(whole: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy of it."""
    shutil.copytree(whole.path, tmp_path / "run")
    return RunFolder.open(tmp_path / "run")
