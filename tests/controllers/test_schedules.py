"""Controllers without a model: constant and decaying steps, KL-adaptive ones, metagrad, and the bandit."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metastep._core.errors import InputError
from metastep.controllers import (
    HOOF,
    Bandit,
    Controller,
    CosineAnnealing,
    Decay,
    Exploration,
    Fixed,
    GeometricDecay,
    GreedyOracle,
    KLAdaptive,
    LinearAnnealing,
    Metagrad,
    RandomConstant,
)
from metastep.controllers.schedules import cosine
from metastep.mdp import Learners
from metastep.mdp.blocks import Stream
from metastep.rules.actor_critic import PPO
from metastep.rules.spaces import HyperparameterSpace
from tests.controllers.problems import BLOCK, make_mdp
from tests.one_block import run

SPACE = HyperparameterSpace(
    (1e-4, 0.05, 0.8, 1.0), (1e-1, 1.0, 1.0, 6.0), ("log", "log", "linear", "log"),
    ("stepsize", "clip_range", "gae_lambda", "gradient_steps"),
)  # fmt: skip
USUAL = (3e-3, 0.2, 0.95, 6.0)


def proposals(controller: Controller) -> np.ndarray:
    """(updates, learners)."""
    mdp = make_mdp()
    history, _ = run(mdp, controller, mdp.tasks(0, Stream.TUNING, 0), 4)
    return history.hyperparameters[:, :, 0]


def test_steps_stay_or_decay_as_their_formulas_say() -> None:
    steps, alphas = np.linspace(0.1, 0.8, BLOCK), np.array([0.5, 0.1] * (BLOCK // 2))
    np.testing.assert_array_equal(proposals(Fixed(steps)), np.tile(steps.astype(np.float32), (4, 1)))
    np.testing.assert_allclose(proposals(Decay(3.0))[:, 0], [3.0, 1.5, 1.0, 0.75])
    np.testing.assert_allclose(proposals(LinearAnnealing(1.0, 4))[:, 0], [1.0, 0.75, 0.5, 0.25], rtol=1e-5)
    half_a_wave = 0.5 * (1.0 + np.cos(np.pi * np.arange(4) / 4))
    np.testing.assert_allclose(proposals(CosineAnnealing(1.0, 4))[:, 0], half_a_wave, rtol=1e-5)
    found = proposals(GeometricDecay(2.0, alphas))
    np.testing.assert_allclose(found[:, :2].T, [[2.0, 1.0, 0.5, 0.25], [2.0, 0.2, 0.02, 0.002]], rtol=1e-6)


def test_random_constants_are_uniform_draws_that_stay() -> None:
    found, explored = proposals(RandomConstant()), proposals(Exploration())
    np.testing.assert_array_equal(found, np.tile(found[0], (4, 1)))
    assert len(set(found[0])) == BLOCK
    assert 0.0 <= found.min() <= found.max() <= 2.0
    assert not np.array_equal(explored[0], explored[1])


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: Fixed(float("nan")), "fixed.stepsize"),
        (lambda: GeometricDecay(1.0, -0.5), "geometric_decay.alpha"),
        (lambda: Metagrad(1.0, float("nan")), "metagrad.beta"),
        (lambda: GreedyOracle(1), "num_stepsizes: 1 must be at least 2, or 0"),
        (lambda: HOOF(-1.0), "max_divergence"),
        (lambda: HOOF(1.0, num_candidates=0), "num_candidates"),
        (lambda: KLAdaptive(1.0, 0.1, lowest=0.5, highest=0.1), "kl_adaptive.lowest: 0.5 must not exceed highest"),
        (lambda: Bandit(1e-3, window=0.5), r"bandit\.window: 0\.5 must be at least 1"),
        (lambda: Fixed(1.0).init(SimpleNamespace(space=SPACE, rule=PPO()), None), "one number for each update"),
    ],
)
def test_bad_settings_are_refused(build: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        build()


def test_the_first_adaptive_step_lies_within_its_bounds_too() -> None:
    mdp = make_mdp()
    learners = mdp.begin(mdp.tasks(0, Stream.TUNING, 0))
    steps = np.linspace(0.1, 0.8, BLOCK, dtype=np.float32)
    first = KLAdaptive(steps, 0.1, lowest=0.2, highest=0.5).init(mdp, learners)
    np.testing.assert_array_equal(np.asarray(first)[:, 0], np.clip(steps, np.float32(0.2), np.float32(0.5)))
    with pytest.raises(InputError, match=r"kl_adaptive.lowest: 3 numbers, but a block has 8 learners"):
        KLAdaptive(steps, 0.1, lowest=np.zeros(3)).init(mdp, learners)


def on_a_bowl(learners: Learners, theta: Any) -> Learners:
    """The learners at theta (learners, parameters) of the quadratic -||theta||^2 / 2, whose gradient is -theta."""
    values = jnp.asarray(theta, jnp.float32)
    estimate = learners.estimate._replace(natural_gradient=-values, gradient=jnp.full_like(values, jnp.nan))
    return learners._replace(theta=values, estimate=estimate)


def steps_on_a_bowl(controller: Metagrad, start: float, num_updates: int) -> tuple[np.ndarray, np.ndarray]:
    """Distances to the optimum before each update, and the step sizes, both (updates, learners)."""
    mdp = make_mdp()
    template = mdp.begin(mdp.tasks(0, Stream.TUNING, 0))
    learners = on_a_bowl(template, np.eye(1, mdp.policy.num_parameters) * start * np.ones((BLOCK, 1)))
    state = controller.init(mdp, learners)
    distances, steps = [], []
    for _ in range(num_updates):
        proposal = controller.propose(state, learners)
        moved = mdp.rule.apply(learners.theta, learners.estimate, mdp.space.named(proposal), None).theta
        after = on_a_bowl(template, moved)
        state = controller.observe(state, learners, proposal, after)
        distances.append(np.linalg.norm(learners.theta, axis=1))
        steps.append(np.asarray(proposal[:, 0]))
        learners = after
    return np.stack(distances), np.stack(steps)


def test_metagrad_grows_while_gradients_agree_and_shrinks_when_they_oppose() -> None:
    """On a line through the optimum the cosine is 1 before it and -1 when it was overshot."""
    distances, steps = steps_on_a_bowl(Metagrad(0.1, 0.1), 3.0, 20)
    changes, overshot = np.diff(steps[:, 0]), distances[:-1, 0] < steps[:-1, 0]
    np.testing.assert_allclose(changes[~overshot & (steps[:-1, 0] < 1.9)], 0.1, atol=1e-5)
    np.testing.assert_allclose(changes[overshot & (steps[:-1, 0] > 0.1)], -0.1, atol=1e-5)
    assert overshot.any()
    assert not overshot[:5].any()
    starts, betas = np.linspace(0.1, 0.8, BLOCK), np.linspace(0.0, 0.07, BLOCK)
    _, steps = steps_on_a_bowl(Metagrad(starts, betas), 100.0, 3)
    np.testing.assert_allclose(steps[2], starts + 2.0 * betas, rtol=1e-5)


@pytest.mark.parametrize(
    ("first", "beta", "start", "wanted"),
    [(1.5, 5.0, 100.0, [1.5, 2.0, 2.0]), (1.0, 5.0, 0.5, [1.0, 0.0]), (7.0, 0.0, 100.0, [2.0, 2.0])],
)
def test_metagrad_stays_inside_the_space(first: float, beta: float, start: float, wanted: list[float]) -> None:
    np.testing.assert_allclose(steps_on_a_bowl(Metagrad(first, beta), start, len(wanted))[1][:, 0], wanted)


def test_cosine() -> None:
    first = jnp.asarray([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [jnp.nan, 1.0], [1e30, 1e30], [1e-30, 0.0]], jnp.float32)
    second = jnp.asarray([[0.0, 2.0], [3.0, 3.0], [1.0, 0.0], [1.0, 1.0], [-2e30, -2e30], [1e-30, 0.0]], jnp.float32)
    np.testing.assert_allclose(cosine(first, second)[:, 0], [0.0, 1.0, 0.0, 0.0, -1.0, 1.0], atol=1e-6)


def state_of(bandit: Bandit) -> Any:
    mdp = SimpleNamespace(space=SPACE, rule=PPO())
    return bandit.init(mdp, SimpleNamespace(theta=np.zeros((BLOCK, 3))))  # type: ignore[arg-type]


def moment(index: int, mean_return: Any) -> Any:
    """What the bandit looks at of learners."""
    estimate = SimpleNamespace(mean_return=jnp.asarray(mean_return), return_error=jnp.full(BLOCK, 0.1))
    return SimpleNamespace(theta=np.zeros((BLOCK, 3)), estimate=estimate, controller_key=jax.random.key(index))


def play(bandit: Bandit, reward: Any, num: int) -> tuple[np.ndarray, Any]:
    """Return what is chosen (updates, learners, coordinates) where an update improves the return by `reward(values)`."""
    state, level, chosen = state_of(bandit), np.zeros(BLOCK, np.float32), []
    for index in range(num):
        before = moment(index, level)
        values = bandit.propose(state, before)
        chosen.append(np.asarray(values))
        level = level + reward(chosen[-1]).astype(np.float32)
        state = bandit.observe(state, before, values, moment(index + 1, level))
    return np.stack(chosen), state


def test_arms_lie_around_the_usual_values_and_within_the_ranges() -> None:
    arms = np.asarray(state_of(Bandit(np.linspace(1e-3, 8e-3, BLOCK), spread=0.1)).arms)
    np.testing.assert_allclose(arms[:, 0, 1], np.linspace(1e-3, 8e-3, BLOCK), rtol=1e-6)
    np.testing.assert_allclose(arms[0, :, 1], (1e-3, *USUAL[1:]), rtol=1e-6)
    np.testing.assert_allclose(arms[0, 0], [1e-3 / 10**0.3, 1e-3, 1e-3 * 10**0.3], rtol=1e-5)  # 3 decades
    np.testing.assert_allclose(arms[0, 2], [0.93, 0.95, 0.97], rtol=1e-6)
    assert arms[0, 3, 2] == 6.0  # not above the range


def test_one_value_changes_at_a_time_and_every_hyperparameter_is_tried_first() -> None:
    chosen, state = play(Bandit(3e-3), lambda values: np.zeros(BLOCK), 8)
    before = np.concatenate([np.broadcast_to(np.float32(USUAL), (1, BLOCK, 4)), chosen[:-1]])
    assert np.max(np.sum(~np.isclose(chosen, before, rtol=1e-6), axis=2)) == 1
    pulls = np.asarray(play(Bandit(3e-3), lambda values: np.zeros(BLOCK), 4)[1].pulls)
    np.testing.assert_array_equal(pulls.sum(axis=2) > 0.0, True)
    assert len(np.unique(chosen[:, :, 0], axis=1).T) > 1  # learners explore in orders of their own
    np.testing.assert_allclose(np.asarray(state.pulls).sum(axis=(1, 2)), (1 - 0.9**8) / 0.1, rtol=1e-5)


@pytest.mark.parametrize("window", [10.0, 40.0])
def test_the_better_values_are_found_and_followed_when_they_change(window: float) -> None:
    """A small clip range pays at first, a large one later; nothing else matters."""
    bandit = Bandit(3e-3, exploration=0.5, window=window, spread=0.2)
    arms = np.asarray(state_of(bandit).arms)[0, 1]
    for best, pays in ((0, lambda clips: clips < 0.15), (2, lambda clips: clips > 0.3)):
        chosen, state = play(bandit, lambda values, pays=pays: np.where(pays(values[:, 1]), 0.2, -0.2), 60)
        assert np.mean(chosen[30:, :, 1] == arms[best]) > 0.7
        assert np.isfinite(np.asarray(state.gains)).all()


def test_a_lost_return_counts_as_a_large_drop() -> None:
    bandit, state, before = Bandit(3e-3), state_of(Bandit(3e-3)), moment(0, np.zeros(BLOCK))
    after = bandit.observe(state, before, bandit.propose(state, before), moment(1, np.full(BLOCK, np.nan)))
    np.testing.assert_allclose(np.asarray(after.gains).sum(axis=(1, 2)), -3.0)
