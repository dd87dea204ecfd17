"""The whole recipe at a tiny scale: rates, search, selection, model, final test, card; stopped and resumed to the same bytes."""

import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from metastep import InputError, load_model
from metastep._core.progress import Silent
from metastep.cli import app as metastep
from metastep.experiments import searching
from metastep.fqi.guard import unlike
from metastep.mdp import actor_critic
from metastep.mdp.blocks import Stream
from metastep.search import LEVELS, Network, evolution
from metastep.search.controller import space_in
from metastep.simulation.engine import compiled
from pretraining import __main__ as command
from pretraining import recipe, work
from pretraining.families import SETTINGS, TEST
from pretraining.families.robots import Robot
from pretraining.loops import LOOPS, Loop, build_mdp, described
from pretraining.rates import (
    FALLING,
    GRID,
    LEAST,
    MOST,
    Rate,
    Rates,
    Scaled,
    reference,
    scaled_rate,
    share,
    task_units,
    universal_rate,
)
from pretraining.recipe import MARGIN, PLANS, Plan, is_finished, open_plan, select, train, with_rate
from pretraining.sb3 import ZOO
from pretraining.score import score_all, score_by_number, write_card
from pretraining.work import Clock, Folder, OutOfTime, Work, compile_programs

SMALL = {"two": Loop(2, 8, 8, 2, 2, (4,)), "one": Loop(1, 16, 8, 4, 3, (4,), "relu", ("observations", "rewards"))}
PLAN = Plan(
    ("integrator", "bandit-continuous"),
    ("tanks",),
    ("queues",),
    SMALL,
    learners=32,
    families_at_once=1,
    generations=3,
    validate_every=1,
    units=2,
    knots=2,
    tuning_tasks=2,
    tuned_every=1,
    test_tasks=16,
    sizes=(1,),
    size_generations=1,
)


def work_in(path: Path, clock: Clock | None = None) -> Work:
    return Work(open_plan(path, PLAN, 1), PLAN, 1, clock or Clock(), Silent())


num_programs: dict[str, list[int]] = {}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "whole"
    programs = [compiled(function) for function in (actor_critic._sample, actor_critic._train)]
    for program in programs:
        program.clear_cache()
    ahead = PLAN.mdps(["integrator"], twins=2) | PLAN.mdps(["tanks"])  # as a GPU does
    for mdp in ahead.values():
        compile_programs(mdp)
        compile_programs(mdp, Network((), (), (), (0.5,) * 6))
    train(work_in(path))
    num_programs["after training"] = [program._cache_size() for program in programs]
    return path


