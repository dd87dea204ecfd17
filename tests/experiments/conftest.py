"""A whole tiny run, made once, with copies of it to spoil, and two of PPO."""

import shutil
from pathlib import Path

import pytest

from metastep.experiments.config import load
from metastep.experiments.run import Run
from tests.experiments.tiny import make_run
from tests.rules.test_learning import TINY


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


SVG = "<svg onload=alert(1)>"


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Tiny runs of two families with a model of PPO's learning rate; the first is compared."""
    path, folders = tmp_path_factory.mktemp("families"), []
    hostile = [*TINY, f'compare.methods.kl-adaptive.label="{SVG} [x](javascript:x) `|"']
    for preset in ("pendulum-ppo", "mountaincar-ppo"):
        config, command = load(preset, "quick", hostile), f"metastep run {preset}\n```\n{SVG}"
        folders.append(Run.create(path / preset, config, command=command))
        folders[-1].learn()
    folders[0].compare()
    return folders
