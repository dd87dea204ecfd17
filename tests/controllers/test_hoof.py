from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from numpy.typing import NDArray

from metastep.controllers import Fixed
from metastep.controllers.search import HOOF, Prices, choose, price
from metastep.evaluation import Method, compare
from metastep.mdp import EpisodicMetaMDP, Learners
from metastep.mdp.blocks import Stream
from metastep.rules import NGA, Adam, RMSProp, Rule, Update
from metastep.simulation.gradients import Estimate
from metastep.simulation.rollouts import Trajectories
from tests.controllers.problems import BLOCK, make_mdp


@dataclass(frozen=True)
class Quadratic(Rule):
    """theta + h^2 g: a user's rule whose move is not proportional to the step size."""

    name: ClassVar[str] = "quadratic"

    def direction(self, estimate: Estimate) -> Array:
        return estimate.natural_gradient

    def apply(self, theta: Array, estimate: Estimate, values: dict[str, Array], state: None) -> Update:
        moved = theta + values["stepsize"][:, None] ** 2 * estimate.natural_gradient
        return Update(moved, None, jnp.zeros(theta.shape[0], bool))


def current_batch(mdp: EpisodicMetaMDP, seed: int = 0) -> tuple[Learners, Trajectories]:
    learners = mdp.begin(mdp.tasks(seed, Stream.TUNING, 0))
    return learners, mdp.estimator.trajectories(learners.theta, learners.context, learners.simulation_key)


