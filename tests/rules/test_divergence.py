"""A step on the scale divergence costs the KL that was chosen; features of updates; updates that are only evaluated."""

import jax.numpy as jnp
import numpy as np
import pytest

from metastep import features
from metastep._core.errors import InputError
from metastep.controllers import KLAdaptive
from metastep.mdp.blocks import Stream
from metastep.mdp.controller import Exploration
from metastep.mdp.episodes import apply_rule, divergence
from metastep.mdp.loop import run_updates
from metastep.rules import NGA, Menu, RMSProp
from metastep.rules.spaces import HyperparameterSpace, MenuSpace, Range
from tests.controllers.problems import BLOCK, make_mdp
from tests.one_block import run

MENU = Menu(("nga damping=0.01", "rmsprop", "nga damping=0.5", "adam"))
KL = HyperparameterSpace((1e-6,), (1.0,), ("divergence",))


def with_menu(name="nav2d"):
    ranges = tuple(Range(1e-4, 1.0, "divergence") for _ in MENU.directions)
    return make_mdp(name).with_rule(MENU, MenuSpace(MENU.directions, ranges))


def kl_of(mdp, learners, theta):
    """Mean KL(old, new) over the states of the batch, from the episodes themselves."""
    episodes = mdp.estimator.trajectories(learners.theta, learners.context, learners.simulation_key)
    policy = mdp.estimator.rollout.policy
    alive = np.asarray(episodes.alive, np.float64)  # (horizon, episodes, learners)
    total = np.zeros(BLOCK)
    for t in range(alive.shape[0]):
        observation = tuple(episodes.observation[t])
        means = (policy.mean(parameters.T, observation) for parameters in (learners.theta, theta))
        gaps = [np.asarray(new) - np.asarray(old) for old, new in zip(*means, strict=True)]
        total += (alive[t] * sum(gap**2 for gap in gaps) / (2.0 * policy.sigma**2)).sum(axis=0)
    return total / alive.sum(axis=(0, 1))


@pytest.mark.parametrize("rule", [NGA(), RMSProp()], ids=lambda rule: rule.name)
def test_a_step_costs_the_divergence_that_was_chosen(rule):
    mdp = make_mdp("cartpole").with_rule(rule, KL)
    learners = mdp.begin(mdp.tasks(0, Stream.TRAIN, 0))
    chosen = jnp.geomspace(1e-4, 1.0, BLOCK, dtype=jnp.float32)[:, None]
    moved = apply_rule(mdp, learners, chosen)
    usable = ~np.asarray(moved.flagged)
    assert usable.any()
    np.testing.assert_allclose(kl_of(mdp, learners, moved.theta)[usable], chosen[usable, 0], rtol=2e-3)
    np.testing.assert_allclose(divergence(mdp, learners, chosen)[usable], chosen[usable, 0], rtol=1e-4)


def test_a_step_of_a_network_costs_it_in_the_second_order():
    mdp = make_mdp("nav2d", (4,)).with_rule(NGA(), KL)
    learners = mdp.begin(mdp.tasks(0, Stream.TRAIN, 0))
    chosen = jnp.full((BLOCK, 1), 1e-6, jnp.float32)
    np.testing.assert_allclose(kl_of(mdp, learners, apply_rule(mdp, learners, chosen).theta), chosen[:, 0], rtol=0.1)


def test_every_direction_of_a_menu_costs_what_was_chosen():
    mdp = with_menu("cartpole")
    learners = mdp.begin(mdp.tasks(0, Stream.TRAIN, 0))
    chosen = jnp.stack([jnp.arange(BLOCK, dtype=jnp.float32) % 4.0, jnp.full(BLOCK, 0.03)], axis=1)
    after = mdp.advance(learners, chosen)
    usable = ~np.asarray(apply_rule(mdp, learners, chosen).flagged)
    np.testing.assert_allclose(kl_of(mdp, learners, after.theta)[usable], 0.03, rtol=2e-3)
    np.testing.assert_allclose(after.previous.divergence[usable], 0.03, rtol=1e-3)
    np.testing.assert_allclose(after.previous.step, after.theta - learners.theta, atol=1e-7)


def test_a_space_of_other_directions_is_refused():
    with pytest.raises(InputError, match=r"its directions are \['x'\], but the rule has"):
        make_mdp().with_rule(MENU, MenuSpace(("x",), (Range(0.0, 1.0),)))


