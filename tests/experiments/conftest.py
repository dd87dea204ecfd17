"""A whole tiny run, made once, and copies of it to spoil."""

import shutil
from pathlib import Path

import pytest

from metastep.experiments.run import Run
from tests.experiments.tiny import make_run


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A complete run."""
    folder = make_run(tmp_path_factory.mktemp("tiny") / "whole")
    folder.run_all()
    return folder


@pytest.fixture
def run(whole: Run, tmp_path: Path) -> Run:
    """A copy of it."""
    shutil.copytree(whole.path, tmp_path / "run")
    return Run.open(tmp_path / "run")
