"""HOOF's prices and choices, and the oracle's search, also on environments outside JAX."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from numpy.typing import NDArray

from metastep.controllers.search import HOOF, GreedyOracle, Prices, choose, line_search, price
from metastep.mdp import EpisodicMetaMDP, Learners
from metastep.mdp.blocks import Stream
from metastep.rules import NGA, Adam, Rule, Update
from metastep.simulation.engine import is_compiled
from metastep.simulation.gradients import Estimate
from metastep.simulation.rollouts import Trajectories
from tests.controllers.problems import BLOCK, make_mdp
from tests.envs.host.twins import Twin
from tests.reference import network_mean


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


def reference_prices(
    mdp: EpisodicMetaMDP, learners: Learners, episodes: Trajectories, candidates: NDArray[np.float32]
) -> Prices:
    """Weighted importance sampling in float64 from stored actions and log densities, one episode after the other."""
    rollout = mdp.estimator.rollout
    policy, gamma = rollout.policy, rollout.discount
    stored = episodes.observation, episodes.action, episodes.reward, episodes.alive
    observation, action, reward, alive = (np.asarray(array, np.float64) for array in stored)
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
        ("nav2d", (), Quadratic()),
        ("lqr", (3,), NGA()),
    ],
    ids=["one action", "two actions", "adam", "own rule", "network"],
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
    # Neither overflows nor loses the best episode.
    huge = price(mdp, learners, jnp.full((1, BLOCK, 1), 1e6, jnp.float32))
    assert np.all(np.isfinite(huge.value))
    np.testing.assert_allclose(huge.sample_size[0], 1.0, rtol=0.1)


def test_the_choice_is_the_best_feasible_candidate() -> None:
    """400 learners with bounds from very tight (often nothing is feasible) to loose."""
    rng, shape = np.random.default_rng(0), (6, 400)
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


def test_the_proposal_respects_the_bound_of_each_learner_and_its_sample_size_is_reported() -> None:
    mdp = make_mdp("cartpole")
    learners, _ = current_batch(mdp)
    bounds = np.array([0.0, 1e-4, 1e-3, 1e-2, 2e-2, 5e-2, 1.0, 100.0])
    controller = HOOF(bounds, num_candidates=50)
    state = controller.init(mdp, learners)
    proposal = controller.propose(state, learners)
    prices = price(mdp, learners, proposal[None])
    draws = np.asarray(mdp.space.sample(learners.controller_key, 50 * BLOCK)).reshape(50, BLOCK)
    feasible = np.asarray(price(mdp, learners, jnp.asarray(draws)[:, :, None]).divergence) <= bounds
    smallest = np.isclose(proposal[:, 0], draws.min(axis=0), rtol=1e-6)
    assert np.where(feasible.any(axis=0), prices.divergence[0] <= bounds * (1 + 1e-5), smallest).all()
    assert proposal[0, 0] == draws[:, 0].min()
    sizes = controller.report(controller.observe(state, learners, proposal, learners))["effective_sample_size"]
    np.testing.assert_allclose(sizes, prices.sample_size, rtol=1e-6)


def test_the_oracle_prices_steps_with_the_estimator_on_the_controllers_episodes_and_takes_the_best() -> None:
    mdp = make_mdp("cartpole")
    learners = mdp.begin(mdp.tasks(0, Stream.TUNING, 0))
    grid = mdp.space.candidates(11)
    found = np.asarray(line_search(mdp, learners, jnp.asarray(grid)))
    for step, row in zip(grid[:, 0], found, strict=True):
        moved = mdp.rule.apply(learners.theta, learners.estimate, {"stepsize": jnp.full(BLOCK, step)}, None).theta
        expected = mdp.estimator(moved, learners.context, learners.controller_key).mean_return
        np.testing.assert_allclose(row, expected, rtol=1e-4)
    controller = GreedyOracle(num_stepsizes=11)
    np.testing.assert_array_equal(controller.propose(mdp, learners), grid[found.argmax(axis=0)])
    broken = learners._replace(context=learners.context.at[0].set(jnp.nan))
    assert np.all(np.isfinite(controller.propose(mdp, broken)))
    # The episodes are neither those of the current nor of the next batch.
    following = mdp.advance(learners, jnp.zeros((BLOCK, 1), jnp.float32))
    assert not np.any(found[0] == np.asarray(learners.estimate.mean_return))
    assert not np.any(found[0] == np.asarray(following.estimate.mean_return))


def test_prices_and_searches_are_the_same_on_an_environment_outside_jax() -> None:
    mdp = make_mdp("cartpole")
    rollout = mdp.estimator.rollout
    moved = replace(rollout, env=Twin(rollout.env))  # type: ignore[arg-type]
    host = replace(mdp, estimator=replace(mdp.estimator, rollout=moved))
    assert not is_compiled(host.env)
    learners, steps = mdp.begin(mdp.tasks(0, Stream.TUNING, 0)), jnp.asarray([[0.0], [0.5], [1.0]], jnp.float32)
    candidates = steps[:, None] * jnp.ones((1, BLOCK, 1), jnp.float32)
    for compiled, hosted in zip(price(mdp, learners, candidates), price(host, learners, candidates), strict=True):
        np.testing.assert_allclose(hosted, compiled, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(line_search(host, learners, steps), line_search(mdp, learners, steps), rtol=1e-4)
