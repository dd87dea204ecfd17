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
from metastep.experiments.checking import inspect_path
from metastep.experiments.reporting import write_report
from metastep.experiments.run import Run
from metastep.experiments.stages import compare_methods, fit_and_select
from tests.experiments.tiny import make_run


def fitted(path: Path, *changes: str) -> Run:
    folder = make_run(path, *changes)
    folder.collect()
    fit_and_select(folder)
    return folder


def every_stage(folder: Run) -> list[Callable[[], object]]:
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
def test_a_model_of_another_run_is_refused(run: Run, tmp_path: Path, change: str, words: str) -> None:
    other = fitted(tmp_path / "other", change)
    for file in (other.model_file, other.validation_file):
        shutil.copy(file, run.path)
    for file in (run.comparison_file, run.result_file("metafqi")):
        file.unlink()
    for stage in every_stage(run)[:1] + every_stage(run)[2:]:
        with pytest.raises(InputError, match=rf"^File .*/model\.safetensors {words}; put back the file of this run"):
            stage()


def test_a_model_of_other_data_is_refused(run: Run) -> None:
    manifest = json.loads((run.data_folder / "manifest.json").read_text())
    del manifest["checksum"]
    manifest["environment"]["device"] = "another"
    storage.write_json(run.data_folder / "manifest.json", storage.sealed(manifest))
    for stage in every_stage(run)[:3]:
        with pytest.raises(InputError, match=r"model\.safetensors was made from another data \("):
            stage()


@pytest.mark.parametrize("change", ["seed=1", "rollout.horizon=5"])
def test_data_of_another_run_are_refused(run: Run, tmp_path: Path, change: str) -> None:
    other = make_run(tmp_path / "other", change)
    other.collect()
    shutil.rmtree(run.data_folder)
    shutil.copytree(other.data_folder, run.data_folder)
    run.model_file.unlink()
    with pytest.raises(InputError, match=r"^Dataset .*/data was collected with .*, but in this run it is .*; put back"):
        fit_and_select(run)
    with pytest.raises(InputError, match="but in this run it is"):
        inspect_path(run.path)


@pytest.mark.parametrize("name", ["comparison.safetensors", "validation.safetensors", "results/fixed.safetensors"])
def test_comparisons_of_another_run_are_refused(run: Run, whole: Run, tmp_path: Path, name: str) -> None:
    other = make_run(tmp_path / "other", "fqi.regressor.trees=2")
    ours = load(whole.path / name)
    save(run.path / name, dataclasses.replace(ours, made_from=ours.made_from | {"run": other.identity}))
    if name.startswith("results"):
        run.comparison_file.unlink()
    stage = {"comparison": 3, "validation": 0, "results/fixed": 3}[name.removesuffix(".safetensors")]
    with pytest.raises(InputError, match=rf"^File .*/{name} was made from another run \("):
        every_stage(run)[stage]()
    if not name.startswith("results"):
        with pytest.raises(InputError, match="was made from another run"):
            write_report(run)


def test_swapped_and_copied_results_are_not_joined(run: Run) -> None:
    run.comparison_file.unlink()
    fixed, adam = run.result_file("fixed"), run.result_file("adam")
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
    before = load(run.result_file("metafqi"))
    save(fixed, dataclasses.replace(before, made_from=before.made_from | {"file": "results/fixed"}))
    with pytest.raises(InputError, match=r"fixed\.safetensors holds the results of metafqi, not those of fixed"):
        compare_methods(run)


def test_a_comparison_is_the_join_of_the_results(run: Run) -> None:
    before = load(run.result_file("fixed"))
    save(run.result_file("fixed"), dataclasses.replace(before, returns=before.returns + 1))
    for stage in (compare_methods, write_report):
        with pytest.raises(InputError, match=r"comparison\.safetensors was made from another results/fixed \("):
            stage(run)
    whole = load(run.comparison_file)
    run.result_file("fixed").unlink()
    save(run.comparison_file, dataclasses.replace(whole, made_from=whole.made_from | {"secret": "x"}))
    with pytest.raises(InputError, match="nothing there is known as 'secret'"):
        compare_methods(run)


def test_a_result_belongs_to_the_model_it_followed(run: Run) -> None:
    run.comparison_file.unlink()
    run.model_file.unlink()
    run.validation_file.unlink()
    fit_and_select(run)  # the same bytes: what followed it stays valid
    compare_methods(run)
    run.comparison_file.unlink()
    with run.model_file.open("ab") as file:
        file.write(b"\0")
    with pytest.raises(InputError, match=r"metafqi\.safetensors was made from another model \("):
        compare_methods(run)


def test_a_model_and_its_validation_belong_together(run: Run) -> None:
    before = load(run.validation_file)
    save(run.validation_file, dataclasses.replace(before, returns=before.returns + 1))
    for stage in (fit_and_select, write_report):
        with pytest.raises(InputError, match=r"model\.safetensors was not selected on what validation\.safetensors"):
            stage(run)


def test_a_resumed_run_has_the_same_bytes_wherever_it_lies(whole: Run, tmp_path: Path) -> None:
    other = make_run(tmp_path / "elsewhere" / "run")
    other.run_all()
    for path in [whole.model_file, whole.validation_file, whole.comparison_file, *(whole.path / "results").iterdir()]:
        assert (other.path / path.relative_to(whole.path)).read_bytes() == path.read_bytes()