def network_mean(policy: Any, theta: NDArray[np.float64], observation: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean actions (steps, actions) of one learner's policy on (steps, observations), independently."""
    if policy.is_linear:
        bias = theta[: policy.num_actions]
        weights = theta[policy.num_actions :].reshape(policy.num_actions, policy.num_observations)
        return bias + observation @ weights.T
    sizes, values, start = (policy.num_observations, *policy.hidden, policy.num_actions), observation, 0
    for layer, (inputs, outputs) in enumerate(pairwise(sizes)):
        weights = theta[start : start + inputs * outputs].reshape(outputs, inputs)
        bias = theta[start + inputs * outputs : start + (inputs + 1) * outputs]
        start += (inputs + 1) * outputs
        values = values @ weights.T + bias
        if layer + 2 < len(sizes):
            values = np.tanh(values)
    return values


def reference_prices(
    mdp: EpisodicMetaMDP, learners: Learners, episodes: Trajectories, candidates: NDArray[np.float32]
) -> Prices:
    """Weighted importance sampling in float64 from stored actions and log densities, one episode after the other."""
    rollout = mdp.estimator.rollout
    policy, gamma = rollout.policy, rollout.discount
    observation, action, reward, alive = (
        np.asarray(array, np.float64)
        for array in (episodes.observation, episodes.action, episodes.reward, episodes.alive)
    )
    value, divergence, size = (np.zeros(candidates.shape[:2]) for _ in range(3))
    for z, proposal in enumerate(candidates):
        moved = mdp.rule.apply(
            learners.theta, learners.estimate, mdp.space.named(jnp.asarray(proposal)), learners.rule_state
        ).theta
        for learner in range(BLOCK):
            old, new = (np.asarray(theta[learner], np.float64) for theta in (learners.theta, moved))
            weights, returns, divergences = [], [], []
            for episode in range(rollout.num_episodes):
                steps = alive[:, episode, learner] > 0
                seen, taken = observation[steps, :, episode, learner], action[steps, :, episode, learner]
                before, after = network_mean(policy, old, seen), network_mean(policy, new, seen)
                logs = [-((taken - mean) ** 2) / (2.0 * policy.sigma**2) for mean in (before, after)]
                weights.append(np.exp(np.sum(logs[1] - logs[0])))
                returns.append(np.sum(gamma ** np.arange(len(seen)) * reward[steps, episode, learner]))
                divergences += list(np.sum((after - before) ** 2, axis=1) / (2.0 * policy.sigma**2))
            value[z, learner] = np.dot(weights, returns) / np.sum(weights)
            divergence[z, learner] = np.mean(divergences)
            size[z, learner] = np.sum(weights) ** 2 / np.sum(np.square(weights))
    return Prices(value, divergence, size)


@pytest.mark.parametrize(
    ("name", "hidden", "rule"),
    [
        ("cartpole", (), NGA()),
        ("nav2d", (), NGA()),
        ("nav2d", (), Adam()),
        ("nav2d", (), RMSProp()),
        ("nav2d", (), Quadratic()),
        ("lqr", (3,), NGA()),
    ],
    ids=["one action", "two actions", "adam", "rmsprop", "own rule", "network"],
)
def test_prices_equal_an_independent_computation_on_stored_episodes(
    name: str, hidden: tuple[int, ...], rule: Any
) -> None:
    mdp = make_mdp(name, hidden, rule)
    learners, episodes = current_batch(mdp)
    candidates = np.linspace(0.0, 1.0, 5, dtype=np.float32)[:, None, None] * np.ones((1, BLOCK, 1), np.float32)
    found = price(mdp, learners, jnp.asarray(candidates))
    expected = reference_prices(mdp, learners, episodes, candidates)
    assert np.ptp(expected.value, axis=0).min() > 1e-3  # the candidates differ
    np.testing.assert_allclose(found.value, expected.value, rtol=2e-4)
    np.testing.assert_allclose(found.divergence, expected.divergence, rtol=2e-4, atol=1e-7)
    np.testing.assert_allclose(found.sample_size, expected.sample_size, rtol=2e-3)


def test_a_candidate_that_changes_nothing_has_the_value_of_the_batch() -> None:
    mdp = make_mdp("cartpole")
    learners, _ = current_batch(mdp)
    prices = price(mdp, learners, jnp.zeros((1, BLOCK, 1), jnp.float32))
    np.testing.assert_allclose(prices.value[0], learners.estimate.mean_return, rtol=1e-6)
    np.testing.assert_array_equal(prices.divergence[0], 0.0)
    np.testing.assert_allclose(prices.sample_size[0], mdp.estimator.rollout.num_episodes, rtol=1e-5)
    huge = price(
        mdp, learners, jnp.full((1, BLOCK, 1), 1e6, jnp.float32)
    )  # neither overflows nor loses the best episode
    assert np.all(np.isfinite(huge.value))
    np.testing.assert_allclose(huge.sample_size[0], 1.0, rtol=0.1)


@pytest.mark.parametrize("seed", range(3))
def test_the_choice_is_the_best_feasible_candidate(seed: int) -> None:
    """400 learners with bounds from very tight (often nothing is feasible) to loose."""
    rng, shape = np.random.default_rng(seed), (6, 400)
    value = np.where(rng.random(shape) < 0.1, np.nan, rng.normal(size=shape))
    candidates, divergence = rng.uniform(0.0, 2.0, (*shape, 1)), rng.exponential(size=shape)
    bound = np.geomspace(1e-2, 10.0, 400)
    prices = Prices(jnp.asarray(value), jnp.asarray(divergence), jnp.ones(shape))
    chosen = np.asarray(choose(jnp.asarray(candidates), prices, jnp.asarray(bound)))
    feasible = (divergence <= bound) & np.isfinite(value)
    best = np.where(feasible, value, -np.inf).argmax(axis=0)
    some = feasible.any(axis=0)
    np.testing.assert_array_equal(chosen, np.where(some, best, candidates[:, :, 0].argmin(axis=0)))
    assert 20 < some.sum() < 380  # both cases occur


def test_the_proposal_respects_the_bound_of_each_learner() -> None:
    mdp = make_mdp("cartpole")
    learners, _ = current_batch(mdp)
    bounds = np.array([0.0, 1e-4, 1e-3, 1e-2, 2e-2, 5e-2, 1.0, 100.0])
    controller = HOOF(bounds, num_candidates=50)
    proposal = controller.propose(controller.init(mdp, learners), learners)
    divergence = np.asarray(price(mdp, learners, proposal[None]).divergence[0])
    draws = np.asarray(mdp.space.sample(learners.controller_key, 50 * BLOCK)).reshape(50, BLOCK)
    all_divergences = np.asarray(price(mdp, learners, jnp.asarray(draws)[:, :, None]).divergence)
    for learner, bound in enumerate(bounds):
        if (all_divergences[:, learner] <= bound).any():
            assert divergence[learner] <= bound * (1 + 1e-5)
        else:
            np.testing.assert_allclose(proposal[learner, 0], draws[:, learner].min(), rtol=1e-6)
    assert proposal[0, 0] == draws[:, 0].min()


def test_effective_sample_sizes_are_reported() -> None:
    mdp = make_mdp("cartpole")
    controller = HOOF(0.05, num_candidates=10)
    learners, _ = current_batch(mdp)
    state = controller.init(mdp, learners)
    proposal = controller.propose(state, learners)
    sizes = controller.report(controller.observe(state, learners, proposal, learners))["effective_sample_size"]
    np.testing.assert_allclose(sizes, price(mdp, learners, proposal[None]).sample_size, rtol=1e-6)
    silent = HOOF(0.05, num_candidates=10, records_sample_size=False)
    assert silent.report(silent.observe(state, learners, proposal, learners)) == {}


def test_a_comparison_keeps_what_a_controller_reports() -> None:
    mdp = make_mdp()
    method = Method("hoof", NGA(), HOOF(0.05, num_candidates=5))
    sizes = compare([method], mdp, seed=0, num_tasks=3, num_updates=2).diagnostics["hoof/effective_sample_size"]
    assert sizes.shape == (3, 2)
    assert (sizes >= 1.0).all()
    assert (sizes <= mdp.estimator.rollout.num_episodes + 1e-3).all()
    silent = compare([Method("fixed", NGA(), Fixed(0.1))], mdp, seed=0, num_tasks=3, num_updates=1)
    assert silent.diagnostics == {}
