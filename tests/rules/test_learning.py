"""Learners with an actor and a critic go through collection, fitting, comparison and report like all others."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from metastep import features
from metastep.controllers import Fixed
from metastep.experiments.checking import check_folder, inspect_path
from metastep.experiments.config import load
from metastep.experiments.run import Run
from metastep.mdp import actor_critic
from metastep.mdp.blocks import Stream
from metastep.rules.actor_critic import rule, sampler
from metastep.simulation.engine import compiled
from tests.controllers.problems import BLOCK, make_mdp, make_training_mdp
from tests.one_block import run

FEW = [
    *("meta.num_updates=3", "meta.rule.minibatch_size=8", "collect.num_meta_episodes=8", "fqi.iterations=1"),
    *("fqi.regressor.trees=3", "selection.num_tasks=2", "compare.num_tasks=3", "compare.num_updates=3"),
    "compare.num_tuning_tasks=2",
]
TINY = [
    *FEW,
    *("rollout.num_envs=2", "rollout.num_steps=12", "rollout.horizon=7", "rollout.block_size=8"),
    *("policy.hidden=[4]", "meta.rule.epochs=2", "compare.num_resamples=100"),
    'compare.methods=["metafqi", "linear-annealing", "kl-adaptive"]',
    "compare.methods.linear-annealing.grid={stepsize = [0.001, 0.01]}",
]


@pytest.fixture(scope="module")
def tasks():
    return make_training_mdp().tasks(0, Stream.TRAIN, 0)


def test_a_whole_run_with_its_report(tmp_path: Path) -> None:
    folder = Run.create(tmp_path / "run", load("pendulum-ppo", "quick", TINY))
    page = folder.run_all().with_suffix(".md").read_text()
    assert "24 steps, 12 of each of 2 environments; episodes are cut off after 7" in page
    assert "linear annealing" in page
    assert not [finding for finding in check_folder(folder.path) if finding.problem]
    assert "observation: last_rate (1), last_divergence (1)" in inspect_path(folder.path)


def test_features_tell_what_happened(tasks) -> None:
    mdp = make_training_mdp()
    first = mdp.begin(tasks)
    names = features.SETS["training"]
    at_first = {name: np.asarray(value)[:, 0] for name, value in features.compute(mdp, names, first).items()}
    for name in ("clip_fraction", "entropy_change", "change_in_errors", "step_ratio", "step_cosine", "budget"):
        assert not np.any(at_first[name]), name
    rate = np.geomspace(1e-4, 1e-1, BLOCK, dtype=np.float32)[:, None]
    second = mdp.advance(first, rate)
    third = mdp.advance(second, rate)
    found = {name: np.asarray(value)[:, 0] for name, value in features.compute(mdp, names, third).items()}
    np.testing.assert_allclose(found["last_rate"], np.log10(rate[:, 0]), rtol=1e-6)
    np.testing.assert_allclose(found["budget"], 0.5)
    assert found["last_divergence"][-1] > found["last_divergence"][0]
    assert found["clip_fraction"][-1] > found["clip_fraction"][0] >= 0.0
    steps = [np.asarray(b.theta) - np.asarray(a.theta) for a, b in ((first, second), (second, third))]
    lengths = [np.linalg.norm(step, axis=1) for step in steps]
    np.testing.assert_allclose(found["step_ratio"], np.log10(lengths[1] / lengths[0]), atol=1e-4)
    cosine = np.sum(steps[0] * steps[1], axis=1) / lengths[0] / lengths[1]
    np.testing.assert_allclose(found["step_cosine"], cosine, atol=1e-3)
    change = np.asarray(third.estimate.entropy - first.estimate.entropy)
    np.testing.assert_allclose(found["entropy_change"], change, atol=1e-6)
    for seen in (at_first, found):
        np.testing.assert_allclose(seen["first_entropy"], 1.4, rtol=1e-6)  # of a number, log(2 pi e) / 2
    batch = third.estimate
    explained = 1.0 - np.var(batch.target - batch.value, axis=1) / np.var(batch.target, axis=1)
    np.testing.assert_allclose(found["explained_variance"], np.maximum(explained, -1.0), rtol=1e-4)


def test_a_learner_that_would_leave_the_range_of_numbers_stays_and_is_flagged(tasks) -> None:
    mdp = make_training_mdp()
    first = mdp.begin(tasks)
    rate = np.full((BLOCK, 1), 1e-3, np.float32)
    rate[2] = np.inf
    after = mdp.advance(first, rate)
    assert np.asarray(after.flagged).tolist() == [index == 2 for index in range(BLOCK)]
    np.testing.assert_array_equal(after.theta[2], first.theta[2])
    assert np.isfinite(after.theta).all()


def test_results_do_not_depend_on_what_only_models_see(tasks) -> None:
    mdp = make_training_mdp()
    other = dataclasses.replace(mdp, observation=("context",), meta_discount=0.5, budget=9)
    returns = [run(each, Fixed(0.01), tasks, 1)[0].mean_return for each in (mdp, other)]
    np.testing.assert_array_equal(*returns)


def test_steps_compiled_as_one_are_the_same_steps(monkeypatch, tasks):
    """As on a GPU; three minibatches are fewer than four."""
    mdp, rates = make_training_mdp(), np.full((BLOCK, 1), 3e-3, np.float32)
    learners, traced = mdp.begin(tasks), list[None]()
    alone = mdp.advance(learners, rates)
    programs = [compiled(each) for each in (actor_critic._train, actor_critic._sample)]
    for module, program in zip((sampler, rule), programs, strict=True):
        monkeypatch.setattr(module, "steps_at_once", lambda: traced.append(None) or 4)
        program.clear_cache()
    at_once = mdp.advance(learners, rates)
    _ = [program.clear_cache() for program in programs]
    assert len(traced) > 1
    assert not np.array_equal(alone.theta, learners.theta)
    np.testing.assert_allclose(at_once.theta, alone.theta, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(at_once.estimate.advantage, alone.estimate.advantage, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mdp", [make_mdp(), make_training_mdp()], ids=["episodes", "steps"])
def test_learners_have_the_diagnostics_that_are_declared(mdp) -> None:
    seen = mdp.diagnostics(mdp.begin(mdp.tasks(0, Stream.TRAIN, 0)))
    assert set(seen.diagnostics) == set(mdp.diagnosed)
