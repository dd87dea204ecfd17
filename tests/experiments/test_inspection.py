"""`inspect` describes whatever a model file holds, and says why where it cannot."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

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
    assert "first step by context[0]" in text
    assert "first step" not in describe(tmp_path / "blind", {"theta": 2, "natural_gradient": 2})
    assert "first step by context[0]" in describe(tmp_path / "wide", {"natural_gradient": 3000, "context": 2})


def test_a_model_with_a_menu_is_described_by_direction(tmp_path: Path) -> None:
    menu = {"nga damping=0.1": Range(0.001, 1.0, "divergence"), "adam\n": Range(0.0, 1.0)}
    lines = describe(tmp_path / "model", SIZES, menu).split("\n")
    assert "  direction nga damping=0.1: steps 5 from 0.001 to 1 (grid, divergence, ties: smallest)" in lines
    assert "  direction 'adam\\n': steps 5 from 0 to 1 (grid, ties: smallest)" in lines
    assert sum(line.startswith("  inputs that matter most for ") for line in lines) == 2
    assert any("4 heads of extra-trees" in line for line in lines)
    (slice_x,) = [line for line in lines if line.startswith("  first step by context[0]")]
    assert slice_x.count("nga damping=0.1 ") + slice_x.count("'adam\\n' ") == 5


def test_a_record_cannot_move_the_cursor(tmp_path: Path) -> None:
    hostile = "nav2d\x1b[2J\nmodel for cartpole"
    names = ("a\rb", *(f"x{i}" for i in range(5)))
    text = describe(tmp_path / "model", SIZES, setting={"env": hostile}, feature_names=names)
    assert all(line.isprintable() for line in text.split("\n"))
    assert sum(line.startswith("model for") for line in text.split("\n")) == 1