def test_features_of_updates_are_what_they_say():
    mdp = with_menu("cartpole")
    before = mdp.begin(mdp.tasks(0, Stream.TRAIN, 0))
    learners = mdp.advance(before, jnp.full((BLOCK, 2), 0.5, jnp.float32))
    names = ("slopes", "gains", "curvatures", "cosines", "last_cosines", "change_in_errors", "relative_error", "steps")
    found = {name: np.asarray(value, np.float64) for name, value in features.compute(mdp, names, learners).items()}
    steps = np.asarray(mdp.rule.steps(learners.estimate, learners.rule_state), np.float64)
    gradient = np.asarray(learners.estimate.gradient, np.float64)
    error, value = (np.asarray(x, np.float64) for x in (learners.estimate.return_error, learners.estimate.mean_return))
    slopes = np.einsum("ldp,lp->ld", steps, gradient)
    np.testing.assert_allclose(found["slopes"], slopes, rtol=1e-3, atol=1e-4)
    per_root = slopes / np.sqrt(np.asarray(learners.curvature)) / error[:, None]
    np.testing.assert_allclose(found["gains"], np.log10(np.maximum(per_root, 1e-6)), atol=1e-2)
    vectors = np.concatenate([steps, gradient[:, None]], axis=1)
    units = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    pairs = [(a, b) for a in range(5) for b in range(a + 1, 5)]
    expected = np.stack([(units[:, a] * units[:, b]).sum(-1) for a, b in pairs], axis=1)
    np.testing.assert_allclose(found["cosines"], expected, atol=1e-4)
    last = np.asarray(learners.theta - before.theta, np.float64)
    last /= np.linalg.norm(last, axis=-1, keepdims=True)
    np.testing.assert_allclose(found["last_cosines"], (units[:, :4] * last[:, None]).sum(-1), atol=1e-3)
    change = (value - np.asarray(before.estimate.mean_return)) / error
    np.testing.assert_allclose(found["change_in_errors"][:, 0], change, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found["relative_error"][:, 0], np.log10(error / np.abs(value)), atol=1e-3)
    assert found["steps"].shape == (BLOCK, 4 * mdp.policy.num_parameters)


def test_features_without_units_do_not_see_the_unit_of_the_return():
    mdp = make_mdp("cartpole").with_rule(NGA(), KL)
    learners = mdp.begin(mdp.tasks(0, Stream.TRAIN, 0))
    estimate = learners.estimate
    scaled = {name: 1000.0 * getattr(estimate, name) for name in ("mean_return", "return_error", "gradient")}
    other = learners._replace(estimate=estimate._replace(**scaled))
    names = features.SETS["unit-free"]
    for name, numbers in features.compute(mdp, names, learners).items():
        np.testing.assert_allclose(features.compute(mdp, names, other)[name], numbers, rtol=1e-4, atol=1e-4)


def test_what_is_tried_is_what_the_update_would_have_led_to():
    """The same batch of random numbers follows a try and the update that is made."""
    mdp = with_menu()
    tasks = mdp.tasks(0, Stream.TRAIN, 0)
    followed, _ = run(mdp, Exploration(), tasks, 2, ("theta",))
    learners = mdp.begin(tasks)
    history = run_updates(
        mdp, Exploration(), learners, mdp, 2, from_start=True, record=("theta",), num_candidates=3
    ).history
    np.testing.assert_array_equal(history.mean_return, followed.mean_return)  # candidates change nothing
    candidates = history.candidates
    assert candidates.hyperparameters.shape == (2, 3, BLOCK, 2)
    for index in range(3):
        after = mdp.advance(learners, jnp.asarray(candidates.hyperparameters[0, index]))
        np.testing.assert_array_equal(after.theta, candidates.features["theta"][0, index])
        np.testing.assert_allclose(after.estimate.mean_return, candidates.mean_return[0, index], rtol=1e-5)
    assert len(np.unique(candidates.hyperparameters[..., 1])) == 2 * 3 * BLOCK
    tuples = history.transitions(("theta", "return"))
    assert len(tuples.reward) == 2 * 4 * BLOCK == sum(outcome.mean_return.size for outcome in history.outcomes)
    np.testing.assert_allclose(tuples.reward, tuples.next_observation[:, -1] - tuples.observation[:, -1], atol=1e-5)


def test_kl_adaptive_steps_keep_to_the_band():
    mdp = make_mdp("cartpole")
    learners = mdp.begin(mdp.tasks(0, Stream.TRAIN, 0))
    unit = np.asarray(divergence(mdp, learners, jnp.ones((BLOCK, 1), jnp.float32)))  # at h = 1
    target = unit * np.tile([10.0, 1.0, 0.1, 1.4], BLOCK // 4)  # too short, right, too long, right
    controller = KLAdaptive(stepsize=1.0, target=target)
    state = controller.init(mdp, learners)
    proposal = controller.propose(state, learners)
    after = controller.observe(state, learners, proposal, mdp.advance(learners, proposal))
    np.testing.assert_allclose(after[:, 0], np.tile([1.5, 1.0, 1 / 1.5, 1.0], BLOCK // 4), rtol=1e-6)
    bounded = KLAdaptive(stepsize=1.0, target=target, lowest=0.8, highest=1.2)
    after = bounded.observe(bounded.init(mdp, learners), learners, proposal, mdp.advance(learners, proposal))
    np.testing.assert_allclose(after[:, 0], np.tile([1.2, 1.0, 0.8, 1.0], BLOCK // 4), rtol=1e-6)
