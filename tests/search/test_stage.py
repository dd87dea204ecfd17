"""Search as a stage of a run: killed and resumed to the same bytes, and the simplest level that is as good is selected."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from metastep import load_model
from metastep._core.errors import InputError
from metastep._core.parallel import map_threads
from metastep.cli import _fine_tuned, app
from metastep.experiments import searching
from metastep.experiments.checking import check_folder, inspect_path
from metastep.experiments.config import load
from metastep.experiments.run import Run
from metastep.search import LEVELS, evolution, save_model
from tests.campaigns import digests

TINY = """
extends = "update"
env.name = "pendulum"
policy.hidden = [4]
rollout = { num_envs = 2, num_steps = 12, horizon = 7, block_size = 4 }
meta = { num_updates = 2, rule.minibatch_size = 8, rule.epochs = 2 }
models.update.meta.choices.gradient_steps = { low = 1.0, high = 6.0 }
search = { generations = 3, pairs = 8, block_size = 4, validate_every = 2, units = 2, knots = 2 }
selection.num_tasks = 8
compare = { num_tasks = 8, num_tuning_tasks = 2, num_updates = 2, methods = [] }
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("search") / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="module")
def searched(file: Path) -> Run:
    run = Run.create(file.parent / "whole", load(file, "full"))
    run.learn("update")
    return run


def test_the_files_of_a_search(searched: Run) -> None:
    own = searched.of_model("update")
    assert {f"levels/{level}.safetensors" for level in LEVELS} <= set(digests(own.path))
    chosen = own.model.record.level
    assert (own.path / "model.safetensors").read_bytes() == searching.level_file(own, chosen).read_bytes()
    assert [each.level for each in own.model.record.validation] == list(LEVELS)
    assert own.model.record.hyperparameters == tuple(own.mdp.space.names)
    assert load_model(own.path).fingerprint == own.model.fingerprint
    assert (own.path / "model.safetensors").stat().st_size < 30_000
    assert not [finding for finding in check_folder(searched.path) if finding.problem]
    # A level that was not selected does not say that it was.
    other = next(level for level in LEVELS if level != chosen)
    text = inspect_path(searching.level_file(own, other))
    assert [line.split()[3] for line in text.splitlines() if line.endswith("  this file")] == [f"{other}:"]
    assert "selected" not in text
    assert re.search(f"{chosen}: .*  selected", inspect_path(own.path))
    # Steps up to where a level begins are counted once.
    steps, total = searching.steps_of_levels(own)
    courses = [searching.kept_course(own, level) for level in LEVELS]
    begun = [course.metadata["branch_steps"] for course in courses]
    assert (*steps.values(),) == tuple(course.metadata["steps"] for course in courses)
    assert 0.0 < begun[0] < begun[1] < total == sum(steps.values()) - begun[0] - begun[1]
    level = searching.level_file(own, "schedule")
    kept = level.read_bytes()
    level.write_bytes(searching.level_file(own, "constant").read_bytes())
    with pytest.raises(InputError, match="holds another level"):
        searching.read_level(own, "schedule")
    level.write_bytes(kept)