def contents(folder: Path) -> dict[str, bytes]:
    """All files but for ranges of features, which a controller that was the best for some time leaves behind."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.parent.name != "ranges")
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def test_the_record_names_families_and_loops(trained: Path) -> None:
    model: Any = load_model(trained)
    record = model.record
    assert {name: own["use"] for name, own in record.setting["families"].items()} == {
        "integrator": "search",
        "bandit-continuous": "search",
        "tanks": "selection",
    }
    used = {own["loop"] for own in record.setting["families"].values()}
    assert {loop["name"] for loop in record.setting["loops"]} == used == {"one", "two"}
    assert {"num_envs", "num_steps", "minibatch_size", "gradient_steps", "num_updates"} <= set(
        record.setting["loops"][0]
    )
    assert "epochs" not in record.setting["rule"]
    assert record.setting["rule"]["gae_lambda"] == 0.95
    assert {each.level for each in record.validation} == {"constant", "schedule", "feedback"}
    assert set(record.configuration["selection_scores"]["schedule"]) == {"tanks"}
    folder = work_in(trained).folder
    scores = {name: np.array(folder.read(f"rates/{name}")["value"]) for name in record.setting["families"]}
    steps = {name: 8.0 if own["loop"] == "one" else 4.0 for name, own in record.setting["families"].items()}
    assert Scaled(**record.configuration["scaled_rate"]) == scaled_rate(scores, steps)
    assert "own_steps" in record.feature_names
    assert (trained / "model.safetensors").stat().st_size < 30_000


def test_a_recipe_that_runs_out_of_time_resumes_to_the_same_bytes(trained: Path, tmp_path: Path) -> None:
    out, slices = tmp_path / "sliced", 0

    class Ticking(Clock):
        """Time is up with the seventh block or generation."""

        left = 7

        def check(self, seconds: float = 0.0) -> None:
            self.left -= 1
            if not self.left:
                raise OutOfTime

    generations, model = list[dict[str, int]](), None
    while model is None or not is_finished(model, PLAN):
        slices += 1
        try:
            model = train(work_in(out, Ticking()))
            generations.append(model.record.configuration["generations"])
        except OutOfTime:
            assert slices < 40
    assert slices > 3
    assert [*generations[0]] == ["constant"]  # what was there became a model
    assert contents(out) == contents(trained)


@pytest.mark.soak
def test_a_killed_recipe_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from pretraining.tests.test_recipe import *; out = Path(sys.argv[1])\n"
    )
    script += "train(work_in(out))"
    command, killed = [sys.executable, "-c", script], 0
    subprocess.run([*command, str(tmp_path / "whole")], check=True)
    for moment in range(1, 6):
        out = tmp_path / f"killed-{moment}"
        process = subprocess.Popen([*command, str(out)])
        while process.poll() is None and not out.exists():
            time.sleep(0.01)
        time.sleep(0.8 * moment)
        process.kill()
        killed += process.wait() != 0
        subprocess.run([*command, str(out)], check=True)
        assert contents(out) == contents(tmp_path / "whole")
    assert killed >= 3


def test_the_final_test_and_the_card(trained: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(recipe, "PLANS", {"tiny": PLAN})
    arguments = ["--plan", "tiny", "--seed", "1", "--out", str(trained), "--device", "cpu"]
    new = [*arguments, "--out", str(tmp_path / "new"), "--minutes", "0"]
    ran = CliRunner().invoke(command.app, ["train", *new])
    assert (ran.exit_code, ran.output.splitlines()[-1]) == (3, "the time is up; the same command goes on.")
    write_card(
        work_in(trained, Clock(0.0)), load_model(trained / "model.safetensors"), "python -m pretraining train --seed 1"
    )
    for verb, said in {"score": "queues (", "sizes": "1 families: "}.items():
        ran = CliRunner().invoke(command.app, [verb, *arguments])
        assert ran.exit_code == 0, ran.output
        assert f"\n{said}" in ran.output
    scores = open_plan(trained, PLAN, 1).read("scores")
    assert [*scores["rows"]] == ["queues"]
    assert {number: len(own) for number, own in open_plan(trained, PLAN, 1).read("sizes")["leads"].items()} == {"1": 1}
    mean, low, high = scores["rows"]["queues"]["over_universal"]
    assert low <= mean <= high
    assert (trained / "families.svg").exists()
    card = (trained / "card.md").read_text()
    for word in (
        "integrator",
        "tanks",
        "queues",
        "Loops",
        "Limits",
        "2 x 8",
        "over its own tuned rate",
        "A schedule, searched",
        "| families in the search | mean lead",
        "python -m pretraining train --seed 1",
    ):
        assert word in card
    assert score_all(work_in(trained, Clock(0.0))) == scores  # all of it is there
    # It is published as models of runs are.
    published = CliRunner().invoke(metastep, ["publish", str(trained), "--name", "tiny", "--out", str(tmp_path)])
    assert published.exit_code == 0, published.output
    assert load_model(tmp_path / "tiny.safetensors").fingerprint == load_model(trained).fingerprint
    (tmp_path / "tiny.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match="does not belong to the card"):
        load_model(tmp_path / "tiny.safetensors")


def test_a_clock_keeps_time_for_blocks_as_long_as_those_before() -> None:
    now = 0.0
    clock = Clock(2.0, lambda: now)
    assert clock.seconds(6.0) == 0.0
    for then in (8.0, 18.0, 28.0, 38.0):  # the first tenth of a block compiled
        now = then
        clock.advance(0.1 if then == 8.0 else 2.0)
    assert clock.seconds(6.0) == pytest.approx(30.0)
    clock.reserve = 10
    now = 69.0
    clock.check()
    assert not clock.fits(5.0)
    now = 71.0
    with pytest.raises(OutOfTime):
        clock.check()
    clock.reserve = 0
    clock.check()
    now = 121.0
    assert not clock.fits()
    Clock(None, lambda: 1e9).check()


def test_an_interrupted_search_becomes_a_model_of_its_last_mean_unless_the_best_leads_by_far(tmp_path: Path) -> None:
    """Feedback is stopped after its first generation, whose mean was not judged by the search."""

    class Stopping(Clock):
        def check(self, seconds: float = 0.0) -> None:
            kept = searching.kept_course(work.folder, "feedback")
            if self.reserve and kept is not None and kept.metadata["generation"] == 1:
                raise OutOfTime

    rare = replace(PLAN, generations=6, validate_every=9)
    work: Any = Work(open_plan(tmp_path, rare, 1), rare, 1, Stopping(), Silent())
    model = train(work)
    # Each up to its branch, where it was judged at the start only, and no further.
    assert model.record.configuration["generations"] == {"constant": 2, "schedule": 2, "feedback": 1}
    assert not is_finished(model, rare)
    assert work.clock.reserve == 0
    for level, scores in model.record.configuration["selection_scores"].items():
        best, last = work.folder.read(f"levels/{level}")["value"]
        assert scores == (last if last["tanks"] >= best["tanks"] - MARGIN else best)


def test_there_must_be_time_for_judging_and_for_the_form_of_feedback(tmp_path: Path) -> None:
    asked: list[float] = []

    class Counting(Clock):
        def seconds(self, blocks: float) -> float:
            return blocks

        def check(self, seconds: float = 0.0) -> None:
            asked.append(seconds)

    rare = replace(PLAN, generations=6, validate_every=2, levels=("constant", "feedback"))
    train(Work(open_plan(tmp_path, rare, 1), rare, 1, Counting(), Silent()))
    # A block of a generation, one more where its mean is judged, and up to eight before feedback.
    assert {*asked} == {0.0, 1.0, 2.0, 8.0}


def test_what_the_command_refuses(tmp_path: Path, trained: Path) -> None:
    ran = CliRunner().invoke(command.app, ["train", "--plan", "huge", "--out", str(tmp_path)])
    assert ran.exit_code == 2
    assert "--plan: 'huge' must be one of full, medium, quick" in ran.output
    with pytest.raises(InputError, match="belongs to other settings"):
        open_plan(trained, PLAN, 2)
    with pytest.raises(InputError, match="no numbers of families to compare, allowed are full and quick"):
        score_by_number(work_in(trained, Clock(0.0))._replace(plan=replace(PLAN, sizes=())), "schedule")
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(InputError, match="holds other files"):
        open_plan(tmp_path, PLAN, 1)
    for changes, sentence in (
        ({"selection": ("integrator-jerk",)}, "Integrator is in search and selection"),
        ({"search": ("river",), "test": ("river",)}, "River is in search and test"),
        ({"search": ("nowhere",)}, "families: 'nowhere' is not in the table"),
        ({"learners": 30}, "learners: 30 must be even and at least 32"),
    ):
        with pytest.raises(InputError, match=sentence):
            replace(PLAN, **changes)
    folder = Folder(tmp_path, "mine")
    folder.write("numbers", [1.0])
    assert folder.read("numbers") == [1.0]
    with pytest.raises(InputError, match="belongs to other settings"):
        folder._replace(identity="other").read("numbers")
    (tmp_path / "numbers.json").write_text("{")
    with pytest.raises(InputError, match="is not valid JSON"):
        folder.read("numbers")


def test_the_plan_keeps_the_test_apart_and_covers_all_loops() -> None:
    plan = PLANS["full"]
    assert len(plan.search) >= 40
    assert set(plan.test) == set(TEST)
    assert not {SETTINGS[name].family for name in plan.test} & {
        SETTINGS[name].family for name in (*plan.search, *plan.selection)
    }
    assert {plan.loop_of[name] for name in plan.search} == set(LOOPS)
    assert {plan.loop_of[name] for name in plan.test} == set(LOOPS) - {"large"}
    kinds = {"sb3", "zoo-mujoco", "zoo-lander", "cleanrl", "purejaxrl-brax"}
    assert {plan.loop_of[name] for name in plan.selection} == {*[*LOOPS][:8]} > kinds
    as_on_mujoco = {"hopper": "sb3", "swimmer": "cleanrl-continuous", "worm": "zoo-mujoco"}
    assert {name: plan.loop_of[name] for name in as_on_mujoco} == as_on_mujoco
    robots = {name for name in SETTINGS if issubclass(SETTINGS[name].family, Robot)}
    slow = robots - as_on_mujoco.keys()
    assert max(LOOPS[plan.loop_of[name]].num_steps for name in slow) <= 256  # one after another
    assert min(loop.gradient_steps for loop in LOOPS.values()) == 4
    assert max(loop.gradient_steps for loop in LOOPS.values()) == 320
    assert (min(loop.num_updates for loop in LOOPS.values()), max(loop.num_updates for loop in LOOPS.values())) == (
        20,
        500,
    )
    assert [*plan.search] != sorted(plan.search, key=[*SETTINGS].index)
    for start in range(0, len(plan.search), plan.families_at_once):  # a generation has families of several classes
        turn = [SETTINGS[name].family for name in plan.search[start : start + plan.families_at_once]]
        assert len(set(turn)) == len(turn)
    fewer = replace(plan, search=plan.search[:5])
    assert all(fewer.loop_of[name] == plan.loop_of[name] for name in (*fewer.search, *plan.selection, *plan.test))
    default = LOOPS["sb3"]
    assert (default.num_envs, default.num_steps, default.minibatch_size, default.epochs) == (1, 2048, 64, 10)


@pytest.mark.parametrize("name", LOOPS)
def test_every_loop_builds(name: str) -> None:
    mdp = build_mdp("tanks", LOOPS[name], learners=4)
    assert mdp.sampler.normalises == LOOPS[name].normalises
    assert mdp.rule.gradient_steps == LOOPS[name].gradient_steps
    most = mdp.rule.epochs * mdp.sampler.batch_size // mdp.rule.minibatch_size
    assert most == 2 * LOOPS[name].gradient_steps == 8 * mdp.space.low[mdp.space.names.index("gradient_steps")]


@pytest.mark.parametrize("name", ZOO)
def test_loops_of_the_evidence_are_like_those_of_the_plan(name: str) -> None:
    """Guards would fall back in others; the number of updates depends on the steps of a run."""
    plan, own = PLANS["full"], ZOO[name]
    trained = [described("", LOOPS[plan.loop_of[family]]) for family in plan.search]
    discounts = [LOOPS[plan.loop_of[family]].discount or SETTINGS[family].discount for family in plan.search]
    trained = [loop | {"discount": discount} for loop, discount in zip(trained, discounts, strict=True)]
    loop = {"num_envs": own["n_envs"], "batch_steps": own["n_envs"] * own["n_steps"], "discount": own["gamma"]}
    assert unlike(trained, loop | {"minibatch_size": own["batch_size"]}) == {}


def test_schedules_of_the_rate() -> None:
    mdp = PLAN.mdps(["tanks"])["tanks"]
    compile_programs(mdp)
    learners = mdp.begin(mdp.tasks(0, Stream.TEST, 0))
    rates = Rates([Rate(1e-2), Rate(1e-2, True)] * 8)
    state = rates.init(mdp, learners)
    late = learners._replace(update=jax.numpy.uint32(mdp.budget // 2))
    at = mdp.space.names.index("stepsize")
    first, later = (np.asarray(rates.propose(state, now)) for now in (learners, late))
    np.testing.assert_allclose(first[:, at], 1e-2, rtol=1e-6)
    share = 1.0 - (mdp.budget // 2) / mdp.budget
    np.testing.assert_allclose(later[:2, at], [1e-2, 1e-2 * share], rtol=1e-6)
    others = {name: value for name, value in zip(mdp.space.names, later[0], strict=True) if name != "stepsize"}
    own = {"gradient_steps": mdp.rule.gradient_steps, "clip_range": 0.2, "gae_lambda": 0.95}
    assert others == pytest.approx(own | {"entropy_weight": 0.0, "critic_rate": 1.0})
    powers = np.asarray(learners.context)[:, mdp.env.context_space.names.index("reward_power")]
    np.testing.assert_allclose(task_units(mdp, np.asarray(learners.context)), 10.0**powers, rtol=1e-5)


def test_the_universal_rate_has_the_best_mean_share() -> None:
    scores = np.zeros((len(GRID), 4))
    scores[3], scores[5] = 1.0, 0.9
    large = np.zeros((len(GRID), 4))
    large[3], large[5], large[6] = 500.0, 900.0, 1000.0
    assert universal_rate({"small": scores, "large": large}) == 5
    assert reference(scores, 3) == (0.0, 1.0)
    noisy = np.zeros((len(GRID), 4))
    noisy[1] = [-1.0, 1.0, -1.0, 1.0]
    low, unit = reference(noisy, 1)
    assert (low, unit) == (0.0, pytest.approx(3.0 * np.std(noisy[1], ddof=1) / 2.0))


@pytest.mark.parametrize("law", [Scaled(0.003, 0.75), Scaled(0.005, 0.5), Scaled(0.008, 0.25), Scaled(0.013, 0.0)])
def test_a_rate_that_depends_on_the_loop_is_recovered(law: Scaled) -> None:
    """The gain of a family falls with the distance of the logarithm of its rate from that of the best."""
    own_steps = {str(steps): float(steps) for steps in (4, 32, 64, 160, 320)}
    scores = {}
    for name, steps in own_steps.items():
        best = law.rate * (64.0 / steps) ** law.exponent
        gains = [1.0 - 0.2 * abs(np.log(each.rate / best)) for each in FALLING]
        rows = [0.0] * (len(GRID) - len(FALLING)) + gains  # without learning and with constant rates, none
        scores[name] = np.tile(np.array(rows)[:, None], 4) * steps  # units of families differ
    assert scaled_rate(scores, own_steps) == law


def test_a_law_that_leaves_the_grid_of_rates_is_not_considered() -> None:
    own_steps = {"few": 4.0, "usual": 64.0, "many": 320.0}
    best = {name: np.log(Scaled(0.03, 0.75).of_loop(steps)) for name, steps in own_steps.items()}  # 0.24 for the first
    gains = {name: [1.0 - 0.2 * abs(np.log(each.rate) - best[name]) for each in FALLING] for name in own_steps}
    rows = {name: np.array([0.0] * (len(GRID) - len(FALLING)) + own) for name, own in gains.items()}
    found = scaled_rate({name: np.tile(row[:, None], 4) for name, row in rows.items()}, own_steps)
    assert all(FALLING[0].rate <= found.of_loop(steps) <= FALLING[-1].rate for steps in own_steps.values())


def test_the_rate_of_a_law() -> None:
    assert Scaled(0.01, 0.5).of_loop(16.0) == pytest.approx(0.02)


def test_no_family_and_no_learner_decides_alone() -> None:
    """Shares are cut off where a gain is tiny; learners that diverged count as the worst that did not."""
    assert share(np.array([1e6]), 0.0, 1e-6) == MOST
    assert share(np.array([-1e6]), 0.0, 1e-6) == LEAST
    assert share(np.array([1.0, 3.0, -np.inf]), 1.0, 2.0) == pytest.approx((5.0 / 3.0 - 1.0) / 2.0)
    assert share(np.full(3, -np.inf), 0.0, 1.0) == LEAST
    usual = np.zeros((len(GRID), 4))
    usual[2], usual[3] = 1.0, 0.8
    odd = np.zeros((len(GRID), 4))
    odd[2], odd[3] = -1e4, 1.0  # without the cut, this family alone would decide
    assert universal_rate({"a": usual, "b": usual, "c": usual, "odd": odd}) == 3
    assert universal_rate(dict.fromkeys("abcdefghijkl", usual) | {"odd": odd}) == 2


def test_the_simplest_level_within_a_margin_of_the_best_is_selected() -> None:
    def shares(*means: float) -> Any:
        noise = dict(zip("abcd", (-0.4, 0.4, -0.4, 0.4), strict=True))  # families differ far more than levels
        return {
            level: {name: own + mean for name, own in noise.items()} for level, mean in zip(LEVELS, means, strict=True)
        }

    assert select(shares(1.0, 1.0 + 0.9 * MARGIN, 1.0))[0] == "constant"
    assert select(shares(1.0, 1.0 + 1.1 * MARGIN, 1.0 + 1.2 * MARGIN))[0] == "schedule"
    level, scores = select(shares(1.0, 1.0 + MARGIN, 1.0 + 2.5 * MARGIN))
    assert level == "feedback"
    assert scores[0].error == pytest.approx(np.std([-0.4, 0.4, -0.4, 0.4], ddof=1) / 2.0)


def test_ranges_of_features_are_those_of_all_families(trained: Path, tmp_path: Path) -> None:
    work = work_in(tmp_path / "other")
    mdps = PLAN.mdps(PLAN.search, twins=2) | PLAN.mdps(PLAN.selection)
    network = Network(("last_rate", "budget"), (0.0, 0.5), (1.0, 0.3), (0.5,) * 6, 2, 2)
    low, high, num = recipe.ranges(work, network, np.zeros(network.num_weights, np.float32), mdps)
    assert num == len(mdps) == 3
    kept = {name: work.folder.read(f"ranges/{name}") for name in mdps}
    assert low == [min(own["value"][0][index] for own in kept.values()) for index in range(2)]
    assert high == [max(own["value"][1][index] for own in kept.values()) for index in range(2)]
    late = work_in(tmp_path / "late", Clock(0.0))
    first = recipe.ranges(late, network, np.zeros(network.num_weights, np.float32), mdps)
    assert first == ([-2.0, pytest.approx(-0.1)], [2.0, pytest.approx(1.1)], 0)  # two deviations
    schedule = Network(("budget",), (0.5,), (0.3,), (0.5,) * 6, 2)
    assert recipe.ranges(late, schedule, np.zeros(schedule.num_weights, np.float32), mdps) == ([0.0], [1.0], 3)


def test_families_without_finite_features_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = evolution.observed

    def observed(mdp: Any, *given: Any) -> Any:
        if mdp.env.name == "integrator":
            raise InputError("search: no learner on integrator has finite features.")
        return whole(mdp, *given)

    monkeypatch.setattr(evolution, "observed", observed)
    work, mdps = work_in(tmp_path), PLAN.mdps(PLAN.search, twins=2)
    network = Network(("last_rate", "budget"), (0.0, 0.5), (1.0, 0.3), (0.5,) * 6, 2, 2)
    weights = np.zeros(network.num_weights, np.float32)
    low, high, num = recipe.ranges(work, network, weights, mdps)
    assert ([low, high], num) == (work.folder.read("ranges/bandit-continuous")["value"], 2)
    assert "ranges of features go without integrator: search: no learner" in capsys.readouterr().out
    assert recipe.ranges(work, network, weights, {"integrator": mdps["integrator"]})[2] == 1
    model = train(work_in(tmp_path))  # also the form of feedback, whose first family is that one
    assert "feedback: search: no learner on integrator" in capsys.readouterr().out
    assert is_finished(model, PLAN)


def test_ranges_that_the_clock_cut_off_are_completed_later(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search is there, but the time is up before the first family, or ranges fail: there is a model, not the final one."""
    out = tmp_path / "cut"
    shutil.copytree(trained, out)
    (out / "model.safetensors").unlink()
    shutil.rmtree(out / "ranges", ignore_errors=True)
    monkeypatch.setattr(recipe, "select", lambda shares: ("feedback", select(shares)[1]))
    with monkeypatch.context() as broken:
        broken.setattr(evolution, "observed", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(work_in(out))
    model: Any = load_model(out)
    assert model.record.configuration["families_in_ranges"] == 0
    cut = train(work_in(out, Clock(0.0)))
    assert cut.fingerprint == model.fingerprint
    assert not is_finished(cut, PLAN)
    whole = train(work_in(out))
    assert is_finished(whole, PLAN)
    assert whole.record.feature_low != cut.record.feature_low


def test_programs_are_compiled_ahead_only_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    monkeypatch.setattr(work, "compile_programs", lambda *given: done.append(given))
    with work.Ahead(["a"]) as idle:  # type: ignore[list-item]
        idle.prepare("form")  # type: ignore[arg-type]
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    ahead = work.Ahead(["b", "c"], threads=1)  # type: ignore[list-item]
    ahead.prepare("form")  # type: ignore[arg-type]
    ahead._pool.shutdown(wait=True)
    assert done == [("b",), ("c",), ("b", "form"), ("c", "form")]


def test_a_program_that_is_not_compiled_ahead_says_so_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(work, "compile_programs", fail)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    ahead = work.Ahead(PLAN.mdps(["tanks"]).values(), threads=1)
    ahead.prepare("form")  # type: ignore[arg-type]
    ahead._pool.shutdown(wait=True)
    assert capsys.readouterr().out == "tanks was not compiled ahead: out of memory\n"


def test_all_stages_of_a_family_share_two_programs(trained: Path) -> None:
    """Compiling takes long on a GPU: rates, search, features and selection must be of the same shapes."""
    assert trained.exists()
    assert num_programs["after training"] == [3, 3]


@pytest.mark.parametrize("path", sorted(Path(recipe.__file__).parent.glob("*.py")), ids=lambda path: path.stem)
def test_only_public_names_of_the_library_are_used(path: Path) -> None:
    assert not re.findall(r"(?:from|import) metastep[\w.]*\._\w+|from metastep[\w.]* import .*\b_\w+", path.read_text())


def test_loops_of_other_people_make_as_many_gradient_steps_as_simulated_ones(trained: Path) -> None:
    """A controller that asks for all steps of its range gets those of its learners in the same loop."""
    model: Any = load_model(trained)
    weights = model.weights._replace(curves=np.full_like(model.weights.curves, 20.0))
    model = replace(model, weights=weights)

    def steps(num: int, **loop: Any) -> float:
        seen = {"returns": [1.0, 2.0], "values": np.zeros(num), "targets": np.zeros(num), "entropy": 1.0}
        return model.stepper(10, outside="trust", **loop)(seen).values["gradient_steps"]

    for loop in (LOOPS["sb3"], LOOPS["many-updates"], LOOPS["zoo-cartpole"], Loop(1, 64, 8, 3, 20)):
        mdp = build_mdp("tanks", loop, learners=4)
        sizes = {"minibatch_size": loop.minibatch_size, "epochs": loop.epochs, "batch_steps": mdp.sampler.batch_size}
        simulated = mdp.rule.epochs * mdp.sampler.batch_size // mdp.rule.minibatch_size
        assert steps(mdp.sampler.batch_size, loop=sizes) == simulated == 2 * loop.gradient_steps
        assert space_in(model, mdp) == mdp.space
    assert steps(64, fallback={"gradient_steps": 50}) == 100
    with pytest.raises(InputError, match=r"^loop: gradient_steps is missing, which the model scales"):
        steps(64)


def test_a_schedule_begins_with_a_rate_that_falls_from_twice_the_constant_one() -> None:
    mdp = build_mdp("tanks", LOOPS["sb3"], learners=4)
    space: Any = mdp.space
    network = Network(("budget",), (0.5,), (0.3,), (0.5,) * space.num_coordinates, 5)
    weights = np.random.default_rng(0).normal(size=space.num_coordinates).astype(np.float32)
    flat = np.tile(weights, 5)
    found = space.from_unit(
        network(network.split(with_rate(network, flat, [mdp])), np.linspace(0, 1, 5)[:, None], np), np
    )
    before = space.from_unit(network(network.split(flat), np.zeros((1, 1)), np), np)[0]
    place = space.names.index("stepsize")
    np.testing.assert_allclose(found[:4, place], 2.0 * before[place] * np.array([1.0, 0.75, 0.5, 0.25]), rtol=1e-3)
    assert found[4, place] < 2.0 * space.low[place]
    np.testing.assert_allclose(np.delete(found, place, 1), np.tile(np.delete(before, place), (5, 1)), rtol=1e-4)


def rates_of(start: evolution.Start, mdps: Any, spent: float) -> Any:
    """The rates that a controller proposes in each loop where this share of the budget is spent."""
    own_steps = np.log10([mdp.of_loop["own_steps"] for mdp in mdps])
    seen = {"own_steps": own_steps, "budget": np.full(len(mdps), spent)}
    rows = np.stack([seen[name] for name in start.network.features], axis=1)
    unit = start.network(start.network.split(start.weights), rows, np)
    return mdps[0].space.ranges[0].from_unit(unit[:, mdps[0].space.names.index("stepsize")], np)


@pytest.mark.parametrize("plan", ["full", "medium"])
@pytest.mark.parametrize("law", [Scaled(0.003, 0.75), Scaled(0.01, 0.25), Scaled(0.013, 0.0)], ids=str)
def test_a_search_begins_with_the_rate_that_suits_each_loop(plan: str, law: Scaled) -> None:
    """Within a quarter at the start, where a logit has another slope than in the middle, and within 6 % there."""
    mdps = [*replace(PLANS[plan], learners=32).mdps(PLANS[plan].search).values()]
    wanted = np.array([law.of_loop(mdp.of_loop["own_steps"]) for mdp in mdps])
    for level in LEVELS[:2]:
        network = evolution.network_of(level, PLANS[plan].search_settings(), mdps, 0)
        start = evolution.Start(network, with_rate(network, evolution.first_weights(network, 0), mdps, law))
        first = wanted if level == "schedule" else 0.5 * wanted
        np.testing.assert_allclose(rates_of(start, mdps, 0.0), first, rtol=0.25)
        np.testing.assert_allclose(rates_of(start, mdps, 0.5), 0.5 * wanted, rtol=0.06)


def test_the_first_level_begins_with_the_rate_of_the_tuned_families(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Any] = []

    def searching(families: Any, search: Any, start: Any, **_: Any) -> Any:
        begun.append((families, start))
        raise OutOfTime

    monkeypatch.setattr(evolution, "searching", searching)
    monkeypatch.setattr(recipe.rates, "scaled_rate", lambda *_: Scaled(0.02, 0.5))
    with pytest.raises(OutOfTime):
        train(work_in(tmp_path))
    mdps, start = begun[0]
    assert start.network.features == ("own_steps",)  # of a constant; loops differ in the number of updates, too
    assert [mdp.of_loop["own_steps"] for mdp in mdps] == [4.0, 8.0]
    np.testing.assert_allclose(rates_of(start, mdps, 0.0), [0.04, 0.04 / np.sqrt(2.0)], rtol=1e-3)
