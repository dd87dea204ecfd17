from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse.linalg
from jax import Array
from numpy.typing import NDArray

from metastep import envs
from metastep._core.errors import InputError
from metastep.envs import LQR, CartPole
from metastep.envs.base import Wrapper
from metastep.mdp.blocks import Purpose, Stream, block_key, purpose_key
from metastep.policies import LinearGaussian, MLPGaussian
from metastep.rules import NGA
from metastep.simulation.gradients import DAMPING, Estimate, Estimator
from metastep.simulation.rollouts import Baseline, Rollout
from tests import reference
from tests.reference import CASES, Floats, draw_learners, exact, make_rollout, relative_error

THETA, SCALE, SIGMA, HORIZON = (0.1, -0.3, -0.6), 1.0, 0.5, 10
TRUTH = exact(LQR(), THETA, SCALE, sigma=SIGMA, horizon=HORIZON, discount=0.99)


def lqr_estimates(baseline: Baseline, num_episodes: int, num_learners: int, num_batches: int) -> Estimate:
    """Independent estimates for one policy in one task: every field (batches * learners, ...)."""
    rollout = Rollout(LQR(), LinearGaussian(2, 1, SIGMA), num_episodes, HORIZON, baseline=baseline)
    estimator = Estimator(rollout, damping=1e-7)
    theta = jnp.tile(jnp.asarray([THETA], jnp.float32), (num_learners, 1))
    context = jnp.full((num_learners, 1), SCALE, jnp.float32)
    batches = [estimator(theta, context, jax.random.key(seed)) for seed in range(num_batches)]
    return Estimate(*(np.concatenate(field).astype(np.float64) for field in zip(*batches, strict=True)))


def deviations(samples: Floats, truth: float | Floats) -> Floats:
    """How many standard errors the mean of the samples is from the truth."""
    return np.abs(np.mean(samples, axis=0) - truth) / (np.std(samples, axis=0) / np.sqrt(len(samples)))


@pytest.mark.parametrize("baseline", ["none", "mean"])
def test_return_and_gradient_are_unbiased_on_the_probe(baseline: Baseline) -> None:
    """2,000 estimates of 200 episodes.

    A mean that includes the episode it is subtracted from shrinks the gradient by exactly 1 - 1/n, as scores have mean zero.
    """
    estimates = lqr_estimates(baseline, 200, 500, 4)
    expected = TRUTH.gradient * (1.0 if baseline == "none" else 1.0 - 1.0 / 200)
    off = deviations(estimates.gradient, expected)
    error = np.std(estimates.gradient, axis=0) / np.sqrt(2000) / np.linalg.norm(TRUTH.gradient)
    assert off.max() < 3.5
    assert error.max() < 0.015
    assert deviations(estimates.mean_return, TRUTH.mean_return) < 3.5


def test_gradient_with_the_optimal_baseline_and_natural_gradient_on_the_probe() -> None:
    """Both divide by statistics of their own batch, a bias of order 1/n: 300 estimates of 2,000 episodes."""
    estimates = lqr_estimates("optimal", 2000, 100, 3)
    for name in ("gradient", "natural_gradient", "mean_return"):
        samples, truth = getattr(estimates, name), getattr(TRUTH, name)
        assert deviations(samples, truth).max() < 3.5
        # The intervals are narrow enough to mean something.
        assert (np.std(samples, axis=0) / np.sqrt(300) < 0.015 * np.linalg.norm(truth)).all()
    # The standard error that comes with an estimate is the spread of estimates.
    np.testing.assert_allclose(np.mean(estimates.return_error), np.std(estimates.mean_return), rtol=0.1)


def damped_solution(fisher: Floats, gradient: Floats, damping: float, kind: str = "relative") -> Floats:
    size = fisher.shape[-1]
    ridge = damping * (np.trace(fisher, axis1=1, axis2=2) / size if kind == "relative" else np.ones(len(fisher)))
    return np.linalg.solve(fisher + ridge[:, None, None] * np.eye(size), gradient[..., None])[..., 0]


class Wide(Wrapper):
    """Ten observations: beyond the number up to which sums are written out entry by entry."""

    num_observations = 10

    def observe(self, context: Any, state: Any) -> tuple[Array, ...]:
        x, y = self.env.observe(context, state)
        return x, y, *(wave for k in range(1, 5) for wave in (jnp.sin(k * x), jnp.cos(k * y)))


