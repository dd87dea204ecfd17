"""Data, models and results of other settings, another run or another place are refused by every stage that reads them."""

import dataclasses
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metastep._core.errors import InputError
from metastep.evaluation import load, save
from metastep.experiments.checking import inspect_path
from metastep.experiments.config import load as load_config
from metastep.experiments.provenance import copy_data, data_settings, find_data, recorded_with_data
from metastep.experiments.reporting import write_report
from metastep.experiments.run import Run
from metastep.experiments.stages import fit_and_select
from tests.experiments.test_checking import reseal
from tests.experiments.tiny import TASKS, make_run
from tests.mdp.test_dataset import files

STAGES: dict[str, Callable[[Run], object]] = {"fit": fit_and_select, "report": write_report, "compare": Run.compare}
STAGES |= {"inspect": lambda run: inspect_path(run.path)}


def test_data_of_other_later_settings_are_taken_over(whole: Run, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", "fqi.regressor.trees=7", "meta.meta_discount=0.5", "compare.num_tasks=3")
    copy_data(find_data(whole.path, other), other)
    other.collect()
    copy_data(find_data(whole.data_folder, other), other)  # the data folder itself; there already
    assert files(other.data_folder) == files(whole.data_folder)  # nothing was collected or rewritten
    assert recorded_with_data(other)["fqi"] == whole.config.to_dict()["fqi"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("seed=1", r"seed = 0, which is now 1"),
        ("meta.rule.damping=0.1", r"meta\.rule\.damping = 0\.01, which is now 0\.1"),
        ("meta.rule=rmsprop", r"meta\.rule\.name = \"nga\", which is now \"rmsprop\""),
        ("meta.stepsize_high=3.0", r"meta\.stepsize_high = 8\.0, which is now 3\.0"),
        ("rollout.block_size=4", r"collect\.block_size = 8, which is now 4"),
        ("env.fixed_context=[0.1, 0.2]", r"env\.fixed_context = null, which is now \[0\.1, 0\.2\]"),
    ],
)
def test_data_of_other_settings_that_shape_them_are_not(whole: Run, tmp_path: Path, change: str, words: str) -> None:
    other = make_run(tmp_path / "run", change)
    with pytest.raises(InputError, match=rf"^--data: .* was collected with {words}; collect new data\.$"):
        find_data(whole.path, other)
    shutil.copytree(whole.data_folder, other.data_folder)  # by hand
    with pytest.raises(InputError, match=r"Dataset .* was started with "):
        other.collect()
    with pytest.raises(InputError, match=r"^Dataset .*/data was collected with .*, but in this run it is .*; put back"):
        fit_and_select(other)
    with pytest.raises(InputError, match="but in this run it is"):
        inspect_path(other.path)


def test_folders_without_usable_data_are_refused(whole: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"was collected with tasks = null, which is now \[\["):
        find_data(whole.path, Run(tmp_path, whole.config, TASKS))
    with pytest.raises(InputError, match=r"--data: .* holds no training data; name a run folder"):
        find_data(tmp_path, whole)


def test_every_section_is_either_of_the_data_or_not() -> None:
    """A new section must be put on one side: silently leaving it out would mix data."""
    config = load_config("nav2d")
    others = {"learner", "fqi", "search", "selection", "compare", "models"}
    assert set(data_settings(config)) | others == set(config.to_dict())
    ours, all_of_meta = set(data_settings(config)["meta"]), set(config.to_dict()["meta"])
    assert all_of_meta - ours == {"meta_discount", "observation"}
    own = load_config("nav2d", "quick", ["collect.block_size=32", "rollout.block_size=4"])
    assert data_settings(own) == data_settings(load_config("nav2d", "quick", ["rollout.block_size=32"]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("seed=1", "was fitted with seed = 1, but in this run it is 0"),
        ("fqi.regressor.trees=2", r"was fitted with fqi\.regressor\.trees = 2, but in this run it is 3"),
    ],
)
def test_a_model_of_another_run_is_refused(run: Run, tmp_path: Path, change: str, words: str) -> None:
    other = make_run(tmp_path / "other", change)
    other.learn()
    for file in (other.model_file, other.validation_file):
        shutil.copy(file, run.path)
    for file in (run.comparison_file, run.result_file("metafqi")):
        file.unlink()
    for stage in ("fit", "inspect", "compare"):
        with pytest.raises(InputError, match=rf"^File .*/model\.safetensors {words}; put back the file of this run"):
            STAGES[stage](run)


def changed(name: str, source: str = "", gone: str = "", shift: float = 0.0, **made_from: str) -> Callable[[Run], None]:
    """Change what a comparison holds or was made from, after it was copied from another; remove a further one."""

    def spoil(run: Run) -> None:
        file = run.path / f"{name}.safetensors"
        found = load(run.path / f"{source}.safetensors" if source else file)
        save(file, dataclasses.replace(found, returns=found.returns + shift, made_from=found.made_from | made_from))
        (run.path / f"{gone}.safetensors").unlink(missing_ok=True)

    return spoil


def other_data(run: Run) -> None:
    reseal(run.data_folder / "manifest.json", environment=run.dataset.environment | {"device": "another"})


def other_model(run: Run) -> None:
    run.comparison_file.unlink()
    run.model_file.write_bytes(run.model_file.read_bytes() + b"\0")


FIXED, ALONE = "results/fixed", {"gone": "comparison"}
COPIED = {"source": "results/adam", **ALONE}


@pytest.mark.parametrize(
    ("spoil", "stages", "words"),
    [
        (other_data, "fit report inspect", "model made from another data"),
        (other_model, "compare", "metafqi made from another model"),
        (changed("comparison", run="x"), "compare report", "comparison made from another run"),
        (changed("validation", run="x"), "fit report", "validation made from another run"),
        (changed(FIXED, **ALONE, run="x"), "compare", "fixed made from another run"),
        (changed(FIXED, **COPIED), "compare", "fixed written as 'results/adam' and is not in its own place"),
        (changed(FIXED, **COPIED, file=FIXED), "compare", "fixed holds the results of adam, not those of fixed"),
        (changed(FIXED, shift=1.0), "compare report", "comparison made from another results/fixed"),
        (changed("validation", shift=1.0), "fit report", "model not selected on what validation"),
        (changed("comparison", secret="x"), "compare", "nothing there is known as 'secret'"),
    ],
)
def test_what_does_not_belong_together_is_refused(run: Run, spoil: Any, stages: str, words: str) -> None:
    spoil(run)
    file, _, sentence = words.partition(" ")
    for stage in stages.split():
        with pytest.raises(InputError, match=re.escape(sentence)) as refused:
            STAGES[stage](Run.open(run.path))
        assert f"{file}.safetensors" in str(refused.value) or file == "nothing"


def test_a_model_fitted_again_has_the_same_bytes(run: Run) -> None:
    for file in (run.comparison_file, run.model_file, run.validation_file):
        file.unlink()
    fit_and_select(run)
    run.compare()  # what followed it stays valid
