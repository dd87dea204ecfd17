"""Every figure and table of the paper at a tiny scale: files, resuming, checking, refusals."""

import csv
import json
import re
import shutil
import xml.etree.ElementTree as ElementTree

import numpy as np
import pyarrow.parquet as pq
import pytest

from metastep import InputError
from metastep.evaluation import load
from metastep.experiments.config import load as load_config
from metastep.report.tables import number
from paper.ablations import run_in_one_task
from paper.comparisons import final_gain
from paper.environments import USUAL
from paper.outcome import Outcome
from paper.registry import IDS, REGISTRY
from paper.results import results_markdown
from paper.runner import check_reproduction, reproduce
from paper.tests.test_runner import CHEETAHS
from paper.workbench import Workbench

pytestmark = pytest.mark.paper
VERDICTS = {"holds", "does not hold", "not distinguishable"}
# All but the facts, which take as long as all figures and are made for HalfCheetah below.
FIGURES = [name for name in IDS if REGISTRY[name].is_in_all and name != "facts"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Every figure at the tiny scale: the folder and the outcomes."""
    out = tmp_path_factory.mktemp("paper")
    return out, reproduce(FIGURES, out, "tiny", seed=3)


@pytest.mark.parametrize("name", FIGURES)
def test_an_id_leaves_figure_data_and_outcomes(made, name):
    out, outcomes = made
    folder, rows = out / name, [outcome for outcome in outcomes if outcome.id == name]
    assert rows
    for outcome in rows:
        assert outcome.verdict in VERDICTS
        assert outcome.num >= 2
        assert np.isfinite(outcome.effect)
        if outcome.low is not None:
            assert outcome.low <= outcome.effect <= outcome.high
        assert outcome.command == f"python -m paper reproduce {name} --scale tiny --seed 3"
    record = json.loads((folder / "outcome.json").read_text())
    assert [Outcome(**row) for row in record["outcomes"]] == rows
    assert (folder / "outcome.txt").read_text().splitlines() == [outcome.line() for outcome in rows]
    if name != "table1":  # which is a table
        assert ElementTree.parse(folder / f"{name}.svg").getroot().tag.endswith("svg")
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    rows = [pq.read_table(path).num_rows for path in folder.glob("*.parquet")]
    rows += [len(path.read_text().splitlines()) - 1 for path in folder.glob("*.csv")]
    assert min(rows) >= 1


def test_all_rows_are_collected_in_one_table(made):
    out, outcomes = made
    assert [outcome.id for outcome in outcomes] == sorted((o.id for o in outcomes), key=IDS.index)
    assert [Outcome(**row) for row in json.loads((out / "results.json").read_text())] == outcomes
    text = (out / "results.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("|")]
    for line, outcome in zip(lines[2:], outcomes, strict=True):
        assert line.count(" | ") == lines[0].count(" | ")
        for part in (outcome.claim, outcome.measured(), outcome.verdict, outcome.command):
            assert part in line
    for picture in re.findall(r"\]\((.+\.svg)\)", text):
        assert (out / picture).exists()


def test_one_page_shows_claims_and_methods_of_several_folders(made, cheetah):
    (out, outcomes), (running, more) = made, cheetah
    text = results_markdown([out, running])
    for what, is_fact in (("claims", False), ("facts of the paper", True)):
        verdicts = [outcome.verdict for outcome in [*outcomes, *more] if (outcome.id == "facts") == is_fact]
        assert f"Of {len(verdicts)} {what} {verdicts.count('holds')} hold" in text
    for outcome in [*outcomes, *more]:
        assert f"| {outcome.claim} |" in text
        assert f"| {outcome.command} |" in text
    for title in ("Nav2D", "SwingUp", "HalfCheetah"):
        assert f"## {title}\n" in text
    assert "metaFQI minus it, AUC" in text
    rows = [line for line in text.splitlines() if line.startswith("| fixed step | ")]
    assert {line.count("[") for line in rows} >= {2, 3}  # metrics; the difference and its probability
    assert "tuned at an edge of its grid" in text
    assert str(out.parent) not in text


def test_a_file_in_another_place_is_found(made, tmp_path):
    out, _ = made
    assert [problem for _, problem in check_reproduction(out) if problem] == []
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    extra = copy / "runs" / "cartpole" / "extra"
    shutil.copy(extra / "robust-double-1.safetensors", extra / "robust-double-0.safetensors")
    found = {str(path.relative_to(copy)): problem for path, problem in check_reproduction(copy) if problem}
    assert "is not in its own place" in found["runs/cartpole/extra/robust-double-0.safetensors"]
    (copy / "fig-robust" / "outcome.json").unlink()
    with pytest.raises(InputError, match="is not in its own place"):
        reproduce(["fig-robust"], copy, "tiny", 3)


@pytest.fixture(scope="module")
def cheetah(tmp_path_factory):
    """Everything that can be made for HalfCheetah, at the tiny scale: the folder and the outcomes."""
    out = tmp_path_factory.mktemp("cheetah")
    return out, reproduce(["all"], out, "tiny", environments=["halfcheetah"])


def test_halfcheetah_has_its_figures(cheetah):
    out, outcomes = cheetah
    assert {outcome.id for outcome in outcomes} == CHEETAHS
    assert {outcome.environment for outcome in outcomes} == {"HalfCheetah"}
    for name in ("fig2", "fig3", "fig-iterations", "fig-robust"):
        assert "mean return gain" in (out / name / f"{name}.svg").read_text()


def test_the_known_task_oracle_trains_five_times_as_long_on_the_test_tasks(cheetah):
    out, outcomes = cheetah
    extra = out / "runs" / "halfcheetah"
    long, short = load(extra / "extra" / "known-task.safetensors"), load(extra / "results" / "fixed.safetensors")
    assert long.returns.shape == (1, 4, 5 * 2 + 1)
    assert np.array_equal(long.context, short.context)
    assert np.array_equal(long.returns[:, :, :3], short.returns)  # the same learners, for longer
    reached = final_gain(long.returns[0].astype(np.float64)).mean()
    assert f"10 updates on the known task gain {number(reached)} [" in outcomes[0].detail
    assert "oracle, 10 updates" in (out / "fig2" / "fig2.svg").read_text()


def test_figure_2_shows_halfcheetah_for_as_long_as_it_was_trained(tmp_path):
    reproduce(["fig2"], tmp_path, "tiny", overrides=["meta.num_updates=6"], environments=["halfcheetah"])
    extra = tmp_path / "runs" / "halfcheetah" / "extra"
    shown, known = load(extra / "longer.safetensors"), load(extra / "known-task.safetensors")
    assert shown.names[:2] == ("metafqi", "fixed")
    assert shown.returns.shape[2] == 6 + 1  # compare.num_updates is 2
    assert known.returns.shape[2] == 2 * 6 + 1  # twice what is shown, since five times 2 is less


def test_tuned_values_are_kept_for_more_updates(tmp_path):
    [outcome] = reproduce(["longer"], tmp_path, "tiny", overrides=["meta.num_updates=3"], environments=["halfcheetah"])
    folder = tmp_path / "runs" / "halfcheetah"
    shown, fixed = load(folder / "extra" / "more-updates.safetensors"), load(folder / "results" / "fixed.safetensors")
    assert shown.names == ("metastep", "metafqi", "fixed", "kl-adaptive", "metagrad")
    assert shown.methods[2].values == fixed.methods[0].values
    assert shown.returns.shape[2] == fixed.returns.shape[2] + 1 == 3 + 1  # compare.num_updates is 2
    np.testing.assert_array_equal(shown.returns[2, :, :3], fixed.returns[0])  # the same learners, for longer
    assert outcome.id == "longer"


def test_fixed_context_runs_have_one_task_but_different_first_policies(made):
    out, _ = made
    bench = Workbench(out, "tiny", 3)
    tasks = {env: run_in_one_task(bench, env).config.env.fixed_context for env in USUAL}
    for env, task in tasks.items():
        comparison = load(out / "runs" / f"{env}-one-task" / "results" / "metafqi.safetensors")
        wanted = np.asarray(task, np.float32)
        assert np.array_equal(comparison.context, np.tile(wanted, (comparison.num_tasks, 1)))
        if env != "cartpole":  # where no pole falls within so short an episode
            assert len(np.unique(comparison.returns[0, :, 0])) > 1
    assert tasks["cartpole"] == (1.05, 1.0)
    assert tasks["nav2d"] == (0.25, 0.25)  # the centre is where the learner starts


def test_the_long_test_is_four_times_as_long_as_the_training(made):
    updates = pq.read_table(made[0] / "fig-cartpole60" / "cartpole.parquet")["update"].to_numpy()
    assert updates.max() == 4 * 2
    assert 4 * load_config("cartpole", "full").compare.num_updates == 60


def test_the_tuned_values_stand_beside_the_papers(made):
    out, _ = made
    with (out / "table1" / "table1.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    paper = {(row["environment"], row["method"], row["parameter"]): float(row["paper"]) for row in rows}
    assert len(paper) == 15
    assert paper["nav2d", "metagrad", "beta"] == 0.001
    assert paper["minigolf", "adam", "stepsize"] == 0.08
    assert paper["cartpole", "decay", "alpha"] == 7.5
    for row in rows:
        assert float(row["score_tuned"]) >= float(row["score_paper"])  # both on the tuning tasks