@pytest.mark.parametrize(
    ("name", "baseline", "damping", "kind"),
    [
        *((name, "optimal", DAMPING, "relative") for name in (*CASES, "wide")),
        *(("cartpole", baseline, 0.1, "absolute") for baseline in ("none", "mean")),
    ],
)
def test_streaming_with_the_closed_form_and_trajectories_with_conjugate_gradient_agree(name, baseline, damping, kind):
    """With each other, and with plain NumPy in float64 from the same trajectories."""
    rollout = make_rollout("nav2d" if name == "wide" else name, baseline)
    if name == "wide":
        rollout = replace(rollout, env=Wide(rollout.env), policy=LinearGaussian(10, 2, 0.7))
    learners = draw_learners(rollout, 3)
    expected = reference.estimate(rollout, Estimator(rollout).trajectories(*learners))
    natural = damped_solution(expected.fisher, expected.gradient, damping, kind)
    for fisher in ("closed", "cg"):
        estimate = Estimator(rollout, fisher, damping, kind)(*learners)
        assert relative_error(estimate.natural_gradient, natural).max() < 1e-3
        assert relative_error(estimate.gradient, expected.gradient).max() < 1e-4
        np.testing.assert_allclose(estimate.mean_return, expected.mean_return, rtol=1e-4)
        np.testing.assert_allclose(estimate.return_error, expected.return_error, rtol=1e-3, atol=1e-6)
        np.testing.assert_array_equal(estimate.num_steps, expected.num_steps)


def test_conjugate_gradient_for_a_network_solves_with_the_dense_fisher_matrix() -> None:
    rollout = make_rollout("nav2d", hidden=(3,))
    estimator = Estimator(rollout, "truncated", damping=1e-2, cg_iterations=60)
    assert estimator.solver == "cg"
    theta, context, key = draw_learners(rollout, 2)
    estimate = estimator(theta, context, key)
    episodes = estimator.trajectories(theta, context, key)
    policy = rollout.policy

    def jacobian(parameters: Array, observation: Array) -> Array:
        """Of the mean action at one observation: (actions, parameters)."""
        seen = tuple(observation[:, None, None])
        return jax.jacrev(lambda values: jnp.stack(policy.mean(values[:, None], seen))[:, 0, 0])(parameters)

    for learner in range(2):
        observation, alive = (np.asarray(each[..., learner]) for each in (episodes.observation, episodes.alive))
        observation = np.moveaxis(observation, 1, -1)[alive]
        rows = jax.jit(jax.vmap(jacobian, in_axes=(None, 0)))(theta[learner], jnp.asarray(observation))
        rows = np.asarray(rows, np.float64)
        fisher = np.einsum("nap,naq->pq", rows, rows) / (len(rows) * policy.sigma**2)
        gradient = np.asarray(estimate.gradient[learner], np.float64)
        expected = damped_solution(fisher[None], gradient[None], 1e-2)
        assert relative_error(estimate.natural_gradient[learner][None], expected).max() < 1e-3


@pytest.mark.parametrize("iterations", [1, 2, 10])
def test_truncated_conjugate_gradient_stops_after_so_many_steps(iterations: int) -> None:
    rollout = make_rollout("nav2d")  # two actions: one iteration for both, on the matrix of two equal blocks
    learners = draw_learners(rollout, 3)
    estimator = Estimator(rollout, "truncated", damping=0.01, damping_kind="absolute", cg_iterations=iterations)
    estimate = estimator(*learners)
    expected = reference.estimate(rollout, Estimator(rollout).trajectories(*learners))
    for learner in range(3):
        matrix = expected.fisher[learner] + 0.01 * np.eye(expected.fisher.shape[-1])
        solved, _ = scipy.sparse.linalg.cg(matrix, expected.gradient[learner], rtol=0.0, maxiter=min(iterations, 3))
        assert relative_error(estimate.natural_gradient[learner][None], solved[None]).max() < 2e-3
    exact = Estimator(rollout, "closed", damping=0.01, damping_kind="absolute")(*learners).natural_gradient
    apart = relative_error(estimate.natural_gradient, exact).max()
    assert apart > 1e-2 if iterations == 1 else apart < 0.5


