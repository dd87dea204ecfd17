"""Every figure and table of the paper at a tiny scale, and the judgement behind the verdicts."""

import csv
import dataclasses
import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest

from metastep import InputError
from metastep.evaluation import Comparison, MethodRecord, load, save
from metastep.experiments.build import build_env
from metastep.experiments.config import load as load_config
from metastep.report.tables import number
from paper.ablations import run_in_one_task
from paper.claims import beats_every, gain, paired, small
from paper.columns import handful, shown
from paper.comparisons import final_gain
from paper.environments import USUAL
from paper.iterations import best_validated
from paper.outcome import Effect, Outcome, at_most, better, no_better, together, within
from paper.registry import IDS, REGISTRY, resolve
from paper.results import results_markdown
from paper.robust import has_random_states, spread_difference, standard_deviation
from paper.runner import check_reproduction, command_of, reproduce
from paper.workbench import PresetRun, Workbench

CHEETAHS = {
    "fig2",
    "fig3",
    "fig-iterations",
    "table1",
    "fig-context",
    "fig-robust",
    "fig-fixed-context",
    "fig-single-action",
    "facts",
}
VERDICTS = {"holds", "does not hold", "not distinguishable"}


# All but the facts, which take as long as all figures and are made for HalfCheetah below.
FIGURES = [name for name in IDS if REGISTRY[name].is_in_all and name != "facts"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Every figure at the tiny scale: the folder and the outcomes."""
    out = tmp_path_factory.mktemp("paper")
    return out, reproduce(FIGURES, out, "tiny", seed=3)


class Watch:
    """Remembers which stages were opened."""

    def __init__(self):
        self.stages = []

    @contextmanager
    def stage(self, name, total, unit):
        self.stages.append(name)
        yield SimpleNamespace(advance=lambda amount: None)


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
    assert ElementTree.parse(folder / f"{name}.svg").getroot().tag.endswith("svg")
    assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    tables = [*folder.glob("*.csv"), *folder.glob("*.parquet")]
    assert tables
    for path in folder.glob("*.csv"):
        with path.open(newline="") as file:
            assert len(list(csv.DictReader(file))) >= 1
    for path in folder.glob("*.parquet"):
        assert pq.read_table(path).num_rows > 0


def test_all_rows_are_collected_in_one_table(made):
    out, outcomes = made
    assert [outcome.id for outcome in outcomes] == sorted((o.id for o in outcomes), key=IDS.index)
    assert [Outcome(**row) for row in json.loads((out / "results.json").read_text())] == outcomes
    text = (out / "results.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(outcomes)
    columns = lines[0].count(" | ")
    for line, outcome in zip(lines[2:], outcomes, strict=True):
        assert line.count(" | ") == columns
        assert outcome.claim in line
        assert outcome.measured() in line
        assert f"**{outcome.verdict}**" in line
        assert f"`{outcome.command}`" in line
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
        assert f"`{outcome.command}`" in text
    for title in ("Nav2D", "SwingUp", "HalfCheetah"):
        assert f"## {title}\n" in text
    assert "metaFQI minus it, AUC" in text
    fixed = next(line for line in text.splitlines() if line.startswith("| fixed step | stepsize "))
    assert fixed.count("[") == 5  # both metrics, the interquartile mean, the difference and its probability
    assert "tuned at an edge of its grid" in text
    assert str(out.parent) not in text


def test_a_page_needs_results(made, tmp_path):
    with pytest.raises(InputError, match=r"was written neither by `python -m paper reproduce` nor by `metastep run`"):
        results_markdown([tmp_path])
    (tmp_path / "results.json").write_text('{"claim": 1}')
    with pytest.raises(InputError, match=r"results.json was not written by `python -m paper reproduce`"):
        results_markdown([tmp_path])
    run = made[0] / "runs" / "swingup"
    assert "## SwingUp\n" in results_markdown([run])  # a run of its own has no claims


def test_what_is_there_is_not_computed_again(made):
    out, outcomes = made
    times = {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*") if path.is_file()}
    watch = Watch()
    assert reproduce(["fig2", "theory", "fig1"], out, "tiny", 3, watch) == [
        outcome for outcome in outcomes if outcome.id in ("fig1", "fig2", "theory")
    ]
    assert watch.stages == []
    # The rows of ids that were not asked for stay in the table.
    assert [Outcome(**row) for row in json.loads((out / "results.json").read_text())] == outcomes

    before = {path.name: path.read_bytes() for path in (out / "fig-iterations").iterdir()}
    (out / "fig-iterations" / "outcome.json").unlink()
    reproduce(["fig-iterations"], out, "tiny", 3, watch)
    assert watch.stages == []  # drawn again from what the runs hold
    assert {path.name: path.read_bytes() for path in (out / "fig-iterations").iterdir()} == before
    assert {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*") if path.is_file()} == times


def test_a_lost_result_is_made_again_and_nothing_else(made):
    out, _ = made
    lost = out / "runs" / "cartpole" / "results" / "decay.safetensors"  # geometric decay is not of the preset
    before = lost.read_bytes()
    lost.unlink()
    (out / "fig-decay" / "outcome.json").unlink()
    watch = Watch()
    reproduce(["fig-decay"], out, "tiny", 3, watch)
    assert watch.stages == ["cartpole: compare decay"]
    assert lost.read_bytes() == before


def wrong(folder):
    """What `python -m paper check` finds wrong, by the file's place."""
    return {str(path.relative_to(folder)): problem for path, problem in check_reproduction(folder) if problem}


def test_a_whole_reproduction_is_checked(made, tmp_path):
    out, _ = made
    assert wrong(out) == {}
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    with (copy / "results.md").open("a") as page:
        page.write("and more\n")
    assert list(wrong(copy)) == ["results.md"]
    extra = copy / "runs" / "cartpole" / "extra"
    (extra / "robust-double-0.safetensors").replace(extra / "spare")
    (extra / "robust-double-1.safetensors").replace(extra / "robust-double-0.safetensors")
    (extra / "spare").replace(extra / "robust-double-1.safetensors")
    (copy / "fig3" / "fig3.svg").write_text("<svg/>")
    (copy / "fig2" / "outcome.txt").unlink()
    (copy / "notes.txt").write_text("mine")
    shutil.copy(copy / "fig1" / "outcome.json", copy / "theory" / "outcome.json")
    found = wrong(copy)
    for state in (0, 1):
        assert "is not in its own place" in found[f"runs/cartpole/extra/robust-double-{state}.safetensors"]
    assert "damaged or was edited" in found["fig3/fig3.svg"]
    assert found["fig2/outcome.txt"] == "is missing."
    assert found["notes.txt"] == "was not written by `python -m paper reproduce`."
    assert "belongs to another id" in found["theory/outcome.json"]
    (copy / "fig-robust" / "outcome.json").unlink()
    with pytest.raises(InputError, match="is not in its own place"):
        reproduce(["fig-robust"], copy, "tiny", 3)
    (copy / "settings.json").write_text((copy / "settings.json").read_text().replace('"seed": 3', '"seed": 4'))
    with pytest.raises(InputError, match=r"belongs to another id or to other settings"):
        reproduce(["fig1"], copy, "tiny", 4)


def test_a_folder_belongs_to_one_setting(made, tmp_path):
    out, _ = made
    with pytest.raises(InputError, match=r"seed = 3, which is now 4; use another folder"):
        reproduce(["fig1"], out, "tiny", 4)
    with pytest.raises(InputError, match=r"overrides = \[\], which is now \[\"fqi.regressor.trees=2\"\]"):
        reproduce(["fig2"], out, "tiny", 3, overrides=["fqi.regressor.trees=2"])
    with pytest.raises(InputError, match=r"scale: 'huge' must be one of quick, full, tiny"):
        reproduce(["fig1"], tmp_path, "huge")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file, a folder is needed"):
        reproduce(["fig1"], tmp_path / "file", "tiny")


@pytest.mark.parametrize(
    ("ids", "override", "words"),
    [
        (["fig2"], "fqi.trees=2", r"^fqi.trees: is not a setting, did you mean 'fqi.regressor.trees'\?$"),
        (["theory", "fig-swingup"], "fqi.tree=2", r"^fqi.tree: is not a setting"),
        (["fig-cartpole60"], "env.options.forc=continuous", r"forc"),
        (["fig2"], "initial={mean=[0, 0]}", r"^initial.variance: None must be set"),
        (["fig2"], "initial={mean=[0, 0],variance=1}", r"^initial.mean: \[0.0, 0.0\] must hold one number, or one for"),
        (
            ["theory", "fig1"],
            "fqi.regressor.trees=2",
            r"^--set: 'fqi.regressor.trees=2' changes nothing, no preset is run for fig1, theory\.$",
        ),
    ],
)
def test_a_wrong_override_leaves_no_folder(tmp_path, ids, override, words):
    with pytest.raises(InputError, match=words):
        reproduce(ids, tmp_path / "paper", "tiny", overrides=[override])
    assert not (tmp_path / "paper").exists()


def test_commands_name_overrides_only_where_there_is_a_preset(tmp_path):
    bench = Workbench(tmp_path, "tiny", 0, ("fqi.regressor.trees=2",))
    without = dataclasses.replace(bench, environments=REGISTRY["theory"].usual)
    assert command_of("theory", without, named=False) == "python -m paper reproduce theory --scale tiny --seed 0"
    assert command_of("fig2", bench, named=False).endswith("--set fqi.regressor.trees=2")


def test_the_presets_of_ids_without_a_choice_are_known(made):
    out, _ = made
    own = {name: entry.usual for name, entry in REGISTRY.items() if not entry.environments}
    assert own == {"fig1": (), "fig-swingup": ("swingup",), "fig-cartpole60": ("cartpole",), "theory": ()}
    runs = {path.name for path in (out / "runs").iterdir()}
    assert {preset for presets in own.values() for preset in presets} <= runs


def test_ids():
    assert tuple(resolve(["all"])) == tuple(name for name in IDS if REGISTRY[name].is_in_all)
    assert tuple(resolve(["theory", "fig3", "fig3"])) == ("fig3", "theory")
    with pytest.raises(InputError, match="'fig4' does not exist, did you mean 'fig"):
        resolve(["fig4"])
    with pytest.raises(InputError, match="none was given"):
        resolve([])


def test_environments_of_an_id():
    assert resolve(["fig2"]) == {"fig2": USUAL}
    assert resolve(["fig-robust"]) == {"fig-robust": ("cartpole",)}
    assert resolve(["fig3"], ["halfcheetah", "nav2d"]) == {"fig3": ("nav2d", "halfcheetah")}
    assert set(resolve(["all"], ["halfcheetah"])) == CHEETAHS
    assert set(resolve(["all"], ["swingup"])) == {"fig-context", "fig-fixed-context", "fig-single-action", "facts"}
    assert set(resolve(["all"], ["minigolf"])) & {"fig1", "theory", "fig-robust"} == set()
    with pytest.raises(InputError, match=r"env: 'halfcheeta' must be one of .*, did you mean 'halfcheetah'\?"):
        resolve(["fig2"], ["halfcheeta"])
    with pytest.raises(InputError, match=r"fig-decay cannot be made for halfcheetah, allowed is nav2d, minigolf, cart"):
        resolve(["fig-decay"], ["halfcheetah"])
    with pytest.raises(InputError, match=r"fig1 cannot be made for nav2d, allowed is none by name"):
        resolve(["fig1"], ["nav2d"])


@pytest.fixture(scope="module")
def cheetah(tmp_path_factory):
    """Everything that can be made for HalfCheetah, at the tiny scale: the folder and the outcomes."""
    out = tmp_path_factory.mktemp("cheetah")
    return out, reproduce(["all"], out, "tiny", environments=["halfcheetah"])


def test_halfcheetah_has_its_figures(cheetah):
    out, outcomes = cheetah
    assert {outcome.id for outcome in outcomes} == CHEETAHS
    assert {outcome.environment for outcome in outcomes} == {"HalfCheetah"}
    assert outcomes[0].command == "python -m paper reproduce fig2 --scale tiny --seed 0 --env halfcheetah"
    for name in ("fig2", "fig3", "fig-iterations", "fig-robust"):
        drawing = (out / name / f"{name}.svg").read_text()
        assert "mean return gain" in drawing
    with pytest.raises(
        InputError, match=r"holds results with environments = \[\"halfcheetah\"\], which is now not set"
    ):
        reproduce(["fig2"], out, "tiny")


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


def test_the_final_gain_is_that_of_the_last_tenth():
    returns = np.tile(np.arange(41.0), (2, 1)) + np.array([[0.0], [100.0]])  # 40 updates: the last four are 37 to 40
    assert final_gain(returns).tolist() == [38.5, 38.5]
    assert final_gain(returns[:, :3]).tolist() == [2.0, 2.0]


def test_an_oracle_of_another_machine_is_not_drawn_beside(cheetah, tmp_path):
    out, _ = cheetah
    shutil.copytree(out, tmp_path / "copy")
    file = tmp_path / "copy" / "runs" / "halfcheetah" / "extra" / "known-task.safetensors"
    kept = load(file)
    versions = kept.settings["versions"] | {"device": "another"}
    save(file, dataclasses.replace(kept, settings=kept.settings | {"versions": versions}))
    (tmp_path / "copy" / "fig2" / "outcome.json").unlink()
    with pytest.raises(InputError, match=r'known task with "another"; only results of the same settings'):
        reproduce(["fig2"], tmp_path / "copy", "tiny", environments=["halfcheetah"])


def test_figure_2_shows_halfcheetah_for_as_long_as_it_was_trained(tmp_path):
    reproduce(["fig2"], tmp_path, "tiny", overrides=["meta.num_updates=6"], environments=["halfcheetah"])
    extra = tmp_path / "runs" / "halfcheetah" / "extra"
    shown, known = load(extra / "longer.safetensors"), load(extra / "known-task.safetensors")
    assert shown.names[:2] == ("metafqi", "fixed")
    assert shown.returns.shape[2] == 6 + 1  # compare.num_updates is 2
    assert known.returns.shape[2] == 2 * 6 + 1  # twice what is shown, since five times 2 is less


def test_gains_leave_differences_as_they_are(run):
    rng = np.random.default_rng(0)
    comparison = comparison_of(a=curves(rng, 2.0), b=curves(rng, 1.0))
    assert shown(run, comparison) == (comparison, "mean return", "")
    drawn, quantity, note = shown(run_of("halfcheetah"), comparison)
    assert (quantity, note) == ("mean return gain", "HalfCheetah: gain over the first return.")
    assert (drawn.returns[:, :, 0] == 0.0).all()
    kept, moved = comparison.returns[0] - comparison.returns[1], drawn.returns[0] - drawn.returns[1]
    assert np.allclose(kept, moved, atol=1e-5)


def test_overrides_reach_every_preset(tmp_path):
    bench = Workbench(tmp_path, "full", 7, ("rollout.block_size=3200",))
    for env in (*USUAL, "swingup"):
        config = bench.config(env)
        assert config == load_config(env, "full", ["rollout.block_size=3200", "seed=7"])
        assert config.rollout.block_size == 3200


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
    out, _ = made
    updates = pq.read_table(out / "fig-cartpole60" / "cartpole.parquet")["update"].to_numpy()
    assert updates.max() == 4 * 2
    long_config = load_config("cartpole", "full")
    assert 4 * long_config.compare.num_updates == 60


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


# Judgement, on numbers whose answer is known.


def comparison_of(**returns):
    """Methods with the given (tasks, updates + 1) returns."""
    num_tasks, points = next(iter(returns.values())).shape
    num = len(returns)
    return Comparison(
        methods=tuple(MethodRecord(name, name, "", "nga", "x", {}, False) for name in returns),
        context_names=("c",),
        context=np.zeros((num_tasks, 1), np.float32),
        returns=np.stack([values.astype(np.float32) for values in returns.values()]),
        hyperparameters=np.zeros((num, num_tasks, points - 1, 1), np.float32),
        direction=np.zeros((num, num_tasks, points - 1), np.int8),
        flagged=np.zeros((num, num_tasks, points), np.bool_),
        num_steps=np.ones((num, num_tasks)),
        theta=np.zeros((num, num_tasks, 1), np.float32),
    )


def run_of(preset, scale="quick"):
    """A run of which only the settings are asked."""
    bench = Workbench(Path("nowhere"), scale, 0, ("compare.num_resamples=2000",))
    return PresetRun(preset, bench.out, bench.config(preset), bench)


@pytest.fixture
def run():
    return run_of("nav2d")


def curves(rng, gain_of_a_task, num_tasks=40):
    """Curves that start anywhere and gain, at once, `gain_of_a_task` plus noise that differs between methods."""
    start = np.linspace(-5.0, 5.0, num_tasks)
    noise = rng.normal(scale=0.1, size=num_tasks)
    return np.stack([start, start + gain_of_a_task + noise, start + gain_of_a_task + noise], axis=1)


@pytest.mark.parametrize(
    ("others", "verdict", "hardest"),
    [
        ((1.0, 1.5), "holds", "b"),
        ((1.0, 2.5), "does not hold", "b"),
        ((1.0, 2.0), "not distinguishable", "b"),
        ((3.0, 1.0), "does not hold", "a"),
    ],
)
def test_better_than_every_one(run, others, verdict, hardest):
    rng = np.random.default_rng(1)
    comparison = comparison_of(metafqi=curves(rng, 2.0), a=curves(rng, others[0]), b=curves(rng, others[1]))
    outcome, rows = beats_every(run, comparison, "metafqi", ["a", "b"], "claim")
    assert outcome.verdict == verdict
    assert outcome.effect == pytest.approx(2.0 - max(others), abs=0.1)
    assert outcome.low < outcome.effect < outcome.high
    assert outcome.environment == "Nav2D"
    assert outcome.num == 40
    assert f"against the hardest, {hardest}" in outcome.detail
    assert {row.baseline for row in rows} == {"a", "b"}
    assert gain(comparison, "metafqi") == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize(
    ("other", "judge", "verdict"),
    [
        (2.0, within, "holds"),
        (1.9, within, "holds"),  # different for certain, but by less than a tenth of the gain
        (1.0, within, "does not hold"),
        (3.0, within, "does not hold"),
        (1.8, within, "not distinguishable"),
        (3.0, at_most, "holds"),
        (1.0, at_most, "does not hold"),
        (1.9, no_better, "does not hold"),
        (3.0, no_better, "holds"),
    ],
)
def test_alike(run, other, judge, verdict):
    rng = np.random.default_rng(1)
    comparison = comparison_of(metafqi=curves(rng, 2.0), other=curves(rng, other))
    outcome, _ = small(run, comparison, paired(run, comparison, "metafqi", ["other"]), "claim", judge)
    assert outcome.effect == pytest.approx(2.0 - other, abs=0.1)
    assert outcome.verdict == verdict


def effect(low, high, verdict=None):
    """An effect that differs from 0 where its interval says so."""
    told = "better" if low > 0.0 else "worse" if high < 0.0 else "not distinguishable"
    return Effect((low + high) / 2.0, low, high, verdict or told)


def test_judges():
    assert together(["holds", "holds"]) == "holds"
    assert together(["holds", "does not hold", "not distinguishable"]) == "does not hold"
    assert together(["holds", "not distinguishable"]) == "not distinguishable"
    assert together([]) == "not distinguishable"
    assert [better(effect(*interval)) for interval in ((1, 2), (-2, -1), (-1, 1))] == [
        "holds",
        "does not hold",
        "not distinguishable",
    ]
    assert [at_most(effect(*interval), 1.0) for interval in ((0, 1), (2, 3), (0, 2))] == [
        "holds",
        "does not hold",
        "not distinguishable",
    ]
    assert within(effect(-0.5, 1.5), 1.0) == "not distinguishable"
    assert within(effect(-3.0, -2.0), 1.0) == "does not hold"
    assert no_better(effect(-1.0, 2.0), 1.0) == "not distinguishable"
    assert no_better(effect(-1.0, 0.5), 1.0) == "holds"


@pytest.mark.parametrize("judge", [within, at_most, no_better])
def test_what_is_not_distinguishable_from_zero_refutes_nothing(judge):
    # The interval alone would say so, the corrected p-value does not.
    assert judge(effect(2.0, 3.0, "not distinguishable"), 1.0) == "not distinguishable"


def test_the_effect_shown_is_one_that_decides(run):
    rng = np.random.default_rng(1)
    noise = rng.normal(scale=5.0, size=(40, 1))
    noisy = curves(rng, 2.3) + np.array([0.0, 1.0, 1.0]) * (noise - noise.mean())
    comparison = comparison_of(metafqi=curves(rng, 2.0), worse=curves(rng, 2.1), noisy=noisy)
    outcome, rows = beats_every(run, comparison, "metafqi", ["worse", "noisy"], "claim")
    assert [row.verdict for row in rows] == ["worse", "not distinguishable"]
    assert rows[1].mean < rows[0].mean
    assert outcome.verdict == "does not hold"
    assert outcome.effect == rows[0].mean
    assert outcome.high < 0.0


def test_random_states_are_judged_where_all_of_them_are_there(tmp_path):
    run = Workbench(tmp_path, "tiny", 3).run("cartpole")
    (run.path / "extra").mkdir(parents=True)
    for kind in ("double", "single"):
        for state in range(5):
            assert not has_random_states(run)
            (run.path / "extra" / f"robust-{kind}-{state}.safetensors").touch()
    assert has_random_states(run)


def test_spread_over_random_states():
    values = np.random.default_rng(0).normal(scale=2.0, size=(2000, 5))
    intervals = np.array([standard_deviation(row)[1:3] for row in values])
    covered = ((intervals[:, 0] <= 2.0) & (intervals[:, 1] >= 2.0)).mean()
    assert covered == pytest.approx(0.95, abs=0.02)


def test_spread_over_tasks():
    rng = np.random.default_rng(0)
    base = rng.normal(size=60)
    wide = spread_difference(3.0 * base, base, seed=0, num_resamples=1000)
    assert wide.mean == pytest.approx(2.0 * base.std(ddof=1))
    assert wide.verdict == "better"
    assert spread_difference(base, 3.0 * base, seed=0, num_resamples=1000).verdict == "worse"
    other = rng.normal(size=60)
    assert spread_difference(base, other, seed=0, num_resamples=1000).verdict == "not distinguishable"


def test_iterations_are_chosen_by_validation_alone():
    curves_ = [SimpleNamespace(iteration=i, score=score) for i, score in ((1, 0.5), (2, 0.1), (3, 0.4), (4, 0.45))]
    model = SimpleNamespace(record=SimpleNamespace(validation=curves_))
    assert best_validated(model, range(1, 5)) == 1
    assert best_validated(model, range(2, 5)) == 4
    assert best_validated(model, range(2, 6)) == 4  # 5 diverged on the validation tasks: it has no score


def test_one_iteration_cannot_be_compared(tmp_path):
    with pytest.raises(InputError, match=r"fqi.iterations: 1 must be at least 2"):
        reproduce(["fig-iterations"], tmp_path, "tiny", overrides=["fqi.iterations=1"])


@pytest.mark.parametrize("must", [[0.25], [5.0], [3.0, 6.0], [7.7]])
def test_a_handful_of_steps(must):
    grid = [0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0]
    shown = handful(grid, must)
    assert shown == sorted(shown)
    assert {*must} <= {*shown} <= {*grid, *must}
    assert 3 <= len(shown) <= 5
    assert {0.25, 8.0} <= {*shown}
    assert handful([1.0, 2.0], [2.0]) == [1.0, 2.0]


def test_numbers_are_short():
    assert [number(value) for value in (0.12345, -1.0, 12.345, 123.4, -0.00001)] == [
        "0.123",
        "\N{MINUS SIGN}1",
        "12.3",
        "123",
        "\N{MINUS SIGN}1e\N{MINUS SIGN}05",
    ]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("[1.0]", r"env.fixed_context: \[1.0\] must hold one number for each of pole_mass, pole_length"),
        ("[9.0, 1.0]", r"pole_mass = 9, allowed is \[0.1, 2\]"),
        ("3", "env.fixed_context: 3 must be a list"),
    ],
)
def test_a_fixed_context_must_be_a_task_of_the_family(values, message):
    with pytest.raises(InputError, match=message):
        build_env(load_config("cartpole", "quick", [f"env.fixed_context={values}"]))
