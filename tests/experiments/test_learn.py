"""`metastep learn` and `metastep evaluate`: a policy for a new task, resumed, evaluated, refused."""

import contextlib
import csv
import dataclasses
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from metastep._core import storage
from metastep._core.errors import InputError
from metastep.envs import small
from metastep.envs.contexts import ContextSpace
from metastep.experiments import learn
from metastep.experiments.config import load
from metastep.fqi import load_model
from tests.cli.test_cli import invoke, refused
from tests.rules.test_learning import TINY
from tests.steppers import whole_model


@pytest.fixture
def fitted(runs) -> Path:
    """The folder of a tiny run with a model of PPO's learning rate."""
    return runs[0].path


def read(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "curve.csv").read_text().splitlines()))


def test_a_policy_is_learned_evaluated_and_made_again(fitted, tmp_path):
    out = tmp_path / "learned"
    command = ["learn", fitted, "--task", "mass=1.2, length=0.8", "--out", out, "--device", "cpu"]
    shown = invoke(*command)
    assert shown.exit_code == 0, shown.output
    assert f"policy: {out / 'policy.safetensors'}" in shown.stdout
    rows = read(out)
    assert [row["update"] for row in rows] == ["0", "1", "2", "3"]
    assert [row["steps"] for row in rows] == ["24", "48", "72", "96"]
    low, high = 3e-5, 3e-2
    assert all(low <= float(row["stepsize"]) * 1.0001 and float(row["stepsize"]) <= high for row in rows[:-1])
    assert rows[-1]["stepsize"] == ""
    assert "mass" in (out / "report.html").read_text()

    arrays, metadata = storage.read_tensors(out / "policy.safetensors")
    task = metadata["learned"]["task"]
    assert task["mass"] == pytest.approx(1.2)
    space = small.Pendulum().context_space
    middle = dict(zip(space.names, np.add(space.low, space.high) / 2, strict=True))
    assert task["gravity"] == pytest.approx(middle["gravity"])
    assert np.concatenate([arrays[name].ravel() for name in arrays if name != "theta"]).size == arrays["theta"].size

    printed = invoke("evaluate", out, "--episodes", "5", "--device", "cpu")
    assert printed.exit_code == 0, printed.output
    assert "mass = 1.2" in printed.stdout
    assert "5 episodes" in printed.stdout
    before = {path: path.read_bytes() for path in out.iterdir() if path.suffix in (".safetensors", ".csv")}
    assert invoke(*command).exit_code == 0
    assert {path: path.read_bytes() for path in before} == before


def test_a_stopped_one_goes_on_to_the_same_bytes(fitted, tmp_path, monkeypatch):
    model, budgets, original = load_model(fitted), [], learn.run_segments
    learn.learn(model, "", tmp_path / "whole")
    watched = lambda mdp, *args, **more: budgets.append(mdp.budget) or original(mdp, *args, **more)  # noqa: E731
    monkeypatch.setattr(learn, "run_segments", watched)
    monkeypatch.setattr(learn, "_SECONDS_BETWEEN_CHECKPOINTS", 0.0)

    left = iter([1, 0])

    def advance(_):
        if not next(left):
            raise KeyboardInterrupt

    tracker = SimpleNamespace(stage=lambda *_: contextlib.nullcontext(SimpleNamespace(advance=advance)))
    with pytest.raises(KeyboardInterrupt):
        learn.learn(model, "", tmp_path / "stopped", tracker=tracker)
    assert list((tmp_path / "stopped").glob("part-*"))
    learn.learn(model, "", tmp_path / "stopped")
    assert not list((tmp_path / "stopped").glob("part-*"))
    for name in ("policy.safetensors", "curve.csv"):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    with pytest.raises(InputError, match="was started with seed = 0, which is now 4"):
        learn.learn(model, "", tmp_path / "stopped", seed=4)
    learn.learn(model, "", tmp_path / "short", num_updates=1, family="pendulum")
    assert budgets == [3, 3, 1]  # the model sees how many updates there are


def test_families_are_named_with_or_without_their_module(fitted):
    model = load_model(fitted)
    own = load("pendulum-ppo", "quick", TINY).to_dict()
    own["env"]["name"] = f"{small.__name__}:pendulum"
    model = dataclasses.replace(model, record=dataclasses.replace(model.record, configuration={"experiment": own}))
    for family in ("pendulum", own["env"]["name"], ""):
        assert learn.experiment_of(model, family).env.name == own["env"]["name"]
    with pytest.raises(InputError, match=r"^--family: 'junk:pendulum' is not the model's, allowed are .*:pendulum"):
        learn.experiment_of(model, "junk:pendulum")