@pytest.mark.parametrize("fisher", ["closed", "cg"])
def test_one_diverging_learner_is_alone_with_it(fisher: str) -> None:
    rollout = make_rollout("lqr")
    theta, context, key = draw_learners(rollout, 3)
    estimator = Estimator(rollout, fisher)  # type: ignore[arg-type]
    healthy = estimator(theta, context, key)
    sick = estimator(theta.at[1].set(1e30), context, key)
    for before, after in zip(jax.tree.leaves(healthy), jax.tree.leaves(sick), strict=True):
        np.testing.assert_array_equal(before[np.array([0, 2])], after[np.array([0, 2])])
    assert not np.isfinite(np.asarray(sick.gradient[1])).all()
    update = NGA().apply(theta.at[1].set(1e30), sick, {"stepsize": jnp.ones(3, jnp.float32)}, None)
    np.testing.assert_array_equal(update.flagged, [False, True, False])


@contextmanager
def compilations() -> Iterator[list[str]]:
    """Collects an event for every function that JAX traces, lowers or compiles."""
    events: list[str] = []

    def listen(event: str, duration: float, **details: str | int) -> None:
        if event.startswith("/jax/core/compile/"):
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield events
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.parametrize("policy", [LinearGaussian(4, 1, 1.001), MLPGaussian(4, 1, 1.001, (3,))], ids=["linear", "mlp"])
def test_other_step_sizes_tasks_and_seeds_compile_nothing_new(policy: LinearGaussian | MLPGaussian) -> None:
    def two_updates(seed: int, block: int, stepsize: float) -> NDArray[np.float32]:
        estimator = Estimator(Rollout(envs.make("cartpole"), policy, 5, 8))  # a new object each time
        key = block_key(seed, Stream.TRAIN, block)
        context = estimator.rollout.env.context_space.sample(purpose_key(key, Purpose.CONTEXT), 4)
        theta = jax.random.normal(purpose_key(key, Purpose.INITIAL_POLICY), (4, policy.num_parameters), jnp.float32)
        for update in range(2):
            estimate = estimator(theta, context, purpose_key(key, Purpose.SIMULATION, update))
            theta = NGA().apply(theta, estimate, {"stepsize": jnp.full(4, stepsize, jnp.float32)}, None).theta
        return np.asarray(theta)

    with compilations() as first:
        theta = two_updates(0, 0, 0.5)
    assert first  # the listener hears compilations
    with compilations() as second:
        other = two_updates(17, 3, 2.25)
    assert second == []
    assert (theta != other).all()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"rollout": make_rollout("lqr", hidden=(2,)), "fisher": "closed"},
            "'closed' needs a linear policy, allowed here",
        ),
        ({"fisher": "dense"}, r"rollout.fisher: 'dense' must be 'closed', 'cg' or 'truncated'"),
        ({"damping": 0.0}, r"rollout.damping: 0.0 must lie in \(0, 1\)"),
        ({"cg_iterations": 0}, r"rollout.cg_iterations: 0 must be greater than or equal to 1"),
    ],
)
def test_a_bad_estimator_is_refused_with_a_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Estimator(**{"rollout": make_rollout("lqr"), **changes})


@pytest.mark.parametrize("baseline", ["mean", "optimal"])
def test_episodes_that_all_pay_the_same_have_no_gradient(baseline: Baseline) -> None:
    """A pole that never falls: what is left must be zero, not rounding noise that NGA would follow at full length."""
    env = CartPole(max_angle=10.0, max_position=100.0)
    rollout = Rollout(env, LinearGaussian(4, 1, sigma=1.0), num_episodes=30, horizon=20, baseline=baseline)
    theta, context, key = draw_learners(rollout, 4)
    estimate = Estimator(rollout)(theta, context, key)
    np.testing.assert_array_equal(estimate.num_steps, 600.0)
    np.testing.assert_array_equal(estimate.gradient, 0.0)
    np.testing.assert_array_equal(NGA().apply(theta, estimate, {"stepsize": jnp.ones(4)}, None).theta, theta)
    assert NGA().apply(theta, estimate, {"stepsize": jnp.ones(4)}, None).flagged.all()
