"""Further models of an experiment: their own settings, rounds that follow the model so far, and what `check` says of them."""

import itertools
import shutil
import sys

import numpy as np
import pytest

import metastep
from metastep._core.errors import InputError
from metastep.experiments import run as run_module
from metastep.experiments import stages
from metastep.experiments.config import load
from metastep.experiments.publishing import publish
from metastep.experiments.run import Run, start_run
from metastep.fqi import load_model
from metastep.mdp.blocks import Stream
from tests.campaigns import digests
from tests.cli.test_cli import invoke
from tests.experiments.test_checking import problems, reseal
from tests.experiments.tiny import TINY

SMALL = (
    "models.metastep.collect={num_meta_episodes = 16, labels = 3, rounds = 3, near = 0.5}",
    "models.metastep.fqi={iterations = 2, regressor = {trees = 3}}",
    'compare.methods=["metastep", "fixed"]',
    "compare.methods.fixed.grid={stepsize = [0.5, 1.0]}",
    "compare.num_resamples=100",
)


def make(path) -> Run:
    return Run.create(path, load("nav2d", "quick", [*TINY, *SMALL]))


_opened: list[str] = []
sys.addaudithook(lambda event, args: _opened.append(str(args[0])) if event == "open" else None)


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Run:
    """A run that read each config.json once and built one meta-MDP for each model."""
    path, built, build = tmp_path_factory.mktemp("models"), [], run_module.configs.build_mdp
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module.configs, "build_mdp", lambda config: built.append(config) or build(config))
        _opened.clear()
        run = metastep.run("nav2d", path / "run", scale="quick", overrides=[*TINY, *SMALL])
    read = [name.removeprefix(f"{path}/") for name in _opened if name.endswith("config.json")]
    assert sorted(read) == ["run/config.json", "run/models/metastep/config.json"]
    assert len(built) == 2
    return run


def test_a_run_holds_the_model_within_it_and_check_knows_every_file(done):
    names = digests(done.path)
    assert {"models/metastep/model.safetensors", "models/metastep/rounds/2.safetensors"} <= set(names)
    assert "model.safetensors" not in names  # no method follows one
    own = done.of_model("metastep").config
    assert (own.meta.rule.name, own.meta.stepsize_scale, own.env) == ("menu", "divergence", done.config.env)
    assert (own.models, own.compare.names) == ({}, ("metafqi",))
    assert problems(done.path) == {}
    model = load_model(done.path / "models" / "metastep")
    directions = done.of_model("metastep").config.meta.rule.options["directions"]
    assert [branch.name for branch in model.record.branches] == list(directions)


def test_what_is_published_of_a_run_is_the_model_whose_scores_the_card_shows(done, tmp_path):
    file, page, _ = publish(done, "tiny", tmp_path, command="metastep publish run")
    whole = load_model(done.path / "models" / "metastep")
    assert load_model(file).record.training_data == whole.record.training_data
    card = page.read_text()
    assert "| method | tiny minus it, AUC | tiny is |" in card
    assert "| metastep | " in card  # the whole model, beside what was published of it
    assert "# the run in run\nmetastep publish run\n" in card
    few, page, _ = publish(done, "few", tmp_path, trees=1)
    assert "1 of 3 trees of each forest" in page.read_text()
    assert few.stat().st_size < file.stat().st_size


def test_fewer_trees_are_the_first_of_each_kind(done):
    whole = load_model(done.path / "models" / "metastep").only_selected()
    few = whole.with_trees(1)
    assert few.record.regressor.options["trees"] == 1
    rows = np.random.default_rng(0).normal(size=(50, sum(part.size for part in whole.record.observation) + 1))
    kinds = 2 if whole.record.regressor.options["state_first"] else 1
    for head, kept in zip(whole.q_functions[0].heads, few.q_functions[0].heads, strict=True):
        alone = [head.some_trees([kind * 3]).predict(rows) for kind in range(kinds)]
        np.testing.assert_allclose(kept.predict(rows), np.mean(alone, axis=0), rtol=1e-12)
    np.testing.assert_array_equal(whole.with_trees(3).act(rows[:, :-1]), whole.act(rows[:, :-1]))
    with pytest.raises(InputError, match="trees: 4 must be 1 to 3"):
        whole.with_trees(4)