def test_a_model_of_many_families_learns_in_the_loop_of_a_preset_or_file(tmp_path):
    model, file = whole_model(), tmp_path / "tiny.toml"
    known = {"setting": {"families": {}, "gradient_steps": "percent", "rule": {"name": "ppo"}}, "configuration": {}}
    known |= {"low": (1e-4, 25.0, *model.record.low[2:]), "high": (0.1, 300.0, *model.record.high[2:])}
    model = dataclasses.replace(model, record=dataclasses.replace(model.record, **known))
    with pytest.raises(InputError, match=r"^--family: '' is no preset, allowed are .*, a TOML file"):
        learn.experiment_of(model)
    sizes = "rollout = {num_envs = 2, num_steps = 12, horizon = 6}\nmeta.rule = {epochs = 2, minibatch_size = 12}"
    file.write_text(f'extends = "pendulum-update"\n{sizes}\npolicy.hidden = [4]')
    learn.learn(model, "mass=1.2", tmp_path / "learned", family=str(file), num_updates=2)
    first, second, _ = read(tmp_path / "learned")
    values = model.propose().values
    assert float(first["gradient_steps"]) == pytest.approx(
        4 * values["gradient_steps"] / 100, abs=0.1
    )  # the loop makes 4
    for name in ("stepsize", "clip_range", "gae_lambda", "entropy_weight", "critic_rate"):
        assert float(first[name]) == float(second[name]) == pytest.approx(values[name], rel=1e-4)


def test_models_of_whole_episodes_learn_too(whole, tmp_path):
    learn.learn(load_model(whole.path), "goal_x=0.2", tmp_path / "golf", num_updates=2)
    assert len(read(tmp_path / "golf")) == 3
    _, mean, error = learn.evaluate(tmp_path / "golf", task="goal_x=0.1,goal_y=0.1", episodes=20)
    assert np.isfinite(mean)
    assert error > 0.0


def test_files_that_are_not_policies_are_refused(fitted, tmp_path):
    with pytest.raises(InputError, match="is not a metastep policy"):
        learn.evaluate(fitted / "model.safetensors")
    arrays, stamp = {"theta": np.zeros(3, np.float32)}, storage.stamp("policy")
    experiment = load("pendulum-ppo", "quick", TINY).to_dict()
    for metadata, sentence in (
        ({"experiment": experiment, "learned": {"task": {"mass": "heavy"}}}, "does not hold what this version keeps"),
        ({"experiment": experiment, "learned": {"task": {"mass": 1.0}}}, "does not hold a policy of its"),
    ):
        storage.write_tensors(tmp_path / "policy.safetensors", arrays, stamp | metadata)
        with pytest.raises(InputError, match=sentence):
            learn.evaluate(tmp_path)


def test_what_does_not_belong_to_the_folder_is_refused(fitted, whole, tmp_path):
    mixed = tmp_path / "mixed"
    shutil.copytree(fitted, mixed)
    shutil.copy(whole.model_file, mixed)
    sentence = refused(invoke("learn", mixed, "--out", tmp_path / "new", "--device", "cpu"))
    assert "model.safetensors was fitted with " in sentence
    assert not (tmp_path / "new").exists()
    for seed in (0, 1):
        learn.learn(load_model(fitted), "", tmp_path / f"{seed}", seed=seed, num_updates=1)
    shutil.copy(tmp_path / "1" / "policy.safetensors", tmp_path / "0")
    with pytest.raises(InputError, match=r"was learned with seed = 1, but in this folder it is 0; learn it again\."):
        learn.evaluate(tmp_path / "0", episodes=2)


def test_tasks_as_text():
    space = ContextSpace(("mass", "length"), (1.0, 2.0), (3.0, 6.0))
    assert learn.parse_task("length = 3", space).tolist() == [2.0, 3.0]
    for text, sentence in {
        "width=1": "'width' is not a coordinate of the task, allowed are mass, length",
        "mass=heavy": "must have the form NAME=NUMBER",
        "mass": "must have the form NAME=NUMBER",
        "mass=9": r"has mass = 9, allowed is \[1, 3\]",
    }.items():
        with pytest.raises(InputError, match=sentence):
            learn.parse_task(text, space)
