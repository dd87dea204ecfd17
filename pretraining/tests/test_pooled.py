"""One model for several families, by the command."""

import numpy as np
import pytest
from typer.testing import CliRunner

from metastep import InputError, Run, load_model
from metastep.experiments import learn
from metastep.experiments.config import load
from pretraining.__main__ import app
from pretraining.pooled import fit_pooled
from tests.experiments.conftest import runs as runs
from tests.rules.test_learning import TINY


def test_one_model_for_several_families(runs, tmp_path):
    command = ["pooled", *(str(run.path) for run in runs), "--name", "pool", "--out", str(tmp_path), "--device", "cpu"]
    shown = CliRunner().invoke(app, command, catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    assert CliRunner().invoke(app, command).exit_code == 2  # the file is there
    model = load_model(tmp_path / "pool.safetensors")
    assert model.record.setting["families"] == ["pendulum", "mountaincar"]
    alone = [load_model(folder.path).record.training_data.tuples for folder in runs]
    assert model.record.training_data.tuples == sum(alone)
    assert model.record.setting["num_envs"] == 2  # what all have in common
    assert "discount" not in model.record.setting
    card = (tmp_path / "pool.md").read_text()
    assert "pendulum, mountaincar" in card
    assert f"selected on {sum(run.config.selection.num_tasks for run in runs)} validation tasks." in card
    assert "| pool | " in card
    assert "## Scores on mountaincar" not in card
    assert np.isfinite(learn.learn(model, "", tmp_path / "learned", family="pendulum", num_updates=1)[1])


def test_what_cannot_be_pooled(runs, tmp_path):
    with pytest.raises(InputError, match="allowed are two families or more"):
        fit_pooled([runs[0], runs[0]])
    other = Run.create(tmp_path / "narrow", load("mountaincar-ppo", "quick", [*TINY, "meta.stepsize_high=0.01"]))
    with pytest.raises(InputError, match="pendulum and mountaincar must have the same space"):
        fit_pooled([runs[0], other])
