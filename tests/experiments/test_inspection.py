"""`inspect` describes whatever a model file holds, and says why where it cannot."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metastep.experiments.checking import inspect_path
from metastep.fqi import ExtraTrees, MetaFQI, ObservationPart, TrainingData, model_from, save_model
from metastep.mdp.history import Transitions
from metastep.rules.spaces import Range


def describe(path: Path, sizes: dict[str, int], menu: dict[str, Range] | None = None, **record: Any) -> str:
    """What `inspect` prints of a small model with this record."""
    rng = np.random.default_rng(0)
    width = sum(sizes.values())
    chosen = rng.uniform(size=40)
    if menu is not None:
        chosen = np.stack([np.arange(40) % len(menu), 0.1 + 0.9 * chosen], axis=1)
    data = Transitions(rng.normal(size=(40, width)), chosen, rng.normal(size=40), rng.normal(size=(40, width)))
    model = model_from(
        MetaFQI(1, ExtraTrees(2, 0.2), num_stepsizes=5, menu=menu).fit(data),
        setting={"env": "nav2d"},
        observation=[ObservationPart(name, size) for name, size in sizes.items()],
        training_data=TrainingData(40, 0, "abc"),
    )
    save_model(dataclasses.replace(model, record=dataclasses.replace(model.record, **record)), path)
    return inspect_path(path)


SIZES = {"theta": 2, "natural_gradient": 2, "context": 2}


def test_a_model_with_context_is_described_with_a_slice(tmp_path: Path) -> None:
    text = describe(tmp_path / "model", SIZES)
    assert "first step by goal_x" in text
    assert "no slice" not in text
    assert "slice" not in describe(tmp_path / "blind", {"theta": 2, "natural_gradient": 2})
    assert "first step by goal_x" in describe(tmp_path / "wide", {"natural_gradient": 3000, "context": 2})


def test_a_model_with_a_menu_is_described_by_direction(tmp_path: Path) -> None:
    menu = {"nga damping=0.1": Range(0.001, 1.0, "divergence"), "adam\n": Range(0.0, 1.0)}
    lines = describe(tmp_path / "model", SIZES, menu).split("\n")
    assert "  direction nga damping=0.1: steps 5 from 0.001 to 1 (grid, divergence, ties: smallest)" in lines
    assert "  direction 'adam\\n': steps 5 from 0 to 1 (grid, ties: smallest)" in lines
    assert sum(line.startswith("  inputs that matter most for ") for line in lines) == 2
    assert any("4 heads of extra-trees" in line for line in lines)
    (slice_x,) = [line for line in lines if line.startswith("  first step by goal_x")]
    assert slice_x.count("nga damping=0.1 ") + slice_x.count("'adam\\n' ") == 5


def env(**section: Any) -> dict[str, Any]:
    return {"experiment": {"env": section}}


NO_ENVIRONMENT = "does not describe an environment"


@pytest.mark.parametrize(
    ("sizes", "record", "reason"),
    [
        (SIZES, {"configuration": {"experiment": 5}}, NO_ENVIRONMENT),
        (SIZES, {"configuration": env(name="nav2d", options=7)}, NO_ENVIRONMENT),
        (SIZES, {"configuration": env(name="nav2d", options={"no_such_field": 1})}, "no_such_field"),
        (SIZES, {"configuration": env(name="nav2d", fixed_context=[0.1, 0.2])}, "the model was trained in one task"),
        (SIZES, {"setting": {"env": "elsewhere"}}, "elsewhere"),
        ({"theta": 2, "context": 3}, {}, "the model's context has 3 numbers, that of its environment 2"),
    ],
)
def test_a_foreign_record_is_described_all_the_same(
    tmp_path: Path, sizes: dict[str, int], record: dict[str, Any], reason: str
) -> None:
    text = describe(tmp_path / "model", sizes, **record)
    for words in ("model for", "trained on 40 tuples", "inputs that matter most", "no slice: "):
        assert words in text
    assert reason in text.rpartition("no slice: ")[2]


def test_a_record_cannot_move_the_cursor(tmp_path: Path) -> None:
    hostile = "nav2d\x1b[2J\nmodel for cartpole"
    names = ("a\rb", *(f"x{i}" for i in range(5)))
    text = describe(tmp_path / "model", SIZES, setting={"env": hostile}, feature_names=names)
    assert all(line.isprintable() for line in text.split("\n"))
    assert sum(line.startswith("model for") for line in text.split("\n")) == 1
