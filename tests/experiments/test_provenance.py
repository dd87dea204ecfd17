"""Data, models and results of other settings, another run or another place are refused by every stage that reads them."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from functools import partial
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


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def edited(file: Path, **changes: Any) -> None:
    """Change a comparison, or what it says that it was made from."""
    found = load(file)
    made_from = found.made_from | changes.pop("made_from", {})
    save(file, dataclasses.replace(found, made_from=made_from, **changes))


def every_stage(folder: Run) -> list[Callable[[], object]]:
    of_run = partial(fit_and_select, folder), partial(write_report, folder)
    return [*of_run, partial(inspect_path, folder.path), folder.compare]


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
    content = json.loads((whole.data_folder / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps(content | {"seed": 5}))
    with pytest.raises(InputError, match=r"manifest\.json is damaged or was edited"):
        find_data(tmp_path, whole)


def test_every_section_is_either_of_the_data_or_not() -> None:
    """A new section must be put on one side: silently leaving it out would mix data."""
    config = load_config("nav2d")
    assert set(data_settings(config)) | {"learner", "fqi", "search", "selection", "compare", "models"} == set(
        config.to_dict()
    )
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
    for stage in every_stage(run)[:1] + every_stage(run)[2:]:
        with pytest.raises(InputError, match=rf"^File .*/model\.safetensors {words}; put back the file of this run"):
            stage()


def test_a_model_of_other_data_is_refused(run: Run) -> None:
    reseal(run.data_folder / "manifest.json", environment=run.dataset.environment | {"device": "another"})
    for stage in every_stage(run)[:3]:
        with pytest.raises(InputError, match=r"model\.safetensors was made from another data \("):
            stage()


@pytest.mark.parametrize(
    ("name", "stage"),
    [("comparison", 3), ("comparison", 1), ("validation", 0), ("validation", 1), ("results/fixed", 3)],
)
def test_comparisons_of_another_run_are_refused(run: Run, tmp_path: Path, name: str, stage: int) -> None:
    file, other = run.path / f"{name}.safetensors", make_run(tmp_path / "other", "fqi.regressor.trees=2")
    edited(file, made_from={"run": other.identity})
    if name.startswith("results"):
        run.comparison_file.unlink()
    with pytest.raises(InputError, match=rf"^File {file} was made from another run \("):
        every_stage(run)[stage]()


def test_swapped_and_copied_results_are_not_joined(run: Run) -> None:
    run.comparison_file.unlink()
    fixed = run.result_file("fixed")
    shutil.copy(run.result_file("adam"), fixed)
    with pytest.raises(InputError, match=r"fixed\.safetensors was written as 'results/adam' and is not in its own"):
        run.compare()
    edited(fixed, made_from={"file": "results/fixed"})
    with pytest.raises(InputError, match=r"fixed\.safetensors holds the results of adam, not those of fixed"):
        run.compare()


def test_a_comparison_is_the_join_of_the_results(run: Run) -> None:
    edited(run.result_file("fixed"), returns=load(run.result_file("fixed")).returns + 1)
    for stage in (Run.compare, write_report):
        with pytest.raises(InputError, match=r"comparison\.safetensors was made from another results/fixed \("):
            stage(run)
    run.result_file("fixed").unlink()
    edited(run.comparison_file, made_from={"secret": "x"})
    with pytest.raises(InputError, match="nothing there is known as 'secret'"):
        run.compare()


def test_models_results_and_validations_belong_together(run: Run) -> None:
    for file in (run.comparison_file, run.model_file, run.validation_file):
        file.unlink()
    fit_and_select(run)  # the same bytes: what followed it stays valid
    run.compare()
    edited(run.validation_file, returns=load(run.validation_file).returns + 1)
    for stage in (fit_and_select, write_report):
        with pytest.raises(InputError, match=r"model\.safetensors was not selected on what validation\.safetensors"):
            stage(Run.open(run.path))
    run.comparison_file.unlink()
    with run.model_file.open("ab") as file:
        file.write(b"\0")
    with pytest.raises(InputError, match=r"metafqi\.safetensors was made from another model \("):
        run.compare()


def test_a_run_has_the_same_bytes_wherever_it_lies(whole: Run, tmp_path: Path) -> None:
    other = make_run(tmp_path / "elsewhere" / "run")
    other.run_all()
    for path in [whole.model_file, whole.validation_file, whole.comparison_file, *(whole.path / "results").iterdir()]:
        assert (other.path / path.relative_to(whole.path)).read_bytes() == path.read_bytes()