def test_a_stopped_search_resumes_to_the_same_bytes(searched: Run, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, keep, left, programs = file.parent / "stopped", searching.keep_course, 7, list[Any]()

    def stop(*course: Any, **start: Any) -> None:
        nonlocal left
        keep(*course, **start)
        left -= 1
        if not left:
            raise KeyboardInterrupt

    monkeypatch.setattr(searching, "keep_course", stop)
    with pytest.raises(KeyboardInterrupt):
        Run.create(out, load(file, "full")).learn("update")
    assert not (out / "models" / "update" / "model.safetensors").exists()
    # Programs that are compiled ahead, as for a GPU, are the same.
    monkeypatch.setattr(searching, "fills_batches", lambda _: True)
    monkeypatch.setattr(evolution, "map_threads", lambda *given: programs.extend(map_threads(*given)))
    Run.open(out).learn("update")
    assert digests(out / "models") == digests(searched.path / "models")
    assert len(programs) == 8  # four for a block on the validation tasks, and four for pairs


def test_a_level_must_lead_to_be_chosen_over_a_simpler_one(searched: Run) -> None:
    own = searched.of_model("update")
    objective, validation = own.config.search.objective, own.validation
    returns = np.zeros_like(validation.returns)
    noise = np.random.default_rng(0).normal(size=returns.shape[1])[:, None].astype(np.float32)
    for leads, expected in (
        ((0, 0, 0), "constant"),
        ((0, 5, 5), "schedule"),
        ((0, 0, 5), "feedback"),
        ((0, 5, 9), "feedback"),
        ((0, 5, 4), "schedule"),
    ):
        for index, lead in enumerate(leads):
            returns[index] = lead + (noise if index else -noise)
        changed = type(validation)(**{**vars(validation), "returns": returns})
        assert searching.judge_levels(changed, objective)[0] == expected
    returns[0] = np.nan
    changed = type(validation)(**{**vars(validation), "returns": returns})
    assert [each.level for each in searching.judge_levels(changed, objective)[1]] == ["schedule", "feedback"]


def fine_tuned(file: Path, start: Path, out: Path, *more: str) -> Any:
    source = [str(file), "--scale", "full"] if file.exists() else []
    family = ["--env", "tests.testing.test_check_env:Walk", "--set", "rollout.discount=0.9"]
    return CliRunner().invoke(app, ["search", *source, "--start", str(start), *family, "--out", str(out), *more])


def test_a_model_is_fine_tuned_on_another_family(searched: Run, file: Path) -> None:
    before: Any = load_model(searching.level_file(searched.of_model("update"), "feedback"))
    start, out = file.parent / "start.safetensors", file.parent / "tuned"
    save_model(before, start)
    few = ("--set", "search.generations=2")
    ran = fine_tuned(file, start, out, *few)
    assert ran.exit_code == 0, ran.output
    after: Any = load_model(out)
    assert after.record.environment == "walk"
    assert after.network == before.network  # form, standardisation and base point
    assert (after.record.space, after.record.level) == (before.record.space, "feedback")
    course = searching.kept_course(Run.open(out).of_model("update"), "feedback")
    moved = np.concatenate([np.ravel(part) for part in before.weights])
    assert course.metadata["start"] == before.fingerprint
    assert 0.0 < np.abs(course.arrays["state/0"] - moved).max() < 5.0
    # A search that goes on must begin from the same model.
    (out / "models" / "update" / "model.safetensors").unlink()
    changed = before.weights._replace(curves=before.weights.curves + np.float32(1.0))
    save_model(dataclasses.replace(before, weights=changed), start)
    ran = fine_tuned(file, start, out, *few)
    assert ran.exit_code == 2
    assert "began from another model" in ran.output


@pytest.mark.parametrize(
    ("start", "more", "sentence"),
    [
        ("cartpole", (), "--start: 'cartpole' was fitted, allowed are searched models"),
        ("no-such", (), "'no-such' is neither a file nor a model"),
        ("", ("meta.stepsize_high=0.3",), "it was searched for space.high = [0.1, "),
        ("", ('models.update.search.levels=["constant"]',), "search.levels: ['constant'] must be ['"),
        ("", ("meta.rule={name='a2c'}",), "a2c"),
    ],
)
def test_what_cannot_be_fine_tuned(searched: Run, file: Path, start: str, more: tuple[str, ...], sentence: str) -> None:
    found = Path(start) if start else searching.level_file(searched.of_model("update"), "schedule")
    changes = [word for change in more for word in ("--set", change)]
    ran = fine_tuned(file, found, file.parent / "refused", *changes)
    assert ran.exit_code == 2
    assert sentence in ran.output
    assert not (file.parent / "refused").exists()


def test_a_model_with_more_gradient_steps_gets_epochs_for_them(searched: Run) -> None:
    path = searched.of_model("update").model_file
    config = load("pendulum-update", "full")
    assert not [setting for setting in searching.start_settings(str(path), config) if "epochs" in setting]
    fewer = load("pendulum-update", "full", ["meta.rule.epochs=1", "meta.rule.minibatch_size=3200"])
    settings = searching.start_settings(str(path), fewer)
    assert {"meta.rule.epochs=6", "meta.rule.gradient_steps=1"} <= set(settings)
    # Without a source it is the loop of the presets.
    source, out, settings = _fine_tuned("", str(path), "cartpole-v1", None, None, ["search.pairs=16"])
    made = Run(out, load(source, "quick", settings)).require_buildable().of_model("update")
    assert (made.config.env.name, made.config.search.pairs, made.config.rollout.discount) == ("cartpole-v1", 16, 0.99)
    assert made.mdp.space == load_model(path).record.space
    assert out == Path("runs/cartpole-v1-model")
    for arguments in (["search"], ["search", "--start", str(path)], ["run"]):
        ran = CliRunner().invoke(app, arguments)
        assert (ran.exit_code, "is missing" in ran.output) == (2, True)


OTHERS = {
    "{name='a2c'}": ("gae_lambda", "critic_rate", "entropy_weight"),
    "{name='trpo', minibatch_size=8}": ("gae_lambda", "critic_rate"),
}


@pytest.mark.parametrize(("rule", "names"), OTHERS.items())
def test_other_rules_are_searched(file: Path, tmp_path: Path, rule: str, names: tuple[str, ...]) -> None:
    ranges = ", ".join(f"{name} = {{}}" for name in names)
    changes = [f"meta.rule={rule}", f"models.update.meta.choices={{{ranges}}}", "search.generations=2"]
    run = Run.create(tmp_path / "run", load(file, "full", changes))
    record = run.learn("update").record
    assert (record.rule_name in rule, set(record.names)) == (True, {"stepsize", *names})
    assert [each.level for each in record.validation] == list(LEVELS)
    assert searching.kept_course(run.of_model("update"), "constant").arrays["branch"].all()  # each was moved
    assert not [finding for finding in check_folder(run.path) if finding.problem]
