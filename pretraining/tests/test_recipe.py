"""The whole recipe at a tiny scale: rates, search, selection, model; stopped and resumed to the same bytes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metastep import load_model
from metastep._core.progress import Silent
from pretraining import recipe
from pretraining.loops import Loop
from pretraining.recipe import Plan, open_plan, train
from pretraining.work import Clock, OutOfTime

LOOPS = {"two": Loop(2, 8, 8, 2, 2, (4,)), "one": Loop(1, 16, 8, 1, 3, (4,), "relu", ("observations", "rewards"))}
PLAN = Plan(
    ("integrator", "bandit"),
    ("tanks",),
    ("queues",),
    LOOPS,
    learners=32,
    families_at_once=1,
    generations=2,
    validate_every=2,
    units=2,
    knots=2,
    tuning_tasks=2,
    tuned_every=1,
    test_tasks=16,
    sizes=(1,),
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "whole"
    train(open_plan(path, PLAN, 1), PLAN, 1, Clock(), Silent())
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def test_files(trained: Path) -> None:
    model: Any = load_model(trained)
    print(list(contents(trained)), model.record)
