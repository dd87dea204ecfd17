"""Files of another run, or in another file's place, are refused by every stage that reads them."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from metastep._core import storage
from metastep._core.errors import InputError
from metastep.evaluation import load, save
from metastep.experiments.comparing import compare_methods
from metastep.experiments.folder import RunFolder
from metastep.experiments.inspection import inspect_path
from metastep.experiments.learning import collect_data, fit_and_select
from metastep.experiments.runner import run_experiment, write_report
from tests.experiments.tiny import make_run


def fitted(path: Path, *changes: str) -> RunFolder:
    folder = make_run(path, *changes)
    collect_data(folder)
    fit_and_select(folder)
    return folder


def every_stage(folder: RunFolder) -> list[Callable[[], object]]:
    return [
        lambda: fit_and_select(folder),
        lambda: write_report(folder),
        lambda: inspect_path(folder.path),
        lambda: compare_methods(folder),
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("seed=1", "was fitted with seed = 1, but in this run it is 0"),
        ("fqi.regressor.trees=2", r"was fitted with fqi\.regressor\.trees = 2, but in this run it is 3"),
        ("meta.meta_discount=0.5", r"was fitted with meta\.meta_discount = 0\.5, but in this run it is 1\.0"),
    ],
)
def test_a_model_of_another_run_is_refused(run: RunFolder, tmp_path: Path, change: str, words: str) -> None:
    other = fitted(tmp_path / "other", change)
    for file in (other.model, other.validation):
        shutil.copy(file, run.path)
    for file in (run.comparison, run.result("metafqi")):
        file.unlink()
    for stage in every_stage(run)[:1] + every_stage(run)[2:]:
        with pytest.raises(InputError, match=rf"^File .*/model\.safetensors {words}; put back the file of this run"):
            stage()


def test_a_model_of_other_data_is_refused(run: RunFolder) -> None:
    manifest = json.loads((run.data / "manifest.json").read_text())
    del manifest["checksum"]
    manifest["environment"]["device"] = "another"
    storage.write_json(run.data / "manifest.json", storage.sealed(manifest))
    for stage in every_stage(run)[:3]:
        with pytest.raises(InputError, match=r"model\.safetensors was made from another data \("):
            stage()


@pytest.mark.parametrize("change", ["seed=1", "rollout.horizon=5"])
def test_data_of_another_run_are_refused(run: RunFolder, tmp_path: Path, change: str) -> None:
    other = make_run(tmp_path / "other", change)
    collect_data(other)
    shutil.rmtree(run.data)
    shutil.copytree(other.data, run.data)
    run.model.unlink()
    with pytest.raises(InputError, match=r"^Dataset .*/data was collected with .*, but in this run it is .*; put back"):
        fit_and_select(run)
    with pytest.raises(InputError, match="but in this run it is"):
        inspect_path(run.path)


@pytest.mark.parametrize("name", ["comparison.safetensors", "validation.safetensors", "results/fixed.safetensors"])
def test_comparisons_of_another_run_are_refused(run: RunFolder, whole: RunFolder, tmp_path: Path, name: str) -> None:
    other = make_run(tmp_path / "other", "fqi.regressor.trees=2")
    ours = load(whole.path / name)
    save(run.path / name, dataclasses.replace(ours, made_from=ours.made_from | {"run": other.identity}))
    if name.startswith("results"):
        run.comparison.unlink()
    stage = {"comparison": 3, "validation": 0, "results/fixed": 3}[name.removesuffix(".safetensors")]
    with pytest.raises(InputError, match=rf"^File .*/{name} was made from another run \("):
        every_stage(run)[stage]()
    if not name.startswith("results"):
        with pytest.raises(InputError, match="was made from another run"):
            write_report(run)


def test_swapped_and_copied_results_are_not_joined(run: RunFolder) -> None:
    run.comparison.unlink()
    fixed, adam = run.result("fixed"), run.result("adam")
    shutil.copy(fixed, run.path / "spare")
    shutil.copy(adam, fixed)
    with pytest.raises(
        InputError, match=r"fixed\.safetensors was written as 'results/adam' and is not in its own place"
    ):
        compare_methods(run)
    shutil.move(run.path / "spare", adam)
    with pytest.raises(InputError, match="is not in its own place"):
        compare_methods(run)
    adam.unlink()
    fixed.unlink()
    before = load(run.result("metafqi"))
    save(fixed, dataclasses.replace(before, made_from=before.made_from | {"file": "results/fixed"}))
    with pytest.raises(InputError, match=r"fixed\.safetensors holds the results of metafqi, not those of fixed"):
        compare_methods(run)


def test_a_comparison_is_the_join_of_the_results(run: RunFolder) -> None:
    before = load(run.result("fixed"))
    save(run.result("fixed"), dataclasses.replace(before, returns=before.returns + 1))
    for stage in (compare_methods, write_report):
        with pytest.raises(InputError, match=r"comparison\.safetensors was made from another results/fixed \("):
            stage(run)
    whole = load(run.comparison)
    run.result("fixed").unlink()
    save(run.comparison, dataclasses.replace(whole, made_from=whole.made_from | {"secret": "x"}))
    with pytest.raises(InputError, match="nothing there is known as 'secret'"):
        compare_methods(run)


def test_a_result_belongs_to_the_model_it_followed(run: RunFolder) -> None:
    run.comparison.unlink()
    run.model.unlink()
    run.validation.unlink()
    fit_and_select(run)  # the same bytes: what followed it stays valid
    compare_methods(run)
    run.comparison.unlink()
    with run.model.open("ab") as file:
        file.write(b"\0")
    with pytest.raises(InputError, match=r"metafqi\.safetensors was made from another model \("):
        compare_methods(run)


def test_a_model_and_its_validation_belong_together(run: RunFolder) -> None:
    before = load(run.validation)
    save(run.validation, dataclasses.replace(before, returns=before.returns + 1))
    for stage in (fit_and_select, write_report):
        with pytest.raises(InputError, match=r"model\.safetensors was not selected on what validation\.safetensors"):
            stage(run)


def test_a_resumed_run_has_the_same_bytes_wherever_it_lies(whole: RunFolder, tmp_path: Path) -> None:
    other = make_run(tmp_path / "elsewhere" / "run")
    run_experiment(other)
    for path in [whole.model, whole.validation, whole.comparison, *(whole.path / "results").iterdir()]:
        assert (other.path / path.relative_to(whole.path)).read_bytes() == path.read_bytes()