def test_later_rounds_follow_the_model_of_the_rounds_before(done):
    own = done.of_model("metastep")
    dataset = own.collect()
    assert dataset.layout.num_learners == 3 * 16
    model = load_model(own.round_file(1))
    block = dataset.block(2)  # the first of the second round
    mdp = own.mdp
    learners = mdp.begin(mdp.tasks(own.config.seed, Stream.TRAIN, 2))
    greedy = model.act(np.asarray(stages.features.meta_observation(mdp, learners)))
    same = np.isclose(block.hyperparameters[0], greedy).all(axis=1)
    assert same.sum() > 0  # the others explore
    first = dataset.block(0)
    assert not np.isclose(first.hyperparameters[0], greedy).all(axis=1).any()
    near, far = block.candidates.hyperparameters[0]  # of the two candidates, one is near what the model would choose
    assert (near[:, 0] == greedy[:, 0]).all()
    assert not (far[:, 0] == greedy[:, 0]).all()


@pytest.mark.parametrize("moment", [2, 5])
def test_rounds_that_were_stopped_go_on_byte_for_byte(done, tmp_path, monkeypatch, moment):
    folder = make(tmp_path / "run")
    calls, save, write = itertools.count(1), stages.save_model, run_module.collection.DatasetWriter.add

    def counted(original):
        def call(*arguments):
            if next(calls) == moment:
                raise KeyboardInterrupt
            return original(*arguments)

        return call

    monkeypatch.setattr(stages, "save_model", counted(save))
    monkeypatch.setattr(run_module, "save_model", counted(save))
    monkeypatch.setattr(run_module.collection.DatasetWriter, "add", counted(write))
    with pytest.raises(KeyboardInterrupt):
        folder.learn("metastep")
    monkeypatch.undo()
    folder.learn("metastep")
    found, whole = (digests(each.path / "models") for each in (folder, done))
    assert found == whole


def test_a_model_of_another_round_or_run_is_found(done, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(done.path, folder)
    rounds = folder / "models" / "metastep" / "rounds"
    shutil.copy(rounds / "1.safetensors", rounds / "2.safetensors")
    assert list(problems(folder)) == ["models/metastep/rounds/2.safetensors"]
    shutil.copy(done.path / "models" / "metastep" / "rounds" / "2.safetensors", rounds / "2.safetensors")
    shutil.copy(make(tmp_path / "other").path / "config.json", folder / "models" / "metastep" / "config.json")
    assert "models/metastep/config.json" in problems(folder)


def test_deleted_rounds_and_times_are_missed_unless_the_data_were_copied(done, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(done.path, folder)
    names = ("rounds/1.safetensors", "rounds/2.safetensors", "times.json")
    for name in names:
        (folder / "models" / "metastep" / name).unlink()
    assert problems(folder) == dict.fromkeys((f"models/metastep/{name}" for name in names), "is missing.")
    settings = {"overrides": [*TINY, *SMALL, "collect.rounds=2"], "command": "metastep run nav2d"}
    first = start_run("nav2d", "quick", tmp_path / "first", **settings)
    first.collect()
    copied = start_run("nav2d", "quick", tmp_path / "copied", data=first.path, **settings)
    assert problems(first.path) == problems(copied.path) == {}
    shutil.rmtree(first.path / "rounds")
    assert problems(first.path) == {"rounds/1.safetensors": "is missing."}


@pytest.mark.parametrize(
    "settings",
    [
        {"models": {"metastep": {"meta": {"rule": {"name": "menu", "directions": ["planted_module:x"]}}}}},
        {"models": {"metastep": {"meta": {"observation": ["planted_module:x"]}}}},
        {"models": {"metastep": {"fqi": {"regressor": {"name": "planted_module:x"}}}}},
        {"meta": {"rule": {"name": "menu", "directions": ["adam", "planted_module:x damping=0.1"]}}},
    ],
)
def test_a_file_does_not_run_the_modules_that_menus_and_models_name(done, tmp_path, monkeypatch, settings):
    (tmp_path / "planted_module.py").write_text("import pathlib\npathlib.Path(__file__).with_suffix('.ran').touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    folder, known = tmp_path / "run", done.config.to_dict()
    folder.mkdir()
    shutil.copy(done.path / "config.json", folder)
    changed = {section: known[section] | changes for section, changes in settings.items()}
    reseal(folder / "config.json", experiment=known | changed)
    for verb in ("fit", "compare", "report", "check", "inspect"):
        result = invoke(verb, folder)
        assert result.exit_code != 0, verb
        assert "Traceback" not in result.output
    assert not (tmp_path / "planted_module.ran").exists()
