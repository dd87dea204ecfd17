"""The ids on direction and step at a tiny scale: what each of them measures; and how they judge 40 tasks."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from metastep.evaluation import metric_values, to_parquet
from metastep.experiments.config import learners_collected, updates_collected
from metastep.report.tables import number
from paper import direction, strong
from paper.claims import paired, small
from paper.direction import MODEL
from paper.outcome import at_most
from paper.registry import REGISTRY
from paper.results import over_seeds
from paper.runner import check_reproduction, reproduce
from paper.tests.synthetic import comparison_of, curve, run_of
from paper.workbench import PresetRun, Workbench

FEW = ("fixed", "rmsprop", "metafqi")
IDS = ("direction", "ablations")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """All ids on Nav2D, with fewer baselines, tuples and settings: the folder and the outcomes by id."""
    out = tmp_path_factory.mktemp("direction")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(direction, "BASELINES", FEW)
        patch.setattr(direction, "_SHOWN", FEW[1:])
        outcomes = reproduce(IDS, out, "tiny", 3, environments=["nav2d"])
    return out, {name: [outcome for outcome in outcomes if outcome.id == name] for name in IDS}


def area(out, name, env, method):
    """The mean return over the updates of a method for each test task, from the table that an id leaves."""
    table = pq.read_table(out / name / f"{env}.parquet").to_pylist()
    by_task: dict[int, list[float]] = {}
    for row in table:
        if row["method"] == method and row["update"] > 0:
            by_task.setdefault(row["task"], []).append(row["return"])
    return np.array([np.mean(values) for _, values in sorted(by_task.items())])


@pytest.mark.paper
def test_direction_is_judged_against_the_hardest_baseline(made):
    out, outcomes = made
    assert [problem for _, problem in check_reproduction(out) if problem] == []
    (outcome,) = outcomes["direction"]
    ours = area(out, "direction", "nav2d", MODEL)
    lead = min(np.mean(ours - area(out, "direction", "nav2d", name)) for name in FEW)
    assert outcome.effect == pytest.approx(lead, rel=1e-4)
    assert f"of {len(FEW)}" in outcome.detail
    caption = json.loads((out / "direction" / "outcome.json").read_text())["pictures"]["direction"]
    assert "The oracle tries every direction with 6 steps on fresh episodes." in caption  # as the quick scale has it


@pytest.mark.paper
def test_an_ablation_that_takes_nothing_away_is_left_out(made):
    out, outcomes = made
    claimed = [outcome.claim.rpartition(": ")[2] for outcome in outcomes["ablations"]]
    parts = [*direction.removed(run_of("nav2d"))]
    assert claimed == [name for name in parts if name != "no rounds"]  # one round is all there is
    assert not (out / "runs" / "nav2d-without-4").exists()
    ours = area(out, "ablations", "nav2d", MODEL)
    for outcome, name in zip(outcomes["ablations"], claimed, strict=True):
        lost = np.mean(ours - area(out, "ablations", "nav2d", name))
        assert outcome.effect == pytest.approx(lost, rel=1e-4, abs=1e-6)


class Synthetic(PresetRun):
    """A run with synthetic test results: every method gains what `GAINS` has for it or for its folder, at 40 tasks."""

    def tested(self, *names):
        gains = {name: GAINS.get(self.path.name if name == MODEL else name, 2.0) for name in names}
        seeds = {name: [*f"{self.path.name} {name}".encode()] for name in names}
        return comparison_of({name: curve(gain, seed=seeds[name]) for name, gain in gains.items()})


class SyntheticBench(Workbench):
    def run(self, preset, variant="", changes=()):
        return Synthetic(preset, self.out / (variant or preset), self.config(preset, changes), self)


GAINS = {"nav2d": 3.0, "hoof": 2.5, "without-5": 2.0, "without-6": 3.0, "without-7": 4.0, "tuples-100000": 2.0}


@pytest.mark.parametrize(
    ("name", "changed", "verdicts"),
    [
        ("direction", {}, ["holds"]),
        ("direction", {"hoof": 3.0}, ["not distinguishable"]),
        ("direction", {"hoof": 3.5}, ["does not hold"]),
        ("ablations", {}, ["holds", "not distinguishable", "does not hold"]),  # of the last three parts
    ],
)
def test_what_40_tasks_tell(name, changed, verdicts, tmp_path, monkeypatch):
    for key, gain in changed.items():
        monkeypatch.setitem(GAINS, key, gain)
    monkeypatch.setattr(direction, "learned", lambda *_: None)
    bench = SyntheticBench(tmp_path, "quick", 3, environments=("nav2d",))
    outcomes = getattr(direction, name)(bench).outcomes
    assert [outcome.verdict for outcome in outcomes[-len(verdicts) :]] == verdicts
    assert {outcome.num for outcome in outcomes} == {40}


@pytest.mark.parametrize(
    ("gain", "noise", "verdict"),
    [
        (1.95, 0.0, "holds"),  # worse for certain, by less than a tenth of what the best gains
        (1.0, 0.0, "does not hold"),
        (2.0, 3.0, "not distinguishable"),  # it might lose half of it
    ],
)
def test_a_small_loss_is_not_distinguishable_where_it_might_be_large(gain, noise, verdict):
    names = enumerate(direction.BASELINES)
    others = {name: curve(2.0 if name == "hoof" else 1.0, seed=seed) for seed, name in names}
    moved = np.random.default_rng(1).normal(scale=noise, size=(40, 1))
    ours = curve(gain, seed=20)
    ours[:, 1:] += moved - moved.mean()
    run, comparison = run_of("nav2d"), comparison_of({"ours": ours, **others})
    outcome, _ = small(run, comparison, paired(run, comparison, "hoof", ["ours"]), "Little is lost", at_most)
    assert outcome.verdict == verdict
    assert outcome.effect == pytest.approx(2.0 - gain, abs=0.1)
    assert "of the gain of hoof" in outcome.detail


@pytest.mark.paper
@pytest.mark.parametrize("name", [name for name, entry in REGISTRY.items() if not entry.is_in_all])
def test_every_id_can_be_made_for_all_of_its_environments(name, tmp_path):
    # Within 16 steps no pole falls, so that there would be nothing to learn on CartPole.
    outcomes = reproduce([name], tmp_path, "tiny", 3, overrides=["rollout.horizon=60"])
    assert len({outcome.environment for outcome in outcomes}) == (1 if name == "ties" else 4)  # one choice for all


def test_metafqi_gets_as_many_tuples_as_the_model():
    for env in ("nav2d", "minigolf", "halfcheetah"):
        run = run_of(env)
        own, models = run.of_model(MODEL).config, strong.refitted_models(run)
        tuples = learners_collected(own) * updates_collected(own) * own.collect.labels
        learners = models["equal"][1]["collect.num_meta_episodes"]
        assert 0 <= learners * updates_collected(run.config) - tuples < updates_collected(run.config)
        assert set(models) == ({"equal", "wide"} if env == "minigolf" else {"equal"})


@pytest.mark.parametrize("figure", ["strong", "longer"])
def test_seeds_are_joined_by_task(tmp_path, figure):
    for seed, lead in enumerate((1.0, 1.2, 0.9)):
        (tmp_path / str(seed) / figure).mkdir(parents=True)
        curves = {MODEL: curve(1.0 + lead, 0.1, seed=seed), "fixed": curve(1.0, 0.1, seed=seed + 9)}
        to_parquet(comparison_of(curves), tmp_path / str(seed) / figure / "nav2d.parquet")
    heading, paragraph, table = over_seeds([tmp_path / str(seed) for seed in range(3)])
    assert heading.text == f"Nav2D: {figure}, over seeds and tasks"
    assert paragraph.text.startswith("3 seeds with 40 test tasks each.")
    ((name, _, by_seed, verdict),) = table.rows
    assert (name, verdict) == ("fixed", "better")
    areas = [
        metric_values(comparison_of({MODEL: curve(1.0 + x, 0.1, seed=s), "fixed": curve(1.0, 0.1, seed=s + 9)}), "auc")
        for s, x in enumerate((1.0, 1.2, 0.9))
    ]
    assert by_seed == ", ".join(number(float((first - second).mean())) for first, second in areas)
    assert over_seeds([tmp_path / "0"]) == []
