"""The stages of an experiment on a tiny one: what they pass on, and what they refuse."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metastep._core import parallel
from metastep._core.errors import InputError
from metastep.controllers import Fixed, learned
from metastep.evaluation import Comparison, Method, compare, join
from metastep.experiments import stages
from metastep.experiments.config import build_fqi
from metastep.experiments.reporting import print_outcome
from metastep.experiments.run import Run
from metastep.experiments.stages import fit_and_select, method_results
from metastep.mdp.blocks import Stream
from metastep.mdp.dataset import Dataset
from metastep.mdp.runs import Plan
from metastep.rules import NGA
from tests.cli.test_cli import invoke, refused
from tests.experiments.tiny import TASKS, WORDS, make_folder


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run on a list of tasks, with its model."""
    folder = make_folder(tmp_path_factory.mktemp("listed") / "run", tasks=TASKS)
    folder.collect()
    fit_and_select(folder)
    return folder


def test_both_learned_methods_train_on_the_listed_tasks_only(listed: Run, monkeypatch: Any) -> None:
    seen, given, planned, fit = {}, [], stages.comparison_plan, learned.constant_runs

    def watched(methods: list[Method], *args: Any, **options: Any) -> Plan[Comparison]:
        seen[methods[0].name] = methods[0]
        return planned(methods, *args, **options)

    monkeypatch.setattr(stages, "comparison_plan", watched)
    monkeypatch.setattr(learned, "constant_runs", lambda run: given.append(run.task_list) or fit(run))
    for name in ("metafqi", "single"):
        method_results(listed, [name])
        sources = {source.use: source for source in seen[name].shaped_by}
        np.testing.assert_array_equal(sources["trained"].contexts, TASKS)
        assert "selected" not in sources or sources["selected"].contexts is None
    np.testing.assert_array_equal(given[0], TASKS)
    contexts = np.concatenate([block.context for block in Dataset.open(listed.data_folder).blocks()])
    assert {tuple(row) for row in contexts.tolist()} == {tuple(row) for row in TASKS.tolist()}


def test_a_listed_task_is_not_a_test_task(listed: Run) -> None:
    overlapping = np.asarray(listed.mdp.tasks(listed.config.seed, Stream.TEST, 0).context)[:1]
    folder = Run(listed.path, listed.config, overlapping)
    for name in ("metafqi", "single"):
        folder.result_file(name).unlink(missing_ok=True)
        with pytest.raises(InputError, match="which is also one of the tasks to judge it on"):
            method_results(folder, [name])


def test_only_results_of_the_same_settings_are_joined(listed: Run) -> None:
    first = compare([Method("fixed", NGA(), Fixed(0.5))], listed.mdp, seed=0, num_updates=2, num_tasks=4)
    mdp, others = first.settings["mdp"], (first.methods[0]._replace(name="other"),)

    def changed(context: Any = first.context, **settings: Any) -> Comparison:
        return dataclasses.replace(first, methods=others, context=context, settings=first.settings | settings)

    for other, words in (
        (changed(num_updates=3), "num_updates = 2, other with 3"),
        (changed(mdp=mdp | {"estimator": mdp["estimator"] | {"damping": 0.5}}), "mdp.estimator.damping = "),
        (changed(versions=first.settings["versions"] | {"device": "gpu"}), "versions.device = "),
        (changed(first.context + 1.0), "other was compared on other tasks"),
    ):
        with pytest.raises(InputError, match=words):
            join([first, other])
    # What a model sees is its own affair: two models with different observations may stand side by side.
    blind = mdp | {"observation": ["theta", "natural_gradient"], "meta_discount": 0.5}
    assert join([first, changed(mdp=blind)]).names == ("fixed", "other")


def test_without_a_learned_method_nothing_is_collected(tmp_path: Path) -> None:
    log = ["meta.stepsize_scale=log", "meta.stepsize_low=0.1"]
    folder = make_folder(tmp_path / "run", *log, 'compare.methods=["fixed", "adam"]')
    fqi = build_fqi(folder.config, folder.mdp.space)
    assert (fqi.stepsize_low, fqi.stepsize_high, fqi.stepsize_scale, fqi.menu) == (0.1, 8.0, "log", None)
    folder.run_all()
    assert folder.report_file.exists()
    assert not folder.data_folder.exists()
    assert not folder.model_file.exists()


def test_no_byte_of_a_run_depends_on_the_number_of_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for cores in (1, 3):
        monkeypatch.setattr(parallel, "_limit", cores)
        folder = make_folder(tmp_path / str(cores), 'compare.methods=["metafqi", "fixed", "adam", "hoof", "single"]')
        folder.run_all()
        names = ("model", "validation", "comparison")
        files = [*(folder.path / f"{name}.safetensors" for name in names), *sorted((folder.path / "results").iterdir())]
        found.append({file.name: file.read_bytes() for file in (*files, *folder.data_folder.iterdir())})
    assert found[0] == found[1]
    assert len(found[0]) == 8 + 4


def test_verbs_one_by_one_give_the_same_files(whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    monkeypatch.setattr(sys, "argv", ["metastep", "collect", "nav2d", "--cores=3"])
    assert "48 tuples in 3 blocks" in invoke("collect", "nav2d", "--out", folder, *WORDS).stdout
    assert "48 tuples in 3 blocks" in invoke("collect", folder).stdout  # a run goes on by its folder, as it is
    assert "whose settings stay" in refused(invoke("collect", folder, "--seed", 3))
    assert "N = 1: mean return over the updates" in invoke("fit", folder).stdout
    for stage in ("compare", "report"):
        assert invoke(stage, folder).exit_code == 0
    for name in ("model", "validation", "comparison", "results/adam"):
        ours, theirs = (path / f"{name}.safetensors" for path in (folder, whole.path))
        assert ours.read_bytes() == theirs.read_bytes()
    commands = ["metastep collect nav2d", *(f"metastep {it} {folder}" for it in ("fit", "compare", "report"))]
    assert "\n".join(commands) in (folder / "report.md").read_text()
    # A description is whole or none.
    assert "nowhere.csv" in refused(invoke("inspect", folder, "--coverage", tmp_path / "nowhere.csv"))


def test_a_run_in_which_every_tuple_is_flagged_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    free = "env={name='lqr', options={state_cost=[0.0, 0.0], action_cost=0.0}}"  # whatever is done, the return is 0
    folder = make_folder(tmp_path / "run", free, 'compare.methods=["metafqi", "fixed"]', "initial.mean=0.0")
    folder.run_all()
    print_outcome(folder)
    sentence = "Every one of the 48 training tuples is flagged"
    assert sentence in capsys.readouterr().out
    assert sentence in folder.report_file.read_text()
    assert "distinguishable from" not in folder.report_file.read_text()


def test_data_without_a_finite_tuple_are_not_fitted(tmp_path: Path) -> None:
    # The square of so small a sigma is zero in float32, so that no natural gradient is finite.
    folder = make_folder(tmp_path / "run", "policy.sigma=1e-30")
    folder.collect()
    with pytest.raises(InputError, match="each of the tuples holds a number that is not finite"):
        fit_and_select(folder)
